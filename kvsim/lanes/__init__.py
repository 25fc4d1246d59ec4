"""The live lane: kvsim beside the real llama.cpp, operation by operation.

``declarations``, ``library``: the public C API of the versions known, found, opened and probed;
``session``: one model and context; ``child``: the process they live in, as some calls end it;
``llamacpp``: the lane itself; ``cell_log``: what the library prints of its cells; ``campaign``: random
operations on both sides.
"""
