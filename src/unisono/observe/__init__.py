"""Look at running jobs from outside, and at the logs of their ranks: tracks of calls, which rank waits for which."""
