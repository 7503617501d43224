"""The name of the backend."""

NAME = "unisono"
"""What users pass to `init_process_group`, and the prefix of profiler events."""
