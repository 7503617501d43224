"""The API reference: every public name, in groups. A name that is in no group stops the build."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

import unisono
from unisono.base import errors

__all__ = ["GROUPS", "missing", "page"]

GROUPS: Mapping[str, str] = {
    "Groups and ranks": """init shutdown is_initialized get_rank get_world_size new_group split destroy_group
        get_process_group_ranks get_group_rank get_global_rank Group NonMember answer_to""",
    "Ranks of one's own": "run world World",
    "Collectives": """all_reduce reduce broadcast scatter gather all_gather all_gather_single all_gather_into_tensor
        reduce_scatter reduce_scatter_single reduce_scatter_tensor all_to_all all_to_all_single scan exscan barrier""",
    "Ops": "ReduceOp make_op premul_sum",
    "Asynchronous calls": "Work",
    "Shared memory": "empty share_",
    "Many tensors in one call": """all_reduce_coalesced broadcast_coalesced all_gather_coalesced
        reduce_scatter_coalesced coalescing Coalescing flatten_""",
    "Models": "broadcast_module broadcast_state_dict average_gradients average_parameters",
    "Compression between hosts": "Compression compress_hook",
    "After a failure": "retry grow join",
    "Messages": """send recv isend irecv sendrecv batch_isend_irecv P2POp send_object_list recv_object_list""",
    "Objects": "all_gather_object gather_object broadcast_object_list scatter_object_list",
    "What a program did": "tracing",
    "What errors carry": "CallRecord Departure",
    "Algorithms and tables": "algorithm Algorithm CATALOGUE Schedule trace prove",
}
"""Title -> the names of `unisono`, in the order in which they are shown."""

_MODULES: Mapping[str, str] = {
    "Gradients": "autograd",
    "Tables": "schedule",
    "Drawings": "draw",
    "Networks": "simulate",
    "Tests": "testing",
}
"""Title -> a module, as users name it, whose own functions are shown after the groups."""

_ELSEWHERE = frozenset({*errors.__all__, *_MODULES.values(), "Config", "algorithms", "p2p"})
"""Names with a page of their own, and modules."""

_PAGE = """# API reference

All names below are those of `unisono`, unless a heading names a module. [Errors](errors.md) and [settings](settings.md)
have pages of their own.

{groups}
"""


def missing() -> set[str]:
    """Public names that are in no group."""
    return set(unisono.__all__) - {name for names in GROUPS.values() for name in names.split()} - _ELSEWHERE


def page() -> str:
    """The page in MyST's Markdown. Raises ValueError if a public name is in no group."""
    if missing():
        raise ValueError(f"docs/_ext/api.py: put into a group: {', '.join(sorted(missing()))}")
    parts = [f"## {title}\n\n{_directives(unisono, 'unisono', names.split())}" for title, names in GROUPS.items()]
    for title, face in _MODULES.items():
        module = getattr(unisono, face) if face in unisono.__all__ else import_module(f"unisono.{face}")
        names = [name for name in module.__all__ if _is_shown(getattr(module, name))]
        parts.append(
            f"## {title}: unisono.{face}\n\n```{{eval-rst}}\n.. automodule:: {module.__name__}\n```\n\n"
            f"{_directives(module, f'unisono.{face}', names)}"
        )
    return _PAGE.format(groups="\n\n".join(parts))


def _directives(module: ModuleType, said: str, names: list[str]) -> str:
    rows = []
    for name in names:
        value = getattr(module, name)
        if isinstance(value, type):
            rows += [f".. autoclass:: {said}.{name}", "   :members:", ""]
        elif callable(value):
            rows += [f".. autofunction:: {said}.{name}", ""]
        else:
            rows += [f".. py:data:: {said}.{name}", f"   :type: {type(value).__name__}", ""]
    return "```{eval-rst}\n" + "\n".join(rows) + "```"


def _is_shown(value: object) -> bool:
    """Functions and classes of the library; what `unisono` itself has is shown above."""
    ours = inspect.isfunction(value) or (inspect.isclass(value) and value.__module__.startswith("unisono."))
    return ours and value not in [getattr(unisono, name) for name in unisono.__all__]
