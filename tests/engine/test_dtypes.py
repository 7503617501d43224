"""Codes of dtypes: the same for all versions of torch, and unknown ones are refused before anything moves."""

import pytest
import torch

from tests.support.programs import run_python
from unisono.base.dtype_codes import DTYPE_CODES as CODES
from unisono.base.errors import DTypeError
from unisono.base.records import digest
from unisono.calls.arguments import check_tensor
from unisono.calls.codec import encode
from unisono.engine import tensors

KNOWN = 47
"""The dtypes of torch 2.15."""


@pytest.mark.quick
def test_codes_are_never_renumbered() -> None:
    assert list(CODES.values()) == list(range(len(CODES)))
    assert digest(*list(CODES)[:KNOWN]) == 7622376255782329591


@pytest.mark.quick
def test_every_dtype_of_torch_has_a_code() -> None:
    assert {value for value in vars(torch).values() if type(value) is torch.dtype} == set(tensors.DTYPE_CODES)


def test_codes_do_not_depend_on_torch() -> None:
    """Ranks may have versions of torch with other dtypes."""
    program = (
        "import torch; del torch.bits16; from unisono.engine.tensors import DTYPE_CODES as C; print(C[torch.int8])"
    )
    assert int(run_python("-c", program).stdout) == tensors.DTYPE_CODES[torch.int8]


@pytest.mark.quick
def test_unknown_dtype_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that is newer than unisono may have more dtypes."""
    monkeypatch.delitem(tensors.DTYPE_CODES, torch.float16)
    with pytest.raises(DTypeError, match=r"tensor: got dtype float16 of torch .*, which unisono does not support"):
        check_tensor("tensor", torch.ones(2, dtype=torch.float16))
    with pytest.raises(DTypeError, match="got dtype float16"):
        encode([torch.ones(2, dtype=torch.float16)])
