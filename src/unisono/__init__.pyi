"""The public names for type checkers and editors, with what `async_op` and `return_exceptions` make of results.

A test holds it against the code.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

from torch import Tensor

from .base.config import Config
from .base.errors import (
    AlgorithmError,
    ArgumentError,
    DTypeError,
    InternalError,
    LeftOut,
    MessageMismatch,
    MismatchError,
    NestedCall,
    NotInitialized,
    OutOfMemory,
    PeerError,
    PeerFailed,
    PeerGone,
    PeerUnreachable,
    ProgramError,
    RankFailed,
    UnisonoError,
    UsageError,
    WaitTimeout,
)
from .base.records import CallRecord, Departure
from .calls.coalesced import flatten_
from .calls.groups import destroy_group, get_global_rank, get_group_rank, get_process_group_ranks, new_group, split
from .calls.models import average_gradients, average_parameters, broadcast_module
from .calls.objects import all_gather_object, broadcast_object_list, gather_object, scatter_object_list
from .calls.ops import OpLike, ReduceOp, make_op, premul_sum
from .calls.p2p import P2POp, batch_isend_irecv, irecv, isend, recv, recv_object_list, send, send_object_list, sendrecv
from .calls.tracing import tracing
from .calls.work import Work
from .integrations.torch.answer_to import answer_to
from .integrations.torch.watch import watch
from .ranks.group.current import NonMember, is_initialized
from .ranks.group.group import Group
from .ranks.group.initialize import get_rank, get_world_size, init, shutdown
from .ranks.group.shared_tensors import empty, share_
from .ranks.launch import World, world
from .schedule import Hosts
from .schedule.algorithms import algorithm
from .schedule.algorithms.catalogue import AlgorithmLike
from .tools import testing

__version__: str

_Members = Group | NonMember | None
_Tensors = Sequence[Tensor]
_Sizes = Sequence[int] | None
_Way = AlgorithmLike | None
_Result = TypeVar("_Result")

@overload
def run(fn: Callable[..., _Result], ranks: int | None = ..., args: Sequence[Any] = ..., kwargs: Mapping[str, Any] | None = ..., timeout_s: float | None = ..., *, hosts: Hosts | str | None = ..., prefix: bool = ..., return_exceptions: Literal[False] = ...) -> list[_Result]: ...
@overload
def run(fn: Callable[..., _Result], ranks: int | None = ..., args: Sequence[Any] = ..., kwargs: Mapping[str, Any] | None = ..., timeout_s: float | None = ..., *, hosts: Hosts | str | None = ..., prefix: bool = ..., return_exceptions: bool) -> list[_Result | RankFailed]: ...
@overload
def all_reduce(tensor: Tensor, op: OpLike = ..., group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> None: ...
@overload
def all_reduce(tensor: Tensor, op: OpLike = ..., group: _Members = ..., *, async_op: Literal[True], algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor]: ...
@overload
def all_reduce(tensor: Tensor, op: OpLike = ..., group: _Members = ..., async_op: bool = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor] | None: ...
@overload
def broadcast(tensor: Tensor, src: int, group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> None: ...
@overload
def broadcast(tensor: Tensor, src: int, group: _Members = ..., *, async_op: Literal[True], algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor]: ...
@overload
def broadcast(tensor: Tensor, src: int, group: _Members = ..., async_op: bool = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor] | None: ...
@overload
def reduce(tensor: Tensor, dst: int, op: OpLike = ..., group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> None: ...
@overload
def reduce(tensor: Tensor, dst: int, op: OpLike = ..., group: _Members = ..., *, async_op: Literal[True], algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor]: ...
@overload
def reduce(tensor: Tensor, dst: int, op: OpLike = ..., group: _Members = ..., async_op: bool = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor] | None: ...
@overload
def scan(tensor: Tensor, op: OpLike = ..., group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> None: ...
@overload
def scan(tensor: Tensor, op: OpLike = ..., group: _Members = ..., *, async_op: Literal[True], algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor]: ...
@overload
def scan(tensor: Tensor, op: OpLike = ..., group: _Members = ..., async_op: bool = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor] | None: ...
@overload
def exscan(tensor: Tensor, op: OpLike = ..., group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> None: ...
@overload
def exscan(tensor: Tensor, op: OpLike = ..., group: _Members = ..., *, async_op: Literal[True], algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor]: ...
@overload
def exscan(tensor: Tensor, op: OpLike = ..., group: _Members = ..., async_op: bool = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor] | None: ...
@overload
def barrier(group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> None: ...
@overload
def barrier(group: _Members = ..., *, async_op: Literal[True], algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor]: ...
@overload
def barrier(group: _Members = ..., async_op: bool = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor] | None: ...
@overload
def all_gather_single(output: Tensor, input: Tensor, group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> None: ...
@overload
def all_gather_single(output: Tensor, input: Tensor, group: _Members = ..., *, async_op: Literal[True], algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor]: ...
@overload
def all_gather_single(output: Tensor, input: Tensor, group: _Members = ..., async_op: bool = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor] | None: ...
@overload
def reduce_scatter_single(output: Tensor, input: Tensor, op: OpLike = ..., group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> None: ...
@overload
def reduce_scatter_single(output: Tensor, input: Tensor, op: OpLike = ..., group: _Members = ..., *, async_op: Literal[True], algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor]: ...
@overload
def reduce_scatter_single(output: Tensor, input: Tensor, op: OpLike = ..., group: _Members = ..., async_op: bool = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor] | None: ...
@overload
def all_to_all_single(output: Tensor, input: Tensor, output_split_sizes: _Sizes = ..., input_split_sizes: _Sizes = ..., group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> None: ...
@overload
def all_to_all_single(output: Tensor, input: Tensor, output_split_sizes: _Sizes = ..., input_split_sizes: _Sizes = ..., group: _Members = ..., *, async_op: Literal[True], algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor]: ...
@overload
def all_to_all_single(output: Tensor, input: Tensor, output_split_sizes: _Sizes = ..., input_split_sizes: _Sizes = ..., group: _Members = ..., async_op: bool = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor] | None: ...
@overload
def all_gather(tensor_list: _Tensors | Tensor, tensor: Tensor, group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> None: ...
@overload
def all_gather(tensor_list: None, tensor: Tensor, group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> list[Tensor]: ...
@overload
def all_gather(tensor_list: _Tensors | Tensor | None, tensor: Tensor, group: _Members = ..., *, async_op: Literal[True], algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[list[Tensor]]: ...
@overload
def all_gather(tensor_list: _Tensors | Tensor | None, tensor: Tensor, group: _Members = ..., async_op: bool = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[list[Tensor]] | list[Tensor] | None: ...
@overload
def all_to_all(output_tensor_list: _Tensors, input_tensor_list: _Tensors, group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> None: ...
@overload
def all_to_all(output_tensor_list: _Tensors, input_tensor_list: _Tensors, group: _Members = ..., *, async_op: Literal[True], algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[list[Tensor]]: ...
@overload
def all_to_all(output_tensor_list: _Tensors, input_tensor_list: _Tensors, group: _Members = ..., async_op: bool = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[list[Tensor]] | None: ...
@overload
def scatter(tensor: Tensor, scatter_list: _Tensors | None = ..., src: int = ..., group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> None: ...
@overload
def scatter(tensor: Tensor, scatter_list: _Tensors | None = ..., src: int = ..., group: _Members = ..., *, async_op: Literal[True], algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor]: ...
@overload
def scatter(tensor: Tensor, scatter_list: _Tensors | None = ..., src: int = ..., group: _Members = ..., async_op: bool = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor] | None: ...
@overload
def reduce_scatter(output: Tensor, input_list: _Tensors, op: OpLike = ..., group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> None: ...
@overload
def reduce_scatter(output: Tensor, input_list: _Tensors, op: OpLike = ..., group: _Members = ..., *, async_op: Literal[True], algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor]: ...
@overload
def reduce_scatter(output: Tensor, input_list: _Tensors, op: OpLike = ..., group: _Members = ..., async_op: bool = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[Tensor] | None: ...
@overload
def gather(tensor: Tensor, gather_list: _Tensors | None = ..., dst: int = ..., group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> None: ...
@overload
def gather(tensor: Tensor, gather_list: _Tensors | None = ..., dst: int = ..., group: _Members = ..., *, async_op: Literal[True], algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[list[Tensor] | None]: ...
@overload
def gather(tensor: Tensor, gather_list: _Tensors | None = ..., dst: int = ..., group: _Members = ..., async_op: bool = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[list[Tensor] | None] | None: ...
@overload
def all_reduce_coalesced(tensors: Iterable[Tensor], op: OpLike = ..., group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> None: ...
@overload
def all_reduce_coalesced(tensors: Iterable[Tensor], op: OpLike = ..., group: _Members = ..., *, async_op: Literal[True], algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[_Tensors]: ...
@overload
def all_reduce_coalesced(tensors: Iterable[Tensor], op: OpLike = ..., group: _Members = ..., async_op: bool = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[_Tensors] | None: ...
@overload
def broadcast_coalesced(tensors: Iterable[Tensor], src: int, group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> None: ...
@overload
def broadcast_coalesced(tensors: Iterable[Tensor], src: int, group: _Members = ..., *, async_op: Literal[True], algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[_Tensors]: ...
@overload
def broadcast_coalesced(tensors: Iterable[Tensor], src: int, group: _Members = ..., async_op: bool = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[_Tensors] | None: ...
@overload
def all_gather_coalesced(outputs: Iterable[Tensor], inputs: Iterable[Tensor], group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> None: ...
@overload
def all_gather_coalesced(outputs: Iterable[Tensor], inputs: Iterable[Tensor], group: _Members = ..., *, async_op: Literal[True], algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[_Tensors]: ...
@overload
def all_gather_coalesced(outputs: Iterable[Tensor], inputs: Iterable[Tensor], group: _Members = ..., async_op: bool = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[_Tensors] | None: ...
@overload
def reduce_scatter_coalesced(outputs: Iterable[Tensor], inputs: Iterable[Tensor], op: OpLike = ..., group: _Members = ..., async_op: Literal[False] = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> None: ...
@overload
def reduce_scatter_coalesced(outputs: Iterable[Tensor], inputs: Iterable[Tensor], op: OpLike = ..., group: _Members = ..., *, async_op: Literal[True], algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[_Tensors]: ...
@overload
def reduce_scatter_coalesced(outputs: Iterable[Tensor], inputs: Iterable[Tensor], op: OpLike = ..., group: _Members = ..., async_op: bool = ..., *, algorithm: _Way = ..., timeout_s: float | None = ...) -> Work[_Tensors] | None: ...

all_gather_into_tensor = all_gather_single
reduce_scatter_tensor = reduce_scatter_single

__all__ = [
    "AlgorithmError", "ArgumentError", "CallRecord", "Config", "DTypeError", "Departure", "Group", "InternalError",
    "LeftOut", "MessageMismatch", "MismatchError", "NestedCall", "NonMember", "NotInitialized", "OutOfMemory",
    "P2POp", "PeerError", "PeerFailed", "PeerGone", "PeerUnreachable", "ProgramError", "RankFailed", "ReduceOp",
    "UnisonoError", "UsageError", "WaitTimeout", "Work", "World", "algorithm", "all_gather", "all_gather_coalesced",
    "all_gather_into_tensor", "all_gather_object", "all_gather_single", "all_reduce", "all_reduce_coalesced",
    "all_to_all", "all_to_all_single", "answer_to", "average_gradients", "average_parameters", "barrier",
    "batch_isend_irecv", "broadcast", "broadcast_coalesced", "broadcast_module", "broadcast_object_list",
    "destroy_group", "empty", "exscan", "flatten_", "gather", "gather_object", "get_global_rank", "get_group_rank",
    "get_process_group_ranks", "get_rank", "get_world_size", "init", "irecv", "is_initialized", "isend", "make_op",
    "new_group", "premul_sum", "recv", "recv_object_list", "reduce", "reduce_scatter", "reduce_scatter_coalesced",
    "reduce_scatter_single", "reduce_scatter_tensor", "run", "scan", "scatter", "scatter_object_list", "send",
    "send_object_list", "sendrecv", "share_", "shutdown", "split", "testing", "tracing", "watch", "world",
]
