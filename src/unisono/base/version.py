"""The version of this package. `pyproject.toml` has it, too."""

from __future__ import annotations

__version__ = "0.1.0"
