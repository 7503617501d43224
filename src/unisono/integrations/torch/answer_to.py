"""`answer_to("gloo")`: groups for CPU tensors that a program asks of Gloo are this library's.

`UNISONO_AS=gloo` in the environment does the same at the end of `import torch`. torch and programs make each group of
Gloo by its class, `torch.distributed.ProcessGroupGloo`. So another class takes its place there, and makes our groups
(`create_named`, loaded with the first group). torch's class stays in `torch._C`, where this library takes Gloo from.
"""

import logging
import os
import sys
from typing import Any

from torch import distributed

from ...base.errors import ArgumentError
from ...base.release import NAME
from .create_named import make_named

_LOG = logging.getLogger(NAME)
_SETTING = "UNISONO_AS"
_GLOO, _CLASS = "gloo", "ProcessGroupGloo"


def answer_to(name: str) -> None:
    """Use unisono for `torch.distributed` groups that ask for Gloo and have CPU tensors. Idempotent.

    Call it before the program imports `ProcessGroupGloo` or makes a process group. It sets UNISONO_AS=gloo, so
    processes that this one starts do the same. A program that is started with UNISONO_AS=gloo needs no call. If torch
    has no Gloo, it logs a warning.

    Args:
        name: "gloo".

    Raises:
        ArgumentError: The name is not "gloo", UNISONO_AS has another value, or a process group exists already.

    Example::

        unisono.answer_to("gloo")
        dist.init_process_group("gloo")  # unchanged, like the rest of the program
    """
    setting = os.environ.get(_SETTING, "")
    if name != _GLOO:
        raise ArgumentError(f"answer_to: got {name!r}, expected 'gloo', the only name that unisono can take")
    if setting not in ("", name):
        raise ArgumentError(
            f"answer_to({name!r}): the environment has {_SETTING}={setting}. Set it to {name}, or unset it."
        )
    if not _answers() and distributed.is_available() and distributed.is_initialized():
        raise ArgumentError(
            "answer_to: a process group exists already and keeps its backend. Call this before init_process_group, "
            f"or set {_SETTING}={name} in the environment."
        )
    if _take_the_name():
        os.environ[_SETTING] = name


def answer_by_environment() -> None:
    """Do what UNISONO_AS says. `import torch` calls this, so mistakes are warnings."""
    setting = os.environ[_SETTING]
    if setting == _GLOO:
        _take_the_name()
    else:
        _LOG.warning('%s=%s: this library can answer to the name "gloo" only, and Gloo stays Gloo', _SETTING, setting)


def _answers() -> bool:
    return isinstance(getattr(distributed, _CLASS, None), _Naming)


def _take_the_name() -> bool:
    """Put our class in the place of torch's. False, with a warning, if torch has none."""
    if _answers():
        return True
    if not distributed.is_available() or not distributed.is_gloo_available():
        _LOG.warning("%s=%s has no effect: this torch has no Gloo", _SETTING, _GLOO)
        return False
    c10d: Any = distributed.distributed_c10d
    genuine = c10d.ProcessGroupGloo
    doc = f"Makes {NAME}'s groups where torch or a program asks for Gloo's; `genuine` is torch's own class."
    ours = type.__new__(_Naming, _CLASS, (), {"genuine": genuine, "__doc__": doc, "__module__": genuine.__module__})
    for place in (distributed, c10d):
        setattr(place, _CLASS, ours)
    return True


class _Naming(type):
    """The metaclass of the class that takes the place of torch's."""

    genuine: Any

    def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> Any:
        """A program's class derived from Gloo's derives from torch's: its methods are written for torch's class."""
        genuine = tuple(base.genuine if isinstance(base, _Naming) else base for base in bases)
        return type(genuine[0])(name, genuine, members)

    def __call__(cls, *args: Any, **options: Any) -> Any:
        """Make our group in place of Gloo's, from the same arguments."""
        return make_named(sys._getframe(1), args, options)  # noqa: SLF001  the documented way to look at one's callers

    def __instancecheck__(cls, instance: object) -> bool:
        return issubclass(type(instance), cls)

    def __subclasscheck__(cls, other: type) -> bool:
        return other is cls or issubclass(other, cls.genuine) or getattr(other, "asked_as", "") == _GLOO

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.genuine, name)

    def __dir__(cls) -> list[str]:
        return dir(cls.genuine)
