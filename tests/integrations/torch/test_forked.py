"""Ranks that multiprocessing has forked, on one host and on two, and how they end."""

from pathlib import Path

import pytest

from tests.support.programs import Python

FORKED = """
import multiprocessing, os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist

def work(rank):
    os.environ["UNISONO_HOST_ID"] = f"{rank * int(sys.argv[1])}"
    dist.init_process_group("unisono", f"file://{sys.argv[2]}", rank=rank, world_size=2)
    torchs, words = dist.distributed_c10d, torch.zeros(3)
    where = 2, rank, [], dist.Backend("unisono"), dist.PrefixStore("apart", torchs._get_default_store())
    apart, _ = torchs._new_process_group_helper(*where, group_name="apart", timeout=timedelta(minutes=1))
    torchs._world.pg_group_ranks[apart] = {0: 0, 1: 1}
    if rank == 0:
        dist.send(words + 7, 1)
        work.last = dist.all_reduce(words, async_op=True)
        return
    time.sleep(0.2)
    dist.recv(words, 0)
    dist.all_reduce(words)
    for group in apart, None:
        try:
            dist.barrier(group)
        except dist.DistBackendError as error:
            os.write(1, f"{words.tolist()} {error.how.how.name}: {error.how.words}\\n".encode())
    raise ValueError("is told")

if sys.argv[3] == "used":
    import unisono
    unisono.init().close()
    dist.init_process_group("unisono", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
context = multiprocessing.get_context("fork")
ranks = [context.Process(target=work, args=(rank,)) for rank in range(2)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
"""


@pytest.mark.parametrize("parent", ["new", "used"])
@pytest.mark.parametrize("hosts", [1, 2])
def test_forked_process_finishes_its_calls(python: Python, tmp_path: Path, hosts: int, parent: str) -> None:
    """A child of multiprocessing does not run the `atexit` functions of its parent, which may have used the library.

    It leaves the world, and a group as ranks of several jobs make it.
    """
    out, errors = python("-c", FORKED, hosts - 1, tmp_path / "store", parent).communicate(timeout=60)
    assert out == "[7.0, 7.0, 7.0] ENDED: ended\n" * 2, errors
