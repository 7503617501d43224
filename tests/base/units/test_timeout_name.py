"""`timeout=`, as torch's calls have it, is refused with the name that ours have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import unisono

pytestmark = pytest.mark.quick

CALLS: dict[str, Callable[..., Any]] = {
    "init": unisono.init,
    "join": unisono.join,
    "new_group": unisono.new_group,
    "split": unisono.split,
    "grow": unisono.grow,
    "shrink": unisono.Group.shrink,
    "run": unisono.run,
    "world": unisono.world,
    "World": unisono.World,
    "coalescing": unisono.coalescing,
    "all_gather_object": unisono.all_gather_object,
    "broadcast_object_list": unisono.broadcast_object_list,
    "gather_object": unisono.gather_object,
    "scatter_object_list": unisono.scatter_object_list,
    "send_object_list": unisono.send_object_list,
    "recv_object_list": unisono.recv_object_list,
}


@pytest.mark.parametrize("name", CALLS)
def test_the_name_of_torch_is_refused_with_ours(name: str) -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'timeout'. Did you mean 'timeout_s'\?"):
        CALLS[name](timeout=3.0)
