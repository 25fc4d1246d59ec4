"""Several implementations on one trace: where they part, and a campaign that finds a planted fault.

What runs long, or changes the reference (a planted fault), runs in a process of its own (``worker``), so that
it can be cancelled, and no other session ever meets it.
"""
