"""The name of the backend."""

NAME = "unisono"
"""The name for `init_process_group`, and the prefix of profiler events."""
