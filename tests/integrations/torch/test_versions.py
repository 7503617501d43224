"""What later versions of torch ask of a backend. What a version does not have is tested as far as it goes there.

And the private names of torch that the sources use: all are in one list, and in the torch that is installed.
"""

from __future__ import annotations

import ast
import gc
import importlib
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import unisono
from tests.support.on_ranks import in_process_group
from tests.support.torch_ranks import TorchRanks
from unisono.integrations.torch.answer_to import FOR_GLOO, is_there
from unisono.integrations.torch.process_group import BACKEND_IN_PYTHON, UnisonoBackend

with_a_backend = pytest.mark.skipif(not BACKEND_IN_PYTHON, reason="a backend is written in Python from torch 2.14 on")


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("shape", [(2, 3), (), (0,)])
@in_process_group("size")
def test_gather_into_one_tensor(size: int, shape: tuple[int, ...]) -> None:
    me, size, root = dist.get_rank(), dist.get_world_size(), dist.get_world_size() - 1
    options = torch._C._distributed_c10d.GatherOptions()
    options.rootRank = root
    tensor = torch.rand(shape, generator=torch.Generator().manual_seed(me))
    expected = torch.stack([torch.rand(shape, generator=torch.Generator().manual_seed(r)) for r in range(size)])
    for async_op in (False, True):
        options.asyncOp = async_op
        for whole in (torch.zeros(size, *shape), torch.zeros(size * tensor.numel())):
            output = whole if me == root else torch.empty(0)
            assert dist.group.WORLD.gather_single(output, tensor, options).wait()
            if me == root:
                assert torch.equal(whole.view_as(expected), expected)
        if hasattr(dist, "gather_single"):
            whole = torch.zeros(size, *shape)
            work = dist.gather_single(tensor, whole if me == root else None, dst=root, async_op=async_op)
            assert not async_op or work.wait()
            if me == root:
                assert torch.equal(whole, expected)


@pytest.mark.parametrize("words", ["the same dtype and 6 elements", "contiguous"])
@pytest.mark.ranks(2, backend="unisono")
def test_a_tensor_that_cannot_take_what_is_gathered(words: str) -> None:
    output = torch.empty(3, 2).t() if words == "contiguous" else torch.empty(5)
    kind = unisono.MismatchError if dist.get_rank() else unisono.ArgumentError
    options = torch._C._distributed_c10d.GatherOptions()
    options.asyncOp = False
    with pytest.raises(kind, match=words):
        dist.group.WORLD.gather_single(output, torch.ones(3), options)
    dist.barrier()  # the group is as good as before


@pytest.mark.ranks(2, backend="unisono")
def test_any_backend_for_another_device() -> None:
    import_module("torch.testing._internal.distributed.fake_pg")  # registers "fake" where torch itself has not
    group = dist.new_group(backend="cpu:unisono,cuda:fake")
    assert "Fake" in type(group._get_backend(torch.device("cuda"))).__name__
    tensor = torch.tensor([1.0 + dist.get_rank()])
    dist.all_reduce(tensor, group=group)
    assert tensor.item() == 3.0
    with pytest.raises(unisono.ArgumentError, match=r"other: torch .* cannot make this backend beside unisono"):
        dist.new_group(backend="cpu:unisono,cuda:other")
    if not dist.is_nccl_available():
        with pytest.raises(unisono.ArgumentError, match=r"nccl: torch .* was built without NCCL"):
            dist.new_group(backend="cpu:unisono,cuda:nccl")


def test_messages_of_several_ranks_in_one_operator(ranks: TorchRanks) -> None:
    def work() -> None:
        gc.collect()  # torch alone holds the backend
        me, size = dist.get_rank(), dist.get_world_size()
        operators, name = import_module("torch.ops")._c10d_functional, dist.group.WORLD.group_name
        there, back = (me + 1) % size, (me - 1) % size
        tensors = [torch.full((3,), float(me)), torch.zeros(3)]
        outputs = operators.batch_p2p_ops(["isend", "irecv"], [there, back], [0, 0], tensors, name)
        for output in outputs:
            operators.wait_tensor(output)
        assert torch.equal(tensors[1], torch.full((3,), float(back)))

    for size in (1, 2, 3):
        ranks(size)(work)


