"""Files of an installation that are made once and kept: machine code, and the programs of large groups.

A file is `name.sources.code`: of this name, made from sources with this checksum.
"""

import fcntl
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from ..base.linux import lock
from ..base.python import tell

_DIGEST_BYTES = 16
_OWN_FOLDER = Path(__file__).parent / "__pycache__"
_OLD_S, _WRITTEN_S = 30 * 86400.0, 3600.0
_MOST_PROGRAMS, _WAITED_S = 512, 0.1
_COMPILED_S = 60.0  # how long a process waits for another one that compiles the same code


class Kept:
    """A file of this installation that is made once.

    name: of what it has.
    sources: the files that the content depends on.
    versions: what else it depends on.
    make: makes the content, if there is none on disk.
    """

    def __init__(self, name: str, sources: Iterable[Path], make: Callable[[], bytes], versions: str = "") -> None:
        self.name, self._make = name, make
        self._family = f"{name}."
        self._file = f"{self._family}{_checksum(tuple(sources), versions)}.code"

    @property
    def on_disk(self) -> bool:
        return any((folder / self._file).exists() for folder in _folders())

    def content(self) -> bytes:
        """What the file has. It is made if it is not on disk, or damaged there.

        Of several processes that find nothing on disk, one makes it, and the others wait for it.
        """
        code = self._read()
        if code is None:
            folder = writable_folder()
            with _locked(None if folder is None else folder / f"{self._family}lock") as waited:
                code = self._read(say=False)
                if code is None and not waited:
                    code = self._made(folder)
            if code is None:  # the process before could not make it, or not keep it
                code = self._made(folder)
        return code

    def _made(self, folder: Path | None) -> bytes:
        code = self._make()
        if folder is not None:
            self._keep(folder, code)
        return code

    def _read(self, *, say: bool = True) -> bytes | None:
        """The code on disk; None if there is none, or none that may run. say: report bad code on standard error."""
        for folder in _folders():
            with suppress(OSError), (folder / self._file).open("rb") as file:
                trusted = 0, os.geteuid(), Path(__file__).stat().st_uid  # root, this user, who owns this installation
                about, content = os.fstat(file.fileno()), file.read()
                code = content[_DIGEST_BYTES:]
                wrong = ""
                if about.st_uid not in trusted or about.st_mode & 0o022:
                    wrong = "can be written to by other users; it is not used"
                elif content[:_DIGEST_BYTES] != _digest(code):
                    wrong = "is damaged; it is made again"
                if not wrong:
                    return code
                if say:
                    tell(f"unisono: {file.name} {wrong}\n")
        return None

    def _keep(self, folder: Path, code: bytes) -> None:
        """Write the code to disk, and remove what was made of other sources. Without room on disk, do nothing.

        Several versions may keep their code in one folder of the user: there, other code goes when it is a month old.
        So do programs of tables. Files that a process did not finish, because it was killed, go when an hour old.
        """
        kept_s = {".code": 0.0 if folder == _OWN_FOLDER else _OLD_S}
        with suppress(OSError):
            found = [(path, kept_s.get(path.suffix, _WRITTEN_S)) for path in folder.glob(f"{self._family}*.code*")]
            programs = sorted(folder.glob("program-*"), key=_changed, reverse=True)
            found += [(path, 0.0) for path in programs[_MOST_PROGRAMS:]]
            for path, most_s in (*found, *((path, _OLD_S) for path in programs)):
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < time.time() - most_s:
                        path.unlink()
            with tempfile.NamedTemporaryFile(dir=folder, prefix=self._file, delete=False) as file:
                new = Path(file.name)
                try:
                    file.write(_digest(code) + code)
                    file.flush()
                    new.chmod(0o644)
                    new.replace(folder / self._file)
                except OSError:
                    new.unlink()
                    raise


def _changed(path: Path) -> float:
    """When a file has been written last; 0 if it has gone."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


@cache
def _checksum(sources: tuple[Path, ...], versions: str) -> str:
    """The checksum of all that a file depends on."""
    checksum = hashlib.blake2b(f"{sys.implementation.cache_tag} {versions}".encode(), digest_size=8)
    for path in sorted(sources):
        checksum.update(path.read_bytes())
    return checksum.hexdigest()


def _digest(code: bytes) -> bytes:
    return hashlib.blake2b(code, digest_size=_DIGEST_BYTES).digest()


def _folders() -> list[Path]:
    """The folders that may have code: UNISONO_CACHE_DIR, or else this file's folder and the user's caches."""
    if chosen := os.environ.get("UNISONO_CACHE_DIR"):
        return [Path(chosen)]
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [_OWN_FOLDER, Path(caches) / "unisono"]


def writable_folder() -> Path | None:
    """Where code is kept: the first folder for it that can be written to; None where there is none."""
    for folder in _folders():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    return None


@contextmanager
def _locked(path: Path | None) -> Iterator[bool]:
    """Let one process at a time in, where the file system has locks. A process that has waited for long goes in, too:
    the holder of the lock may be stopped, and two processes that compile the same code do no harm. Gives whether this
    process has waited.
    """
    began = time.monotonic()
    with ExitStack() as held:
        if path is not None:
            with suppress(OSError):
                file = held.enter_context(path.open("w"))
                lock(file, _COMPILED_S)
                # Not by closing alone: a process that was forked meanwhile has the file open, too.
                held.callback(fcntl.flock, file, fcntl.LOCK_UN)
        yield time.monotonic() - began > _WAITED_S
