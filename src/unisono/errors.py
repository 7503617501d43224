"""Every error that unisono raises; those that programs often catch are also names of `unisono`."""

from .base.errors import *  # noqa: F403  all of them
from .base.records import CallRecord as CallRecord  # noqa: PLC0414  users find it here
from .base.records import Departure as Departure  # noqa: PLC0414
