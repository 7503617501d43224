"""The methods of torch's groups that make collectives: what each calls, where its tensor is, and its earlier name."""

from typing import NamedTuple


class Form(NamedTuple):
    """What a method of torch's class calls.

    collective: its name in this library.
    at: the index of the argument whose tensor says how long the call is; -1: ranks may have different lengths.
    op, root: is there an op, or a root, in the options?
    alike: must this tensor have one length on all ranks?
    earlier: the name that the method had. Torch has its kind by this name, and may look the method up by it.
    """

    collective: str
    at: int
    op: bool = False
    root: bool = False
    alike: bool = True
    earlier: str = ""


FORMS = {
    "allreduce": Form("all_reduce", 0, op=True),
    "allreduce_coalesced": Form("all_reduce_coalesced", 0, op=True),
    "broadcast": Form("broadcast", 0, root=True),
    "reduce": Form("reduce", 0, op=True, root=True),
    "allgather": Form("all_gather", 1, alike=False),
    "allgather_coalesced": Form("all_gather_coalesced", 1, alike=False),
    "all_gather_single": Form("all_gather", 1, earlier="_allgather_base"),
    "all_gather_single_coalesced": Form("all_gather_coalesced", 1, earlier="allgather_into_tensor_coalesced"),
    "gather": Form("gather", 1, root=True),
    "gather_single": Form("gather", 1, root=True, earlier="gather_into_tensor"),
    "scatter": Form("scatter", 0, root=True),
    "reduce_scatter": Form("reduce_scatter", 0, op=True, alike=False),
    "reduce_scatter_single": Form("reduce_scatter", 0, op=True, earlier="_reduce_scatter_base"),
    "reduce_scatter_single_coalesced": Form(
        "reduce_scatter_coalesced", 0, op=True, earlier="reduce_scatter_tensor_coalesced"
    ),
    "alltoall": Form("all_to_all", 0, alike=False),
    "all_to_all_single": Form("all_to_all", 0, alike=False, earlier="alltoall_base"),
    "barrier": Form("barrier", -1),
}
"""Method of `ProcessGroup` -> the collective. A version of torch may lack one."""

MESSAGES = "send", "recv", "recv_anysource"
"""The methods of messages between two ranks."""