def test_a_gather_into_a_tensor_that_is_there(ranks: TorchRanks) -> None:
    """inductor makes such calls of gathers that it joins; other groups have torch's own kernel."""

    def work() -> None:
        me, size = dist.get_rank(), dist.get_world_size()
        operators = import_module("torch.ops")._c10d_functional
        for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
            out = torch.zeros(2 * size)
            operators.wait_tensor(
                operators.all_gather_into_tensor_out(torch.full((2,), 1.0 + me), size, group.group_name, out=out)
            )
            assert out.tolist() == [1.0 + rank for rank in range(size) for _ in range(2)]

    for size in (1, 2, 3):
        ranks(size)(work)


@pytest.mark.ranks(2, backend="unisono")
def test_a_compiled_exchange() -> None:
    def exchange(mine: torch.Tensor, other: int) -> torch.Tensor:
        theirs = torch.zeros(3)
        ends = [dist.P2POp(dist.isend, 2 * mine, other), dist.P2POp(dist.irecv, theirs, other)]
        for work in dist.batch_isend_irecv(ends):
            work.wait()
        return 10 * theirs

    me = dist.get_rank()
    with import_module("torch._dynamo.config").patch(enable_p2p_compilation=True):
        compiled = torch.compile(exchange, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(torch.full((3,), 1.0 + me), 1 - me), torch.full((3,), 20.0 * (2 - me)))


@with_a_backend
@pytest.mark.ranks(2, backend="unisono")
def test_what_a_group_does_not_do_it_says() -> None:
    world: Any = dist.group.WORLD
    assert not dist.distributed_c10d._supports_reconfigure(world)
    assert not dist.distributed_c10d._supports_window(world)
    with pytest.raises(RuntimeError, match="Backend unisono does not support new_window"):
        world.new_window()


@with_a_backend
@pytest.mark.ranks(2, backend="unisono")
def test_a_backend_ends_with_its_group() -> None:
    def living() -> int:
        gc.collect()
        return sum(isinstance(thing, UnisonoBackend) for thing in gc.get_objects())

    before = living()
    group = dist.new_group([0, 1])
    assert living() == before + 1
    dist.destroy_process_group(group)
    del group
    assert living() == before


@pytest.mark.skipif(
    not hasattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS"), reason="torch 2.15 was the first to record calls"
)
@pytest.mark.ranks(2, backend="unisono")
def test_the_calls_of_another_backend_are_recorded() -> None:
    torch_c10d = dist.distributed_c10d
    recorders = torch_c10d._FR_SELF_RECORDING_BACKENDS
    recorders.discard("gloo")  # as NCCL, which keeps no record itself
    try:
        group = dist.new_group(backend="cpu:unisono,cuda:gloo")
    finally:
        recorders.add("gloo")
    assert group in torch_c10d._world.pg_flight_recorder_hooks
    tensor = torch.tensor([1.0 + dist.get_rank()])
    dist.all_reduce(tensor, group=group)
    assert tensor.item() == 3.0


_C10D, _PYTHON, _DYNAMO = "torch._C._distributed_c10d", "torch.distributed.distributed_c10d", "torch._C._dynamo"
_GLOO, _OPTIONS = f"{_C10D}.ProcessGroupGloo", f"{_C10D}.ProcessGroupGloo._Options"
_ALL = "2.12 to 2.15"

