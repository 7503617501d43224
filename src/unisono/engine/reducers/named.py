"""The kernels of the named ops, compiled on first use and kept on disk."""

from __future__ import annotations

from pathlib import Path

import torch

from ..machine_code import Unit
from ..once import once

_SOURCES = [Path(__file__).with_name(f"{name}.py") for name in ("conversion", "dtypes", "float8", "kernels")]


def named_address(dtype: str, op: str, last: bool) -> int:
    """The address of the kernel for this dtype and op, which must go together."""
    if op == "avg" and not last:
        op = "sum"
    return _address(dtype, op, last and op == "avg")


@once
def _address(dtype: str, op: str, divide: bool) -> int:
    name = f"combine.{dtype}.{op}"

    def compiled() -> bytes:
        from .kernels import object_file

        return object_file(name, dtype, op, divide=divide)

    # What too large numbers become in float8 depends on torch.
    return Unit(name, _SOURCES, compiled, torch.__version__).address()
