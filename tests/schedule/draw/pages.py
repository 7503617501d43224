"""What tests of the player share."""

from typing import Any

from playwright.sync_api import Page

from unisono.schedule import Schedule
from unisono.schedule.algorithms import CATALOGUE

STILL = {"reduced_motion": "reduce"}


def table(name: str, p: int = 5) -> Schedule:
    """A table of the catalogue."""
    return CATALOGUE[name].schedule(p)


def at(tab: Page) -> Any:
    """Where the page is, in rounds."""
    return tab.evaluate("at")
