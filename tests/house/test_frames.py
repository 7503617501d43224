"""`frames`, which tests ask where a thread is."""

from __future__ import annotations

import gc
import sys
import threading
from types import CodeType

import pytest

from tests.support.waiting import frames

pytestmark = pytest.mark.quick


def test_no_garbage_is_collected_while_frames_are_listed() -> None:
    seen: list[CodeType] = []
    before = gc.get_threshold()
    gc.collect()
    new = [{1}, {2}, {3}]
    gc.callbacks.append(lambda *_: seen.append(sys._getframe(1).f_code))
    try:
        gc.set_threshold(1)  # the next new object, such as a frame, begins a collection
        code = frames()[threading.get_ident()].f_code
    finally:
        gc.set_threshold(*before)
        del gc.callbacks[-1], new
    assert frames.__code__ not in seen
    assert code is frames.__code__
