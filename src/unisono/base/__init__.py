"""What every room may use: settings, errors, records, units, and small facts of Linux. Neither torch nor numba."""

from __future__ import annotations

__all__ = []
