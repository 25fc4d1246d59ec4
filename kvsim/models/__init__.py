"""Models, as far as a memory depends on them, and small ones that compute through it.

- ``params``, ``context_params``: what a model and a context are, and the two merged.
- ``arch``: architecture -> memory, and which block goes where.
- ``cache_spec``, ``memory_spec``, ``cache_types``: what each leaf of a memory is built from.
- ``memory_bytes``: the bytes of a memory, and what fits into a budget.
- ``gguf_metadata``, ``metadata``, ``gguf_header``: a model file's header -> params; what architectures
  differ in is in ``windows``, ``rope_types``, ``recurrent_shapes`` and ``indexers``.
- ``known``: public models by name. ``record``: typed fields of a recording's header.
- ``network``: forward passes of model files (``llama``, ``gemma2``, ``mamba``, ``jamba``, ``lfm2``), made of
  ``layers``; ``layer_memory`` and ``cached_rows`` are how a layer reads and writes the caches.
- ``probe``, ``probe_sparse``, ``probe_dsv4``, ``probe_recurrent``: seeded random weights for any member of
  the family; ``probe_truth``: what they must read, without any cache.
"""
