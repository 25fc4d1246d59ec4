"""The memory family on a device: the interfaces of kvsim, cells and rows as torch tensors.

``EngineFactory`` makes the leaves; kvsim's composites, batches and decode loop work with them unchanged.
What the two have in common is the interface, never an algorithm, so that each can be held against the other.
"""

from engine.factory import EngineFactory
from engine.kv import KVCache

__all__ = ["EngineFactory", "KVCache"]
