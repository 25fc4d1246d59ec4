"""A stream of requests served by a simulated server: what it is asked, what it comes to, what is drawn of it.

Simulations run in a process of their own (``worker``).
"""
