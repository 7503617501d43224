"""The name of the backend."""

__all__ = ["NAME"]

NAME = "unisono"
"""What users pass to `init_process_group`, and the prefix of profiler events."""
