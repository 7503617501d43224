"""Python processes that start with torch loaded: they are forked from one that has imported it, the warm process.

To import torch takes 1.6 s of a processor, its compiler, which optimizers import, 1.2 s more, and tests start hundreds
of processes. `install` replaces `subprocess.Popen` in this process, and so in those that it starts, which each leave
behind a process to start theirs from. A command that is not this Python, or asks for what the warm process cannot give
(options of the interpreter, another PYTHONPATH, another user), is started as always.

A request is a message of JSON with the descriptors -> the pid. The new process is forked twice, while this one takes in
orphans: so this one becomes its parent.
"""

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import weakref
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

_SET_PDEATHSIG, _SET_SUBREAPER, _COLLAPSE = 1, 36, 25
_LIBC, _PAIR = ctypes.CDLL(None), (socket.AF_UNIX, socket.SOCK_SEQPACKET)
_FIRST = 1000  # where descriptors wait until those of the warm process are closed
_LOADED = ("LD_", "MALLOC_", "NUMBA_", "OMP_", "PYTHON", "UNISONO_AS", "UNISONO_WATCH")
"""How names of variables begin that are read when a process starts, or imports torch."""
_THREADS = "OMP_NUM_THREADS"  # this one can be obeyed later
_NEEDED = (
    *("torch._dynamo", "torch._functorch.aot_autograd", "torch.distributed.checkpoint"),  # DDP and optimizers, too
    *("unisono.calls.dispatch.over_hosts.relay", "unisono.hosts.carriers.ucx"),
    *("unisono.hosts.far", "unisono.hosts.sentinel.start", "unisono.engine.reducers.custom_kernels", "pytest"),
)
"""What ranks import when they need it."""
_USUAL = None, None, False, True, [None, None, None, -1], [-1]
"""What is asked of a process that can come from the warm one, among the arguments of `Popen._execute_child`."""
_Popen = subprocess.Popen
_lock = threading.Lock()
_link: socket.socket
_owner = 0
os.environ["MALLOC_TRIM_THRESHOLD_"] = str(2**20)  # else glibc keeps what a rank has freed: 0.9 GB of all algorithms
_environ = dict(os.environ)

cold = False  # processes start as always: while a test runs that says so


class Popen(_Popen):  # type: ignore[type-arg]
    """`subprocess.Popen`, by the warm process where that is possible."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *rest: Any) -> None:
        close_fds, pass_fds, cwd, env, _, _, shell, *pipes = rest[:13]
        _, *owner, new_session = rest[13:19]  # what follows is the process group
        environ = dict(os.environ if env is None else env)
        words = [] if isinstance(args, str | bytes | os.PathLike) else [os.fspath(word) for word in args]
        asked = executable, preexec_fn, shell, close_fds, owner, [*rest[19:]]
        is_known = words[:1] == [sys.executable] and _known(words[1:]) and _counts(environ) == _counts(_environ)
        if not is_known or asked != _USUAL or cold or os.getpid() != _owner:
            super()._execute_child(args, executable, preexec_fn, *rest)  # type: ignore[misc]
            return
        read, _, _, write, _, error = pipes
        fds = [mine if given == -1 else given for mine, given in ((0, read), (1, write), (2, error))]
        request = {
            "words": words[1:],
            "environ": environ,
            "folder": os.path.abspath(cwd or "."),
            "keep": list(pass_fds),
            "processors": list(os.sched_getaffinity(0)),
            "group": None if new_session else os.getpgrp(),
        }
        try:
            self.pid = _ask(request, [*fds, *pass_fds])
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self._child_created = True


def _known(words: list[str]) -> bool:
    """Are these a program with -c or -m, or a file, behind -u (as torchrun's workers) or not?"""
    words = words[words[:1] == ["-u"] :]
    return bool(words) and (words[0] in ("-c", "-m") or not words[0].startswith("-"))


def _counts(environ: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_LOADED) and name != _THREADS}


def _ask(request: dict[str, Any], fds: list[int]) -> int:
    """Have a process started that is a child of this one; its pid."""
    with _lock, TemporaryFile("w+") as file:
        json.dump(request, file)
        file.seek(0)
        _LIBC.prctl(_SET_SUBREAPER, 1)
        try:
            socket.send_fds(_link, [b"start"], [file.fileno(), *fds])
            pid = int(_link.recv(32))
            _link.recv(32)  # the process between has ended
        finally:
            _LIBC.prctl(_SET_SUBREAPER, 0)
    return pid


def install() -> None:
    """Start the warm process, and let it start all later ones."""
    mine, theirs = socket.socketpair(*_PAIR)
    command = [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid())]
    with theirs:
        warm = _Popen(command, pass_fds=[theirs.fileno()], cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL)
    warm.returncode = 0  # nobody waits for it: it ends with this process
    _use(mine)


def _use(link: socket.socket) -> None:
    """Let the process at the other end start processes for this one."""
    global _link, _owner
    _link, _owner = link, os.getpid()
    atexit.register(link.close)  # else Python may complain at its end, where pytest has frozen what it keeps
    subprocess.Popen = Popen  # type: ignore[misc]


