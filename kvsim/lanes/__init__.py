"""The live lane: kvsim beside the real llama.cpp, operation by operation.

``declarations``, ``library``: the public C API of the versions known, found, opened and probed;
``session``: one model and context; ``child``: the process they live in, as some calls end it;
``llamacpp``: the lane itself; ``picture``: what it shows in the trace format; ``subject``: it as a subject of
the tester. ``choose``, ``pair``, ``campaign``, ``known_differences``: random operations on both sides, and what
may differ; ``against``: two releases beside each other. ``findings``, ``finding_table``, ``finding_page``: the
hazards in llama.cpp itself.
"""
