"""What the Replay page has done beside the server: ``reading`` (bundled recordings, the same for all users),
``checking`` (a recording held against kvsim), ``worker`` and ``checker`` (the processes that do it).
"""
