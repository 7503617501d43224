"""What this machine has, by files of Linux: processors and control groups."""

import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from unisono.base.config import Config
from unisono.base.linux import cpuinfo, free_bytes, processors, quota, vendor


def test_first_processor_is_described() -> None:
    lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    assert {key: cpuinfo(key) for key in said} == said
    assert not cpuinfo("colour")
    makers = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}
    assert vendor() == makers.get(said.get("vendor_id", ""), platform.machine())
    assert Config().cross_memory_bytes == (0 if vendor() == "amd" else 1 << 20)


Tree = Callable[[Mapping[str, str]], Path]

V2_MOUNT = "cgroup2 /sys/fs/cgroup cgroup2 rw,relatime 0 0\n"
V1_MOUNTS = (
    "tmpfs /sys/fs/cgroup tmpfs rw,mode=755 0 0\n"
    "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
    "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
)
BASE = "sys/fs/cgroup"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """tree({path: text}): a root with these files."""

    def made(content: Mapping[str, str]) -> Path:
        for path, text in content.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return tmp_path

    return made


LEFT: dict[str, tuple[Mapping[str, str], tuple[float | None, int | None]]] = {
    "no groups are no limit": ({}, (None, None)),
    "version 2 has the least of a group and of those above": (
        {
            "proc/self/mounts": V2_MOUNT,
            "proc/self/cgroup": "0::/jobs/mine\n",
            f"{BASE}/jobs/cpu.max": "150000 100000\n",
            f"{BASE}/jobs/mine/cpu.max": "200000 100000\n",
            f"{BASE}/jobs/memory.max": "max\n",
            f"{BASE}/jobs/memory.current": "100\n",
            f"{BASE}/jobs/mine/memory.max": "1000\n",
            f"{BASE}/jobs/mine/memory.current": "700\n",
            f"{BASE}/jobs/mine/memory.stat": "anon 400\ninactive_file 250\n",
        },
        (1.5, 550),
    ),
    "version 1 has a folder for each controller": (
        {
            "proc/self/mounts": V1_MOUNTS,
            "proc/self/cgroup": "4:memory:/box\n2:cpu,cpuacct:/box\n0::/\n",
            f"{BASE}/cpu,cpuacct/box/cpu.cfs_quota_us": "50000\n",
            f"{BASE}/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
            f"{BASE}/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            f"{BASE}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            f"{BASE}/memory/memory.limit_in_bytes": "9223372036854771712\n",
            f"{BASE}/memory/memory.usage_in_bytes": "5\n",
            f"{BASE}/memory/box/memory.limit_in_bytes": "4096\n",
            f"{BASE}/memory/box/memory.usage_in_bytes": "5000\n",
            f"{BASE}/memory/box/memory.stat": "inactive_file 10\ntotal_inactive_file 100\n",
        },
        (0.5, 0),
    ),
    "in a container the path may be one outside": (
        {
            "proc/self/mounts": V1_MOUNTS,
            "proc/self/cgroup": "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n",
            f"{BASE}/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
            f"{BASE}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            f"{BASE}/memory/memory.limit_in_bytes": "3000\n",
            f"{BASE}/memory/memory.usage_in_bytes": "1000\n",
        },
        (2.0, 2000),
    ),
    "what is damaged is no limit": (
        {
            "proc/self/mounts": V2_MOUNT,
            "proc/self/cgroup": "0::/\n",
            f"{BASE}/cpu.max": "many 100000\n",
            f"{BASE}/memory.max": "1000\n",
            f"{BASE}/memory.current": "?\n",
        },
        (None, None),
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_control_groups_leave(tree: Tree, case: str) -> None:
    files, left = LEFT[case]
    assert (quota(root := tree(files)), free_bytes(root)) == left


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
@pytest.mark.parametrize(("quota_us", "left"), [("max", 64), ("6400000", 64), ("199000", 1), ("50000", 1)])
def test_quota_leaves_fewer_processors(tree: Tree, quota_us: str, left: int) -> None:
    root = tree({"proc/self/mounts": V2_MOUNT, "proc/self/cgroup": "0::/\n", f"{BASE}/cpu.max": f"{quota_us} 100000\n"})
    assert processors(root=root) == min(left, len(os.sched_getaffinity(0)))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_processes_have_those_they_are_bound_to(tmp_path: Path) -> None:
    every = os.sched_getaffinity(0)
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            os.sched_setaffinity(other.pid, every - {min(every)})
            os.sched_setaffinity(0, {min(every)})
            assert [processors(pids, tmp_path) for pids in ([], [other.pid], [(1 << 22) + 1])] == [1, len(every), 1]
        finally:
            os.sched_setaffinity(0, every)
            other.kill()


def test_free_memory_is_read_again(tree: Tree) -> None:
    root = tree(LEFT["version 2 has the least of a group and of those above"][0])
    assert free_bytes(root) == 550
    tree({f"{BASE}/jobs/mine/memory.current": "1100\n"})
    assert free_bytes(root) == 150
