"""The command line, checks of the machine, and helpers for users' tests. No other room imports this one."""
