"""Stores are asked with a limit, and without torch's words; a thread that is left in torch ends no program badly."""

import math
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from torch.distributed import FileStore, HashStore, Store, TCPStore

from tests.ranks.rendezvous.conftest import Acting, meet
from tests.support.programs import run_python
from tests.support.waiting import until
from unisono.base.errors import PeerGone, WaitTimeout
from unisono.ranks.rendezvous.asked_store import AskedStore, Limited
from unisono.ranks.rendezvous.rendezvous_messages import end_of, store_silent


def test_silent_store_ends_the_wait_in_time() -> None:
    ended = threading.Event()
    with pytest.raises(WaitTimeout, match=r"has not answered for .* is stopped, or its host is cut off") as caught:
        meet(1, 2, Acting(HashStore(), lambda *_: ended.wait()), 1.0)
    assert caught.value.missing == (0,)
    ended.set()


def test_silent_store_of_rank_0_is_its_fault() -> None:
    assert end_of(store_silent("127.0.0.1:1234", 0, 5.0, 5.0), 0).missing == (0,)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "as another question ends"])
def test_torch_is_quiet_about_a_lost_store(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """Its backtraces would hide which rank has died."""
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)
    server = TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, 2, is_master=False, wait_for_workers=False)
    with closing(AskedStore(client, 1, time.monotonic() + 60)) as asked:
        assert not asked.check(["key"])
        del server
        for _ in range(2):
            with pytest.raises(PeerGone):
                asked.check(["key"])
    with closing(Limited()) as one, closing(Limited()) as other:

        def ask() -> None:
            if beside:
                other.call(int, math.inf)
            client.check(["key"])

        with pytest.raises(RuntimeError):
            one.call(ask, math.inf)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kind", ["libuv", "threads", "hash", "file"])
def test_waiting_rank_gets_a_value_when_set(kind: str, tmp_path: Path) -> None:
    if kind in ("libuv", "threads"):
        how = {"use_libuv": kind == "libuv", "wait_for_workers": False}
        server: TCPStore | FileStore | HashStore = TCPStore("127.0.0.1", 0, 2, is_master=True, **how)
        client: Store = TCPStore("127.0.0.1", server.port, 2, is_master=False, **how)
    elif kind == "file":
        server, client = (FileStore(f"{tmp_path}/store", 2) for _ in range(2))
    else:
        server = client = HashStore()
    with closing(AskedStore(client, 1, time.monotonic() + 60)) as asked, ThreadPoolExecutor(1) as pool:
        server.set("first", "word")  # it makes the file
        assert [asked.value("none", limit_s) for limit_s in (0.0, 0.01, -1.0)] == [None] * 3
        ask = partial(asked.value, "key", 50.0)
        later = pool.submit(ask) if asked.where else pool.submit(until, ask)  # a store that tells nobody is asked again
        server.set("other", "word")
        server.set("key", "word")
        assert later.result(20) == b"word"
        assert asked.value("other", 0.0) == b"word"


ASKS = """
import atexit, builtins, ctypes, sys, time
libc = ctypes.CDLL(None)
{before}
from datetime import timedelta
from torch.distributed import HashStore
from unisono.ranks.rendezvous.asked_store import Limited
store = HashStore()

class EndsLate:
    def __del__(self, set=store.set, sleep=time.sleep):
        set("key", "")
        sleep(0.5)

{ask}
try:
    Limited().call(ask, deadline=time.monotonic() + 0.05)
except TimeoutError as error:
    print(error)
    sys.exit(3)
"""
WAITS = "builtins.ends_late = EndsLate()\nask = lambda: store.wait(['key'], timedelta(seconds=100))"
LOCKS = """
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(b"/dev/zero", b"r"))
atexit.register(libc.fflush, file)
"""  # before the imports: this function runs last, and needs the lock of the file
ABORTS = "atexit.register(ctypes.CDLL('libstdc++.so.6')._ZSt9terminatev)"


@pytest.mark.cold
@pytest.mark.parametrize(
    ("before", "ask", "code"),
    [
        pytest.param("", WAITS, 3, id="it returns from torch while the interpreter shuts down"),
        pytest.param(LOCKS, "ask = lambda: libc.fscanf(file, b'%*200000000c')", 3, id="it holds a lock at the exit"),
        pytest.param(ABORTS, WAITS, -signal.SIGABRT, id="another library aborts at the exit"),
    ],
)
def test_thread_left_in_a_call_spoils_no_exit(before: str, ask: str, code: int) -> None:
    done = run_python("-c", ASKS.format(before=before, ask=ask), timeout=60)
    assert (done.returncode, done.stdout) == (code, "no answer\n" if code > 0 else done.stdout)
    assert code < 0 or done.stderr == ""
