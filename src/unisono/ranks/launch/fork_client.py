"""The parent's side of its fork server, which starts at first use, one per process. See `fork_server`."""

import atexit
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from ...base.errors import InternalError
from ...base.fd_channel import ANY_LENGTH, Channel

_BOOT_S = 300.0
"""How long the fork server may import torch and compile kernels: seconds, and minutes on a cold network disk."""
_TAKES_S = 30.0  # how long it may take a message: it takes one within microseconds, unless it was stopped
_LEAVE_S = 5.0  # a fork server leaves as soon as its parent's socket ends; one that does not is killed
_ALSO = ("pytest",)  # what ranks need, too, if it is loaded here when the fork server starts

_BOOT = (
    "import sys; fd, parent, also, *path = sys.argv[1:]; sys.path[:] = path; "
    f"from {__package__}.fork_server import main; main(int(fd), int(parent), also.split())"
)


class _ForkClient:
    def __init__(self) -> None:
        self._channel, theirs = Channel.pair()
        with theirs:
            fd, also = theirs.fileno(), " ".join(name for name in _ALSO if name in sys.modules)
            # A session of its own: Ctrl-C reaches the parent only, which then stops the ranks in order.
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(fd), str(os.getpid()), also, *sys.path],
                pass_fds=[fd],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            self._boot()
        except BaseException:
            self._process.kill()  # it does not listen yet, and has forked nothing
            self.stop()
            raise

    def _boot(self) -> None:
        who = f"the process that ranks are forked from ({sys.executable})"
        try:
            state, details = self._channel.receive(time.monotonic() + _BOOT_S).value
        except EOFError as error:
            code = self._process.wait()
            raise InternalError(f"{who} ended with code {code}. Standard error has its output.") from error
        except TimeoutError as error:
            raise InternalError(f"{who} did not start within {_BOOT_S:g} s") from error
        if state == "failed":
            raise InternalError(f"{who} could not start:\n{details}")

    def fork(self, ends: Sequence[int]) -> None:
        """Fork a rank. ends: descriptors, the other ends of what `fork_rank` returns."""
        self._channel.send(None, fds=ends, deadline=time.monotonic() + _TAKES_S)

    def stop(self) -> None:
        self._channel.hang_up()
        try:
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """In a forked child of this process: leave the fork server to the parent."""
        self._channel.close()
        self._process.returncode = 0


_lock = threading.Lock()
_client: _ForkClient | None = None


def fork_rank() -> tuple[Channel, Channel]:
    """A new rank: the connection to it, and the line on which the fork server tells of it. Starts the server if none
    runs.
    """
    global _client  # noqa: PLW0603  each process has one
    (channel, ranks_end), (line, servers_end) = Channel.pair(ANY_LENGTH), Channel.pair()
    with ranks_end, servers_end, _lock:
        ends = ranks_end.fileno(), servers_end.fileno()
        if _client is not None:
            try:
                _client.fork(ends)
            except ConnectionError:  # it was killed
                stop()
            else:
                return channel, line
        _client = _ForkClient()
        _client.fork(ends)
    return channel, line


def stop() -> None:
    """End the fork server, and all ranks with it. The next rank starts another one."""
    global _client
    client, _client = _client, None
    if client is not None:
        client.stop()


def _forget() -> None:
    global _lock, _client  # noqa: PLW0603  see fork_rank
    _lock = threading.Lock()
    if _client is not None:
        _client.forget()
        _client = None


atexit.register(stop)
os.register_at_fork(after_in_child=_forget)
