"""The museum: real public faults of KV caches, each as a switchable mutant of the reference.

>>> from kvsim.testing.mutants import MUTANTS
>>> with MUTANTS["contiguous-slots"].applied():
...     pass  # the reference has the fault here
"""

from kvsim.testing.mutants import batches, edits, recurrent, slots, states, windows
from kvsim.testing.mutants.mutant import MUTANTS, Mutant, Patches, mutant

__all__ = [
    "MUTANTS",
    "Mutant",
    "Patches",
    "batches",
    "edits",
    "mutant",
    "recurrent",
    "slots",
    "states",
    "windows",
]
