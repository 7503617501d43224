"""Machine code on disk: loaded and called without Numba and LLVM, which only compile what is not there yet.

A *unit* is one file, `name.processor.sources.code`: code for this kind of processor, made from sources with this
checksum. It is a code image, or, on processors that have none, an object file, which LLVM links. Loading an image takes
a tenth of a millisecond; importing LLVM takes ten and more, Numba several hundred.
"""

import ctypes
import fcntl
import hashlib
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from ..base.linux import first_processor, lock
from ..base.python import tell
from . import code_image

_DIGEST_BYTES = 16
_MAKERS = "code_image.py", "make_image.py", "object_code.py"
"""The files that make an image of what Numba and LLVM have compiled."""
_FASTCALL = 0x80  # METH_FASTCALL of CPython
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
        self._family = f"{name}.{_processor()}."
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
        """Write the code to disk, and remove the unit's code of other sources. Without room on disk, do nothing.

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


class Unit(Kept):
    """The code of one compiled function. name: also of the function that it exports. make: makes the object file."""

    def __init__(self, name: str, sources: Iterable[Path], make: Callable[[], bytes], versions: str = "") -> None:
        super().__init__(name, sources, lambda: self._image(make()), versions)

    def address(self) -> int:
        """Load the code, and return the address of its function."""
        code = self.content()
        if code.startswith(code_image.MAGIC):
            return code_image.load(code)
        from .object_code import link

        return link(self.name, symbol(self.name), code)

    def _image(self, made: bytes) -> bytes:
        from .make_image import image_of

        return image_of(made, symbol(self.name)) or made


def _changed(path: Path) -> float:
    """When a file has been written last; 0 if it has gone."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def entry_point(unit: Unit) -> Callable[..., int]:
    """Load a unit as a Python function. Its function has CPython's fast calling convention."""
    method = _Method(unit.name.encode(), unit.address(), _FASTCALL, None)
    _loaded.append(method)
    function: Callable[..., int] = _new_function(ctypes.byref(method), None, None)
    return function


def symbol(name: str) -> str:
    """The name of a unit's function in the object file."""
    return f"unisono_{name.replace('.', '_')}"


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p),
    )  # fmt: skip


_new_function = ctypes.pythonapi.PyCFunction_NewEx
_new_function.restype, _new_function.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]

_loaded: list[object] = []  # what must live as long as the loaded code


@cache
def _processor() -> str:
    """The kind and the features of the processor, as a part of a file's name. Code uses no other features."""
    first = first_processor()
    said = [first.get(name, "") for name in ("vendor_id", "cpu family", "model", "stepping", "flags")]
    if platform.machine() != "x86_64" or not all(said):
        from .object_code import processor

        said = [platform.machine(), processor()]
    return f"{said[0]}-{hashlib.blake2b(' '.join(said).encode(), digest_size=8).hexdigest()}"


@cache
def _checksum(sources: tuple[Path, ...], versions: str) -> str:
    """The checksum of all that code depends on: of these files, and of what compiles them."""
    here = Path(__file__).parent
    checksum = hashlib.blake2b(f"{sys.implementation.cache_tag} {versions}".encode(), digest_size=8)
    checksum.update(b"".join(map(_version_of, ("llvmlite", "numba"))))
    for path in (*sorted(sources), *(here / name for name in _MAKERS)):
        checksum.update(path.read_bytes())
    return checksum.hexdigest()


@cache
def _version_of(package: str) -> bytes:
    """What a package says of its version, without importing it, where that is possible."""
    found = find_spec(package)
    if found is not None and found.origin is not None:
        with suppress(OSError):
            return Path(found.origin).with_name("_version.py").read_bytes()
    return str(import_module(package).__version__).encode()


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
