"""The version of this package, which its build reads here, too."""

from __future__ import annotations

__version__ = "0.1.0"
