"""The torch implementation of the interface in :mod:`kvsim.memory`."""
