"""For users' tests: `chaos`, which lets one rank fail where a test says."""

from .chaos import chaos

__all__ = ["chaos"]
