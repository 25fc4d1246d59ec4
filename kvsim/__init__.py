"""kvsim: an executable reference of llama.cpp's memory family, in numpy."""

__version__ = "0.1.0"
