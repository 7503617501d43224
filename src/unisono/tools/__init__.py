"""The command line, checks of the machine, and what users' own tests need. No other room imports this one."""
