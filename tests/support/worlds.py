"""The types of the fixtures that give tests their worlds."""

from collections.abc import Callable

import unisono

Worlds = Callable[[int], unisono.World]
OnHosts = Callable[[str], unisono.World]
