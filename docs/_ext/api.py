"""The API reference: every public name, on a page for each subject. A name that is on no page stops the build."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

import unisono
from unisono.base import errors

from .algorithms import COLLECTIVES

__all__ = ["SUBJECTS", "missing", "pages"]

SUBJECTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "collectives": (
        "Collectives",
        {
            "Calls": """all_reduce reduce broadcast scatter gather all_gather reduce_scatter all_to_all barrier scan
                exscan""",
            "With one tensor for all blocks": """all_gather_single all_gather_into_tensor reduce_scatter_single
                reduce_scatter_tensor all_to_all_single""",
            "Ops": "ReduceOp make_op premul_sum",
            "Asynchronous calls": "Work",
        },
    ),
    "messages": (
        "Messages and objects",
        {
            "Messages": "send recv isend irecv sendrecv batch_isend_irecv P2POp",
            "Objects": """send_object_list recv_object_list all_gather_object gather_object broadcast_object_list
                scatter_object_list""",
        },
    ),
    "groups": (
        "Ranks and groups",
        {
            "Start ranks": "run world World",
            "Under a launcher": "init shutdown is_initialized get_rank get_world_size answer_to watch",
            "Groups": """new_group split destroy_group get_process_group_ranks get_group_rank get_global_rank
                Group""",
        },
    ),
    "memory": (
        "Shared memory and many tensors",
        {
            "Shared memory": "empty share_",
            "Many tensors in one call": """all_reduce_coalesced broadcast_coalesced all_gather_coalesced
                reduce_scatter_coalesced flatten_""",
        },
    ),
    "models": (
        "Models",
        {
            "Parameters and gradients": "broadcast_module average_gradients average_parameters",
        },
    ),
    "records": ("Records", {"What a program did": "tracing"}),
    "tables": (
        "Algorithms and tables",
        {
            "Algorithms": "algorithm",
            "schedule": "",
            "schedule.algorithms": "",
            "schedule.draw": "",
            "schedule.exchange": "",
        },
    ),
    "networks": ("Networks", {"schedule.simulate": ""}),
    "tests": ("Tests", {"testing": ""}),
}
"""File -> the title of the page, and its sections: a title, and names of `unisono` in the order in which they are
shown. Without names the title is a module, as users name it, whose own functions are shown.
"""

_MEMBERS = {"Group": "hosts, empty, shrink, abort, close"}
"""Of these classes, which users do not make, the page has only what users call; the rest serves the calls."""

_ELSEWHERE = frozenset({*errors.__all__, "errors", "testing", "Config"})
"""Names with a page of their own, and modules."""

_INDEX = """# API reference

[Errors](../errors.md) and [settings](../settings.md) have pages of their own.

| subject | names |
| --- | --- |
{rows}

```{{toctree}}
:hidden:

{files}
```
"""


def missing() -> set[str]:
    """Public names that are on no page."""
    shown = {name for _, sections in SUBJECTS.values() for names in sections.values() for name in names.split()}
    return set(unisono.__all__) - shown - _ELSEWHERE


def pages() -> dict[str, str]:
    """The pages in MyST's Markdown, by their paths. Raises ValueError if a public name is on none."""
    if missing():
        raise ValueError(f"docs/_ext/api.py: put on a page: {', '.join(sorted(missing()))}")
    rows, files = [], {}
    for file, (title, sections) in SUBJECTS.items():
        parts = [_section(title, names) for title, names in sections.items()]
        files[f"api/{file}.md"] = "\n\n".join([f"# {title}", *parts, ""])
        names = [name for names in sections.values() for name in names.split()]
        links = [f"[{name}](#unisono.{name})" for name in names]
        links += [f"[unisono.{section}]({file}.md)" for section, of_it in sections.items() if not of_it]
        rows.append(f"| [{title}]({file}.md) | {', '.join(links)} |")
    files["api/index.md"] = _INDEX.format(rows="\n".join(rows), files="\n".join(SUBJECTS))
    return files


def _section(title: str, names: str) -> str:
    if names:
        return f"## {title}\n\n{_directives(unisono, 'unisono', names.split())}"
    module = getattr(unisono, title) if title in unisono.__all__ else import_module(f"unisono.{title}")
    own = [name for name in module.__all__ if _is_shown(getattr(module, name))]
    return (
        f"## unisono.{title}\n\n```{{eval-rst}}\n.. automodule:: {module.__name__}\n```\n\n"
        f"{_directives(module, f'unisono.{title}', own)}"
    )


def _directives(module: ModuleType, said: str, names: list[str]) -> str:
    rows = []
    for name in names:
        value = getattr(module, name)
        if isinstance(value, type):
            shown = _MEMBERS.get(name)
            rows += [f".. autoclass:: {said}.{name}{'()' * bool(shown)}", f"   :members: {shown or ''}".rstrip()]
            rows += [f"   :exclude-members: {', '.join(getattr(value, '_fields', ()))}".rstrip(), ""]
        elif callable(value):
            rows += [f".. autofunction:: {said}.{name}", ""]
            if said == "unisono" and name in COLLECTIVES:
                rows += [
                    f"   .. image:: ../algorithms/drawings/{name}.svg",
                    f"      :alt: {name}, before and after",
                    "",
                ]
        else:
            rows += [f".. py:data:: {said}.{name}", f"   :type: {type(value).__name__}", ""]
    return "```{eval-rst}\n" + "\n".join(rows) + "```"


def _is_shown(value: object) -> bool:
    """Functions and classes of the library; what `unisono` itself has is shown above."""
    ours = inspect.isfunction(value) or (inspect.isclass(value) and value.__module__.startswith("unisono."))
    return ours and value not in [getattr(unisono, name) for name in unisono.__all__]
