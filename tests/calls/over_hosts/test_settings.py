"""Machines differ, and so do the figures measured on them: a job over several hosts takes them as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import free_port
from unisono.base.tuning import TuningResults, save

FIGURES = {
    "segment_bytes": (64 << 10, 1 << 20),
    "one_way_segment_bytes": (16 << 10, 512 << 10),
    "one_shot_bytes": (1 << 10, 64 << 10),
    "crowd_one_shot_bytes": (16 << 10, 128 << 10),
    "zero_copy_bytes": (0, 32 << 10),
    "cross_memory_bytes": (0, 128 << 10),
    "fetch_bytes": (1 << 20, 0),
}

SCRIPT = """
import sys, torch, unisono
group, seen = unisono.init(), []
me, size = group.rank, group.size
for count in (3, 5_000, 300_001):
    whole = (torch.arange(size * count) % 7 + 1).view(size, count).double() / 3
    tensor = whole[me].clone()
    unisono.all_reduce(tensor)
    assert torch.allclose(tensor, whole.sum(0))
    seen.append(tensor.view(torch.int64).sum().item())
    taken = torch.empty(size, count, dtype=torch.double)
    unisono.all_gather_single(taken, whole[me].clone())
    assert torch.equal(taken, whole)
    unisono.broadcast(tensor.copy_(whole[me]), 3)
    assert torch.equal(tensor, whole[3])
print(group.hosts.text, group.host.config.segment_bytes, *seen)
unisono.shutdown()
"""


@pytest.mark.long
def test_hosts_with_figures_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for host in (0, 1):
        monkeypatch.setenv("UNISONO_MEASURED", f"{tmp_path / str(host)}.json")
        save(TuningResults("2026-01-01", {name: both[host] for name, both in FIGURES.items()}))
    port = free_port()
    ranks = []
    for rank in range(4):
        place = {
            "RANK": f"{rank}", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}",
            "UNISONO_HOST_ID": f"{rank // 2}", "UNISONO_MEASURED": f"{tmp_path / str(rank // 2)}.json",
            "UNISONO_TIMEOUT_S": "60", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        words = [sys.executable, "-c", SCRIPT]
        ranks.append(subprocess.Popen(words, env={**os.environ, **place}, stdout=subprocess.PIPE, text=True))
    said = [rank.communicate(timeout=110)[0].split() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4
    assert [words[:2] for words in said] == [["2x2", f"{64 << 10}"]] * 2 + [["2x2", f"{1 << 20}"]] * 2
    assert len({tuple(words[2:]) for words in said}) == 1
