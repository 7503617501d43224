"""Every exception that unisono raises; `base.errors` draws their tree. Errors carry records of calls and departures."""

from .base.errors import *  # noqa: F403  all are here, and only there is a list of them
from .base.records import CallRecord as CallRecord  # noqa: PLC0414  re-exported
from .base.records import Departure as Departure  # noqa: PLC0414
