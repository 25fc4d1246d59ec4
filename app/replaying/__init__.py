"""Bundled recordings for the Replay page: ``reading`` (what is known of one, the same for all users), ``worker`` (the
process that reads and checks it).
"""
