"""Benchmarks: every figure is a ratio of two things measured in one run, so that the machine cancels out.

``cells``: operations on a large cache beside llama.cpp's library; ``tensors``: moving and turning rows beside
plain copies of them; ``measure``: how both are timed and held against their goals.
"""
