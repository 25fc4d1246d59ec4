"""The playground without its page: what memory is set up, what is done to it, and what comes of it.

``setup`` (a memory, with what kvsim has against it), ``acts`` (one line of the operation list and the
operations it stands for), ``lines`` and ``line_text`` (their text), ``run`` (performing them, with hazards
and trials), ``session`` (undo), ``files``, ``script`` and ``link`` (out and in). Only kvsim moves cells.
"""
