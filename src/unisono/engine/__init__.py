"""Compile tables, prove the compiled programs, run them over shared memory. Start reading at `host.Host.plan`."""
