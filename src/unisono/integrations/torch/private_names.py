"""The private names of torch that this library uses, each with the versions of torch in which it was seen.

A test compares the list with the installed torch and with our sources. `answer_to` checks its names when torch is
imported. If one is missing, Gloo stays Gloo entirely.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

_C10D, _PYTHON, _DYNAMO = "torch._C._distributed_c10d", "torch.distributed.distributed_c10d", "torch._C._dynamo"
_GLOO, _OPTIONS = f"{_C10D}.ProcessGroupGloo", f"{_C10D}.ProcessGroupGloo._Options"
_HELPER = f"{_PYTHON}._new_process_group_helper"
_ALL = "2.12 to 2.15"

PRIVATE_NAMES = {
    f"{_HELPER}:backend_config": _ALL,
    f"{_HELPER}:backend_options": "2.13",
    f"{_HELPER}:global_ranks_in_group": "2.13",
    f"{_HELPER}:group_name": "2.13",
    f"{_C10D}._DistributedBackendOptions": _ALL,
    f"{_PYTHON}._create_process_group_wrapper": _ALL,
    f"{_C10D}.ProcessGroup._register_backend": _ALL,
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
    f"{_PYTHON}._use_torchcomms_enabled": "2.13",
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
"""Name -> versions. A name behind a colon is a local variable of a function."""

LATER_NAMES = {
    f"{_PYTHON}.Backend._ensure_backend_registered": "2.14 to 2.15",
    f"{_PYTHON}._FR_SELF_RECORDING_BACKENDS": "2.15",
}
"""Names that earlier versions do not have."""

GLOO_KEY = "0/{}"
"""The key of the address of a rank in Gloo's group, by its number, in the group's store. Seen in torch 2.13."""

_FOR_GLOO = list(PRIVATE_NAMES)[:7]


def moved() -> str:
    """The first name that is missing of the names that `answer_to` needs; empty: all are there."""
    return next((f"{name}, which torch {PRIVATE_NAMES[name]} has" for name in _FOR_GLOO if not is_there(name)), "")


def is_there(name: str) -> bool:
    """Does this torch have this name? Imports nothing."""
    path, _, variable = name.partition(":")
    found: Any = None
    at: list[str] = []
    for part in path.split("."):
        at.append(part)
        found = getattr(found, part, None) if ".".join(at) not in sys.modules else sys.modules[".".join(at)]
    if variable:
        return found is not None and variable in inspect.unwrap(found).__code__.co_varnames
    return found is not None
