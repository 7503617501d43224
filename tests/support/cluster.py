"""Hosts in network namespaces that tests cut off, start programs on, and count the bytes of."""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from unisono.schedule import Hosts

from .namespaces import Namespaces, why_no_namespaces

why_not = why_no_namespaces


class Cluster(Namespaces):
    """`Namespaces`, with cables that can be pulled and with programs; to be closed."""

    def __init__(self, hosts: Hosts) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        super().__init__(hosts)

    def cut(self, host: int) -> None:
        """Pull a host's cable: at the switch, so that the host's own link stays up."""
        _ip("-n", self.switch, "link", "set", f"p{host}", "nomaster")

    def mend(self, host: int) -> None:
        """Plug it in again."""
        _ip("-n", self.switch, "link", "set", f"p{host}", "master", "br0")

    def link_down(self, host: int) -> None:
        """Let a host have no network."""
        _ip("-n", self.names[host], "link", "set", "eth0", "down")

    def link_up(self, host: int) -> None:
        """Let it have it again."""
        _ip("-n", self.names[host], "link", "set", "eth0", "up")

    def cut_pair(self, one: int, other: int) -> None:
        """Let these two hosts not reach each other, while others reach both."""
        for here, there in ((one, other), (other, one)):
            _ip("-n", self.names[here], "route", "add", "blackhole", f"{self.address(there)}/32")

    def mend_pair(self, one: int, other: int) -> None:
        """Let them reach each other again."""
        for here, there in ((one, other), (other, one)):
            _ip("-n", self.names[here], "route", "del", "blackhole", f"{self.address(there)}/32")

    def processes(self, host: int) -> list[int]:
        return [int(pid) for pid in _ip("netns", "pids", self.names[host]).split()]

    def sent(self, host: int) -> int:
        """How many bytes have left a host, headers included, by the kernel's count."""
        return int(_ip("netns", "exec", self.names[host], "cat", "/sys/class/net/eth0/statistics/tx_bytes"))

    def start(self, host: int, *words: object, env: Mapping[str, object] | None = None) -> subprocess.Popen[str]:
        """Start a Python program on a host. It is killed with the cluster, together with what it has started."""
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            **{name: str(value) for name, value in (env or {}).items()},
        }
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], sys.executable, *map(str, words)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._processes.append(process)
        return process

    def finish(self, timeout_s: float = 110.0) -> list[str]:
        """What the programs have printed, when all have ended; they must have ended well."""
        said = [process.communicate(timeout=timeout_s) for process in self._processes]
        codes = [process.returncode for process in self._processes]
        assert not any(codes), (codes, said)
        return [out for out, _ in said]

    def close(self) -> None:
        """End the programs, and remove the hosts."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.communicate()
        super().close()


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout
