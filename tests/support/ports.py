"""Ports for jobs that tests start by hand."""

import os
import random
import socket

_FIRST, _PER_WORKER, _WORKERS = 10_000, 1_000, 16
"""Below the ports that the system gives to connections, so that none of them takes one before the job listens."""


def free_port() -> int:
    """A port of this host that no other process of pytest picks, and on which nothing listens now."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    first = _FIRST + worker * _PER_WORKER
    while True:
        port = random.randrange(first, first + _PER_WORKER)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
