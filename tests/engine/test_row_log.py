"""The log of rows: of made-up words, and as the kernel writes it."""

from __future__ import annotations

import ast
import struct
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from llvmlite.binding import ObjectFileRef

from unisono.engine.kernels import interpret, kernel, unit
from unisono.engine.kernels.compiled import compiled, object_file
from unisono.engine.logs.row_log import REUSE, LoggedRow, RowLog, row_log_bytes


def log(rows: list[tuple[int, int, int, int, int]], room: int) -> RowLog:
    memory = bytearray(row_log_bytes(room))
    for k, row in enumerate(rows):
        struct.pack_into("<5q", memory, row_log_bytes(k), *row)
    return RowLog(memoryview(memory))


def test_segments_are_counted_in_each_call_and_a_row_without_an_end_goes_on() -> None:
    found = log([(1, 7, REUSE, 10, 11), (1, 7, 0, 12, 15), (1, 8, 0, 16, 19), (2, 9, 3, 30, 19)], 8).read()
    assert found == [
        LoggedRow(1, 0, REUSE, 10, 11), LoggedRow(1, 0, 0, 12, 15), LoggedRow(1, 1, 0, 16, 19),
        LoggedRow(2, 0, 3, 30, 0),
    ]  # fmt: skip


def test_a_log_that_has_gone_round_leaves_out_the_call_that_it_has_in_part() -> None:
    found = log([(3, 9, 1, 40, 41), (1, 7, 1, 20, 21), (2, 8, 0, 30, 31), (3, 9, 0, 38, 39)], 4).read()
    assert [(row.number, row.row) for row in found] == [(2, 0), (3, 0), (3, 1)]


class WithoutLogging(ast.NodeTransformer):
    """The source of the kernel's loop without a word about the log of rows."""

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        if isinstance(node.test, ast.Name) and node.test.id == "_RECORDS":
            return []
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        self.generic_visit(node)
        node.values = [value for value in node.values if not (isinstance(value, ast.Name) and value.id == "_RECORDS")]
        return node if len(node.values) > 1 else node.values[0]


@pytest.mark.timeout(300)  # it compiles the kernel
def test_the_usual_kernel_has_no_trace_of_it() -> None:
    """Its machine code is the same as that of a source in which rows are not logged at all."""
    path = Path(interpret.__file__)
    (loop,) = (node for node in ast.parse(path.read_text()).body if getattr(node, "name", "") == "run")
    assert "_RECORDS" in ast.unparse(loop)
    loop = WithoutLogging().visit(loop)
    assert "_RECORDS" not in ast.unparse(loop)
    assert "row(" not in ast.unparse(loop)
    loop.decorator_list = []
    names: dict[str, Any] = {}
    exec(compile(ast.Module([loop], []), str(path), "exec"), vars(interpret).copy(), names)  # noqa: S102  own code
    plain = compiled(FunctionType(names["run"].__code__, vars(interpret)))
    kernel("interpret.run")  # it is on disk now, if it can be kept there: that saves compiling it here
    usual = unit("interpret.run")._read() or object_file("interpret.run", interpret.run)
    assert code(usual) == code(object_file("interpret.run", plain))


def code(object_file: bytes) -> dict[bytes, list[bytes]]:
    """The sections of an object file, without the names of symbols: these count what a process has compiled before."""
    found: dict[bytes, list[bytes]] = {}
    for section in ObjectFileRef.from_data(object_file).sections():
        name = section.name() or b""
        if section.size() and b"tab" not in name:
            found.setdefault(name, []).append(section.data())
    return found
