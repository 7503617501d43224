"""The types of the fixtures that give tests their worlds."""

from __future__ import annotations

from collections.abc import Callable

import unisono

Worlds = Callable[[int], unisono.World]
OnHosts = Callable[[str], unisono.World]
NewWorld = Callable[..., unisono.World]
