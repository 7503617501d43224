"""docs/calls.md: that it says what the code does, and that what fills it can tell right from wrong."""

from pathlib import Path

from benchmarks.reports import OURS
from benchmarks.supported_calls.__main__ import dtype_table, markdown, try_torch_like
from benchmarks.supported_calls.attempts import COMBINING, MOVING, OPS, SITUATIONS, TRIES, Try

import unisono
from unisono.calls.ops import check_op_dtype, premul_sum, resolve

DOCUMENT = Path(__file__).parents[2] / "docs" / "calls.md"


def takes(one: Try) -> bool:
    """What the code says: does this call take this dtype with this op?"""
    if one.call in MOVING:
        return True
    if one.op == "avg" and one.call in ("scan", "exscan"):
        return False
    made = {"custom": lambda: unisono.make_op(OPS["custom"]), "premul_sum": lambda: premul_sum(0.5)}
    try:
        check_op_dtype(made.get(one.op, lambda: resolve(one.op))(), one.dtype)
    except unisono.DTypeError:
        return False
    return True


def test_document_matches_the_code() -> None:
    says = {one: "right" if takes(one) else "raises" for one in TRIES if one.dtype}
    assert f"## {OURS}\n" + "\n".join(dtype_table(says)) + "\n\n## Gloo\n" in DOCUMENT.read_text()


def test_document_begins_as_generated() -> None:
    head = "\n".join(markdown({}, [], {})).partition("\n\n## ")[0].strip()
    assert "Made by `python -m benchmarks.supported_calls`" in head
    assert DOCUMENT.read_text().startswith(head + "\n")


def test_a_few_tries_of_ours() -> None:
    tries = [
        *(Try(call, dtype, "max") for call in COMBINING for dtype in ("int8", "float8_e5m2")),
        Try("exscan", "uint16", "product"),
        Try("all_reduce", "complex64", "max"),
        *(Try(call, "int4") for call in MOVING),
        *(Try(situation) for situation in SITUATIONS),
    ]
    found = dict(zip(tries, try_torch_like(OURS, tries), strict=True))
    disagreeing = list(SITUATIONS)[-5:]
    raising = {Try("all_reduce", "complex64", "max"), *map(Try, disagreeing)}
    assert found == {one: "raises" if one in raising else "right" for one in tries}
