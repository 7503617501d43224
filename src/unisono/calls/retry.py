"""`retry`: a step of a program that all survivors repeat if a rank fails in it."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from ..base.errors import DTypeError, LeftOut, PeerError, PeerFailed, PeerGone
from ..engine.tensors import as_bits, copy_of
from ..ranks.group.group import Group
from ..ranks.group.initialize import group_or_default
from ..ranks.group.survivors import SHRINK
from .collectives.barrier import barrier

Result = TypeVar("Result")


@runtime_checkable
class SupportsState(Protocol):
    """An object with a state to save and restore: modules, optimizers, schedulers, samplers, scalers."""

    def state_dict(self) -> dict[str, Any]:
        """The state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Go back to this state."""


def retry(
    step: Callable[[], Result],
    state: Iterable[torch.Tensor | SupportsState] = (),
    *,
    shrink: Callable[[PeerError], object] | None = None,
) -> Result:
    """Call `step()`; if a rank fails meanwhile, shrink the default group, and the survivors call it again.

    All ranks of the default group call this with the same step. The step ends on all of them or on none: a barrier
    follows it. If the barrier fails, the step counts if all survivors had come to it; otherwise it is repeated.

    state: all that the step changes: tensors, modules, optimizers, and other objects with `state_dict` and
    `load_state_dict`. It is copied before the step, and restored before it is repeated, as is the state of torch's
    random numbers. A step that changes nothing else gives, after a failure, the same bits as one that the survivors
    make by themselves. Gradients are no state: let the step begin with `zero_grad`.

    shrink: makes the smaller group in another way, such as `lambda error: dist.shrink_group(list(error.failed))`, and
    renews all that depends on the group, such as a wrapped model.

    Returns what the step returns. Raises what it raises, but no PeerError because of a rank that has failed.
    """
    kept = list(state)
    saved = [(item, _copy(item)) for item in kept]
    random = torch.get_rng_state()
    while True:
        group, number = group_or_default(None), None
        try:
            result = step()
            group.finish()
            number = group.host.call_number
            barrier(group)
        except LeftOut:
            raise
        except PeerError as error:
            survivors = _shrink(group, shrink, error)
            # Their calls have ended, so this is the value from when the barrier failed.
            if number is not None and all(group.host.entered(rank) >= number for rank in survivors):
                return result
        else:
            return result
        for item, then in saved:
            _restore(item, then)
        torch.set_rng_state(random)


def _shrink(group: Group, shrink: Callable[[PeerError], object] | None, error: PeerError) -> list[int]:
    """Make the smaller group; return the survivors, as ranks of the group."""
    while True:
        try:
            if shrink is not None:
                shrink(error)
            smaller = group.shrink()
            break
        except PeerGone as more:  # more ranks have failed than the ranks to leave out
            error = more
        except PeerFailed as interrupted:
            if interrupted.call != SHRINK:
                raise
            # Ctrl-C, say, has ended the rank's call: the next call waits until it comes back, or has ended.
    return [rank for rank, there in enumerate(group.world_ranks) if there in smaller.world_ranks]


def _copy(item: torch.Tensor | SupportsState) -> Any:
    if isinstance(item, torch.Tensor):
        return copy_of(item)
    if isinstance(item, SupportsState):
        return deepcopy(item.state_dict())
    raise DTypeError(f"state: expected tensors, modules, optimizers and the like, got {type(item).__name__}")


def _restore(item: Any, then: Any) -> None:
    if isinstance(item, torch.Tensor):
        with torch.no_grad():
            as_bits(item).copy_(as_bits(then))
    else:
        item.load_state_dict(deepcopy(then))
