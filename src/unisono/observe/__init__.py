"""Look at running jobs from outside, and at what their ranks have logged: tracks of calls, who waits for whom."""
