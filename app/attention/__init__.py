"""What a token may read, and what it does: a recording performed on rows, looked at decode by decode."""