PRIVATE_NAMES = FOR_GLOO | {
    f"{_C10D}.ProcessGroup._get_backend": _ALL,
    f"{_C10D}.ProcessGroup._get_sequence_number_for_group": "2.13",
    f"{_C10D}.ProcessGroup._set_default_backend": "2.13",
    f"{_C10D}.ProcessGroup._set_group_desc": _ALL,
    f"{_C10D}.ProcessGroup._set_group_name": _ALL,
    f"{_C10D}.ProcessGroup._device_types": _ALL,
    f"{_C10D}.Reducer._rebuild_buckets": _ALL,
    f"{_C10D}.Reducer._set_forward_pass_work_handle": _ALL,
    f"{_C10D}._allow_inflight_collective_as_graph_input": _ALL,
    f"{_C10D}._dump_fr_trace_json": "2.13",
    f"{_C10D}._register_comm_hook": "2.13",
    f"{_C10D}._register_work": _ALL,
    f"{_C10D}._resolve_process_group": "2.13",
    f"{_GLOO}._allgather_base": _ALL,
    f"{_GLOO}._reduce_scatter_base": _ALL,
    f"{_GLOO}._set_sequence_number_for_group": _ALL,
    f"{_OPTIONS}._devices": _ALL,
    f"{_OPTIONS}._timeout": _ALL,
    f"{_PYTHON}.Backend._plugins": _ALL,
    f"{_PYTHON}._create_shrunk_process_group": _ALL,
    f"{_PYTHON}._get_default_group": _ALL,
    f"{_PYTHON}._get_process_group_uid": "2.11, 2.13",
    f"{_PYTHON}._world.pg_coalesce_state": _ALL,
    f"{_DYNAMO}.eval_frame._FrameAction": _ALL,
    f"{_DYNAMO}.eval_frame._FrameExecStrategy": _ALL,
    f"{_DYNAMO}.eval_frame.set_code_exec_strategy": _ALL,
    f"{_DYNAMO}.guards.TensorGuards": "2.13",
    "torch._C._autograd._enable_record_function": _ALL,
    "torch._C._autograd._profiler_enabled": _ALL,
    "torch._C._current_graph_task_id": _ALL,
    "torch._C._profiler._RecordFunctionFast": "2.13",
    "torch._C._increment_version": _ALL,
    "torch._debug_has_internal_overlap": _ALL,
    "torch.ops._c10d_functional.batch_p2p_ops.default._op_dk": "2.13",
    "torch.Tensor._base": _ALL,
    "torch.Tensor._is_view": _ALL,
    "torch.Tensor._use_count": _ALL,
    "torch.autograd.Variable._execution_engine": _ALL,
    "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup": _ALL,
    "torch.utils._python_dispatch.TorchDispatchMode": _ALL,
}
"""Name -> the versions of torch in which it was seen."""

LATER_NAMES = {
    f"{_PYTHON}.Backend._ensure_backend_registered": "2.14 to 2.15",
    f"{_PYTHON}._FR_SELF_RECORDING_BACKENDS": "2.15",
}
"""Names that earlier versions do not have."""

FOREIGN = re.compile(
    r"_(exit|asdict|getframe|current_frames|registry|shutdown|run_exitfuncs|getvalue|reprcompare|fixtureinfo|ZSt\w+"
    r"|internal_kv_\w+)$"
)
"""Private names of others: Python's, pytest's, Numba's, C++'s and Ray's."""
OWN = re.compile(r"def (_\w+)|self\.(_\w+)|^\s*(_\w+)\b.*=", re.MULTILINE)


def private_words() -> dict[str, str]:
    """Names with an underscore that the sources take from what is not theirs, and a file where they do."""
    texts = {path.name: path.read_text() for path in Path(unisono.__file__).parent.rglob("*.py")}
    own = {name for text in texts.values() for found in OWN.findall(text) for name in found}
    used = {}
    for name, text in texts.items():
        for node in ast.walk(ast.parse(text)) if "torch" in text else ():
            if isinstance(node, ast.Attribute):
                used[node.attr] = name
            elif isinstance(node, ast.ImportFrom) and f"{node.module}".startswith("torch"):
                used |= dict.fromkeys([*f"{node.module}".split("."), *(alias.name for alias in node.names)], name)
    return {
        word: where
        for word, where in used.items()
        if re.match(r"_[a-zA-Z]", word) and word not in own and not FOREIGN.match(word)
    }


def test_the_list_has_all_that_the_sources_use() -> None:
    listed = {part for name in (*PRIVATE_NAMES, *LATER_NAMES) for part in re.split(r"[.:]", name)}
    assert {name: where for name, where in private_words().items() if name not in listed} == {}


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_this_torch_has_them(name: str) -> None:
    for module in ("torch._dynamo", "torch.distributed.fsdp._fully_shard"):
        importlib.import_module(module)
    assert is_there(name), f"seen in torch {PRIVATE_NAMES[name]}, not in {torch.__version__}"


def test_what_is_not_there_is_not_found() -> None:
    for name in PRIVATE_NAMES:
        assert not is_there(f"{name}_moved")
