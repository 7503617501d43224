"""New groups of the survivors, after rank 0, whose process torch's store was in, has died."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_port
from tests.support.programs import Python, place

RANK = """
import json, os, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from unisono.integrations.torch import register

register()
dist.init_process_group("unisono", timeout=timedelta(seconds=60))
rank, local = dist.get_rank(), sys.argv[1] == "local"
tensor = torch.tensor([10.0**rank])
dist.all_reduce(tensor)
assert tensor.item() == 1111.0
if rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.barrier()
except dist.DistBackendError as error:
    seen = type(error).__name__
told = {"seen": seen}
for attempt in ("first", "second"):
    group = dist.new_group([1, 2, 3], use_local_synchronization=local)
    tensor = torch.tensor([10.0**rank])
    dist.all_reduce(tensor, group=group)
    told[attempt] = tensor.item()
    dist.destroy_process_group(group)
began = time.monotonic()
try:
    dist.new_group([0, rank], use_local_synchronization=local)
except dist.DistBackendError as error:
    told["with the dead"], told["words"] = type(error).__name__, str(error)
told["soon"] = time.monotonic() - began < 30
dist.destroy_process_group()
dist.init_process_group("unisono", rank=rank - 1, world_size=3, timeout=timedelta(seconds=60))
tensor = torch.tensor([10.0**rank])
dist.all_reduce(tensor)
told["again"] = tensor.item()
dist.destroy_process_group()
print(json.dumps(told), flush=True)
"""


def survivors(python: Python, tmp_path: Path, how: str, text: str = RANK) -> list[dict[str, Any]]:
    script, port = tmp_path / "rank.py", free_port()
    script.write_text(text)
    ranks = [python(script, how, **place(rank, 4, port)) for rank in range(4)]
    said = [rank.communicate(timeout=100) for rank in ranks]
    assert ranks[0].returncode == -signal.SIGKILL
    return [json.loads(out) if out else {"error": err} for out, err in said[1:]]


AT_THE_STORE = """
import torch.distributed as dist
for name, words in (("gloo", {"backend": "gloo"}), ("barrier", {})):
    if name == "barrier":
        os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
    try:
        dist.new_group([1, 2, 3], **words)
    except dist.DistNetworkError:
        told[name] = "DistNetworkError"
print(json.dumps(told), flush=True)
os._exit(0)
"""


def test_what_meets_at_the_store_is_torch_s_error_on_every_survivor(python: Python, tmp_path: Path) -> None:
    head, _, _ = RANK.partition("for attempt in")
    for told in survivors(python, tmp_path, "world", text=head + AT_THE_STORE):
        assert (told["gloo"], told["barrier"]) == ("DistNetworkError", "DistNetworkError"), told


@pytest.mark.parametrize("how", ["world", pytest.param("local", marks=pytest.mark.long)])
def test_the_survivors_of_rank_0_make_new_groups_without_its_store(python: Python, tmp_path: Path, how: str) -> None:
    for told in survivors(python, tmp_path, how):
        assert told.get("seen") in ("PeerGone", "PeerFailed"), told
        assert (told["first"], told["second"], told["again"], told["soon"]) == (1110.0, 1110.0, 1110.0, True)
        assert told["with the dead"] == "PeerGone"
        assert "rank 0 (world rank 0, pid " in told["words"]
        assert "in making the process group" in told["words"]
