"""Process groups over several hosts: they train as on one, end, and are made again; torchrun starts two nodes."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.integrations.torch.test_data_parallel import model
from tests.integrations.torch.test_data_parallel import train as learn
from tests.support.programs import Python
from tests.support.torch_ranks import TorchRanks

pytestmark = pytest.mark.filterwarnings("default")  # torch's own


def train() -> tuple[list[float], list[float]]:
    """The losses of some steps on this rank's data, and what was learnt, which all ranks share to the last bit."""
    bare = model()
    losses = learn(nn.parallel.DistributedDataParallel(bare, bucket_cap_mb=0.002), 6)
    return losses, torch.cat([parameter.detach().flatten() for parameter in bare.parameters()]).tolist()


@pytest.mark.sampled(most=2)
@pytest.mark.parametrize("hosts", ["2x2", "3+1", "4x1", "2x2:round_robin"])
def test_training_over_hosts_equals_one_host(ranks: TorchRanks, hosts: str) -> None:
    apart, beside = ranks(4, hosts=hosts)(train), ranks(4)(train)
    assert all(learnt == apart[0][1] for _, learnt in apart)
    assert len({tuple(losses) for losses, _ in apart}) == 4
    for (losses, learnt), (others, wanted) in zip(apart, beside, strict=True):
        assert losses == pytest.approx(others, rel=1e-5)
        assert learnt == pytest.approx(wanted, rel=1e-4, abs=1e-6)


FORKED = """
import multiprocessing, os, sys, time
import torch, torch.distributed as dist

def work(rank):
    os.environ["UNISONO_HOST_ID"] = f"{rank * int(sys.argv[1])}"
    dist.init_process_group("unisono", f"file://{sys.argv[2]}", rank=rank, world_size=2)
    words = torch.zeros(3)
    if rank == 0:
        dist.send(words + 7, 1)
        work.last = dist.all_reduce(words, async_op=True)
        return
    time.sleep(0.2)
    dist.recv(words, 0)
    dist.all_reduce(words)
    try:
        dist.barrier()
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
    """A child of multiprocessing does not run the `atexit` functions of its parent, which may have used the library."""
    out, errors = python("-c", FORKED, hosts - 1, tmp_path / "store", parent).communicate(timeout=60)
    assert out == "[7.0, 7.0, 7.0] ENDED: ended\n", errors
