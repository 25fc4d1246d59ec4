"""What a memory costs: the configuration, its alternatives, and how full a recording's memory was."""