def main(fd: int, parent: int) -> list[str]:
    """Be the warm process. Returns in each new one, with its words."""
    _LIBC.prctl(_SET_PDEATHSIG, signal.SIGKILL)
    subprocess.Popen = Popen  # type: ignore[misc]  # before torchrun's modules take it by its name
    import unisono

    for name in unisono.__all__:
        getattr(unisono, name)
    for name in _NEEDED:
        importlib.import_module(name)
    _load_machine_code()
    numba = importlib.import_module("numba")
    numba.njit(lambda x: x).compile((numba.float32,))  # loads, for 0.5 s, what ops of functions are compiled with
    for one in [*weakref.finalize._registry]:  # type: ignore[attr-defined]  # torch unregisters operators for 60 ms
        one.atexit = False
    atexit.unregister(sys.modules["torch._dynamo.utils"].dump_compile_times)
    gc.collect()
    gc.freeze()
    _take_huge_pages()
    return _serve(socket.socket(fileno=fd), parent)


def _load_machine_code() -> None:
    """Load what all ranks need. What is not on disk yet, another process compiles while tests are collected."""
    from unisono.engine.rank import interpreter, warm_up

    compiling = os.fork()
    if compiling == 0:
        _LIBC.prctl(_SET_PDEATHSIG, signal.SIGKILL)
        warm_up()
        os._exit(0)
    if select.select([os.pidfd_open(compiling)], [], [], 1.0)[0]:
        warm_up()
        interpreter()


def _take_huge_pages() -> None:
    """Move what this process has into pages of 2 MiB, which makes a fork cost a third. Older kernels refuse it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, inode, *_ = line.split()
        if inode == "0" and "w" in rights:
            first, end = (int(address, 16) for address in addresses.split("-"))
            first, end = -(-first >> 21) << 21, end >> 21 << 21
            if first < end:
                _LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _COLLAPSE)


def _serve(link: socket.socket, parent: int) -> list[str]:
    """Start processes until the parent ends. Returns in each of them, with its words."""
    while True:
        _, fds, _, _ = socket.recv_fds(link, 32, 64)
        if not fds:
            os._exit(0)
        between = os.fork()
        if between == 0:
            between, (read, write) = os.getpid(), os.pipe()
            pid = os.fork()
            if pid:
                os.close(write)
                os.read(read, 1)  # `_become` closes the pipe, or the end of the process does
                link.send(str(pid).encode())
                os._exit(0)
            link.detach()
            words = _become(*fds)
            while (now := os.getppid()) != parent:
                if now != between:
                    os._exit(0)  # the parent has ended
                time.sleep(0.0005)
            return _next_serves() or words
        os.waitpid(between, 0)
        link.send(b"over")
        for one in fds:
            os.close(one)


def _next_serves() -> list[str]:
    """Leave behind a process that starts those of this one. Returns in each of these, with its words."""
    parent, (mine, theirs) = os.getpid(), socket.socketpair(*_PAIR)
    if os.fork():
        theirs.close()
        _use(mine)
        return []
    _LIBC.prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    link = socket.socket(fileno=fcntl.fcntl(theirs.detach(), fcntl.F_DUPFD, _FIRST))
    mine.detach()  # else each new process closes another file of this number
    os.closerange(0, _FIRST)  # nobody waits for this process to close them
    for _ in range(3):
        os.open(os.devnull, os.O_RDWR)
    return _serve(link, parent)


def _become(file: int, *fds: int) -> list[str]:
    """Take over what belongs to a process. Returns its words."""
    with open(file, "rb") as request_file:
        request = json.load(request_file)
    if request["group"] is None:
        os.setsid()
    else:
        with suppress(PermissionError):  # it is of another session
            os.setpgid(0, request["group"])
    waiting = [fcntl.fcntl(fd, fcntl.F_DUPFD, _FIRST) for fd in fds]
    os.closerange(0, _FIRST)  # the pipe, too: the parent, which may ask for the process's group, gets the pid now
    for fd, number in zip(waiting, [0, 1, 2, *request["keep"]], strict=True):
        os.dup2(fd, number)
        os.close(fd)
    os.sched_setaffinity(0, request["processors"])
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["folder"])
    if threads := os.environ.get(_THREADS):
        sys.modules["torch"].set_num_threads(int(threads))
    random.seed()
    words: list[str] = request["words"]
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    if words[0] == "-u":
        del words[0]
        sys.stdout = io.TextIOWrapper(open(1, "wb", 0, closefd=False), write_through=True)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    return words


def run(words: list[str]) -> None:
    what, *rest = words
    sys.argv = [what, *rest] if what not in ("-c", "-m") else [what, *rest[1:]]
    sys.path[0] = {"-c": "", "-m": os.getcwd()}.get(what, str(Path(what).resolve().parent))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if what == "-m":
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    elif what == "-c":
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)  # noqa: S102
    else:
        main.__file__ = what
        exec(compile(Path(what).read_bytes(), what, "exec"), main.__dict__)  # noqa: S102


if __name__ == "__main__":
    sys.modules[__spec__.name] = sys.modules["__main__"]  # in processes of pytest, which set `cold`
    new = main(int(sys.argv[1]), int(sys.argv[2]))
    from unisono.ranks.launch.fork_server import end_process

    code: Any = 0
    try:
        run(new)
    except SystemExit as ended:
        code = ended.code or 0
    except KeyboardInterrupt:  # Python forgets its way to end then where torch's compiler is loaded
        sys.excepthook(*sys.exc_info())
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    if not isinstance(code, int):
        sys.exit(code)  # Python prints it
    end_process(code & 0xFF)
