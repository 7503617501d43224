"""Faults of ranks, hosts and networks, on hosts in network namespaces of this machine: who says what after how long.

rank   what a rank of a trial does, and what it tells       trial   one fault while ranks wait in one place
report the results as Markdown
"""

__all__: list[str] = []
