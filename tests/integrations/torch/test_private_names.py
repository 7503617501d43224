"""The private names of torch that the sources use: all are in one list, and in the torch that is installed."""

import ast
import importlib
import re
from pathlib import Path

import pytest
import torch

import unisono
from unisono.integrations.torch.answer_to import FOR_GLOO, is_there

_C10D, _PYTHON, _DYNAMO = "torch._C._distributed_c10d", "torch.distributed.distributed_c10d", "torch._C._dynamo"
_GLOO, _OPTIONS = f"{_C10D}.ProcessGroupGloo", f"{_C10D}.ProcessGroupGloo._Options"
_ALL = "2.12 to 2.15"

PRIVATE_NAMES = FOR_GLOO | {
    f"{_C10D}.ProcessGroup._get_backend": _ALL,
    f"{_C10D}.ProcessGroup._get_backend_name": "2.13, 2.15",
    f"{_C10D}.ProcessGroup._get_sequence_number_for_group": "2.13",
    f"{_C10D}.ProcessGroup._set_default_backend": "2.13",
    f"{_C10D}.ProcessGroup._set_group_desc": _ALL,
    f"{_C10D}.ProcessGroup._set_group_name": _ALL,
    f"{_C10D}.ProcessGroup._device_types": _ALL,
    f"{_C10D}.Reducer._rebuild_buckets": _ALL,
    f"{_C10D}.Reducer._set_forward_pass_work_handle": _ALL,
    f"{_C10D}._allow_inflight_collective_as_graph_input": _ALL,
    f"{_C10D}._dump_fr_trace_json": "2.13",
    f"{_C10D}._get_comm_profiling_name": "2.13, 2.15",
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
    f"{_PYTHON}._get_split_source": "2.13, 2.15",
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
EARLIER_NAMES = {"torch.distributed._dist2._BACKENDS": "2.13"}
"""Names that later versions do not have."""

FOREIGN = re.compile(
    r"_(exit|asdict|getframe|current_frames|registry|shutdown|run_exitfuncs|getvalue|reprcompare|fixtureinfo|ZSt\w+)$"
)
"""Private names of others: Python's, pytest's, Numba's and C++'s."""
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
    listed = {part for name in (*PRIVATE_NAMES, *LATER_NAMES, *EARLIER_NAMES) for part in re.split(r"[.:]", name)}
    assert {name: where for name, where in private_words().items() if name not in listed} == {}


@pytest.mark.parametrize("name", PRIVATE_NAMES)
def test_this_torch_has_them(name: str) -> None:
    for module in ("torch._dynamo", "torch.distributed.fsdp._fully_shard"):
        importlib.import_module(module)
    assert is_there(name), f"seen in torch {PRIVATE_NAMES[name]}, not in {torch.__version__}"


def test_what_is_not_there_is_not_found() -> None:
    for name in PRIVATE_NAMES:
        assert not is_there(f"{name}_moved")
