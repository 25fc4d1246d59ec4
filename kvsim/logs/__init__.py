"""Logs of a real llama.cpp as traces: what its slot search printed, and the messages people ask about.

>>> from kvsim.logs import import_log
>>> imported = import_log(open("server.log"))                        # doctest: +SKIP
>>> for step in imported.contexts[0].steps(): ...                    # doctest: +SKIP

``source`` (the text, plain or gzip), ``lines`` (what was put before llama.cpp's text), ``grid`` (the printed
cells), ``searches`` (one print of the slot search), ``facts`` (what a log says of its contexts), ``imported``
(all of it as traces).
With ``LLAMA_KV_CACHE_DEBUG=1`` the search prints counts and position ranges, with 2 also the cells of window
caches, with 3 all cells; ``llama-server`` shows debug output with ``-lv 5``.
"""

from __future__ import annotations

from kvsim.logs.imported import Imported, LoggedContext, Message, import_log
from kvsim.logs.source import log_text

__all__ = ["Imported", "LoggedContext", "Message", "import_log", "log_text"]
