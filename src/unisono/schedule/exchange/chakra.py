"""Chakra execution traces, the input of ASTRA-sim: one trace for each rank. Out only.

Schema: `et_def.proto` of MLCommons Chakra. A trace is a GlobalMetadata, then a Node for each operation, each with its
length before it. Their few fields are written here as Protocol Buffers, so no package is needed.
"""

from math import ceil

from ..simulate import Hardware
from ..table import Schedule
from .operations import CALC, RECV, SEND, Operation, operations

_VERSION = "0.0.4"
_TYPES = {CALC: 4, SEND: 5, RECV: 6}  # COMP_NODE, COMM_SEND_NODE, COMM_RECV_NODE
_INT32, _INT64, _UINT64, _BOOL = 7, 9, 13, 27  # fields of AttributeProto


def write(schedule: Schedule, nbytes: int, hardware: Hardware) -> dict[str, bytes]:
    """The traces by the ends of their names: `.0.et`, `.1.et`, ..."""
    head = _framed(_text(1, _VERSION))
    return {
        f".{rank}.et": head + b"".join(_framed(_node(rank, number, op)) for number, op in enumerate(of_rank))
        for rank, of_rank in enumerate(operations(schedule, nbytes, hardware))
    }


def _node(rank: int, number: int, op: Operation) -> bytes:
    peers = (rank, op.peer) if op.kind == SEND else (op.peer, rank)
    facts = [("is_cpu_op", _BOOL, 0)]
    if op.kind == CALC:
        facts += [("num_ops", _INT64, max(1, op.nbytes // 4)), ("tensor_size", _UINT64, op.nbytes)]  # of float32
    else:
        facts += [("comm_size", _INT64, op.nbytes), ("comm_tag", _INT32, op.round)]
        facts += [(name, _INT32, peer) for name, peer in zip(("comm_src", "comm_dst"), peers, strict=True)]
    out = _number(1, number) + _text(2, f"{op.kind}_{number}_round_{op.round}") + _number(3, _TYPES[op.kind])
    if op.needs:
        out += _bytes(5, b"".join(map(_varint, op.needs)))  # data_deps
    if op.seconds:
        out += _number(7, ceil(op.seconds * 1e6))  # duration_micros
    return out + b"".join(_bytes(10, _text(1, name) + _number(field, value)) for name, field, value in facts)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _framed(value)


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _framed(value: bytes) -> bytes:
    return _varint(len(value)) + value
