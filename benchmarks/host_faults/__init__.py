"""Faults of ranks, hosts and networks, on hosts in network namespaces of this machine: who says what after how long."""
