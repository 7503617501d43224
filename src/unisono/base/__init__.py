"""What every package may use: settings, errors, records, units, and small facts of Linux. Neither torch nor numba."""
