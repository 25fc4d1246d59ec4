"""Holding a memory against its specification: generated operations, every check after each of them.

``ops`` of the trace format are generated (``generate``) for a table of configurations (``cache_info``),
performed on a memory whose rows carry fingerprints (``ink``), and checked against the ledger (``checked``).
``machine`` lets Hypothesis choose the operations, ``campaign`` a seed.
"""
