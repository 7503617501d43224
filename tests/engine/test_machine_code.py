"""Machine code on disk: found, renewed, repaired, and loaded without Numba."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import pytest
from llvmlite import ir
from numba import int64

import unisono
from unisono.engine import kept, kernels, machine_code
from unisono.engine.kernels import atomics, kernel
from unisono.engine.kernels.compiled import compiled, object_file

PACKAGE = Path(unisono.__file__).parent
ENGINE = PACKAGE / "engine"

USE = """
import sys
from unisono.engine.kernels import kernel, unit
before = unit("waiting.poll").on_disk
found = kernel("waiting.poll")(0, 0, 0)
print(before, found, unit("waiting.poll").on_disk, "numba" in sys.modules)
"""


def run(program: str, folder: Path, source: Path | str = PACKAGE.parent, within: Sequence[str] = ()) -> str:
    """What a program says that keeps its code in this folder, its errors last. within: the command that starts it."""
    environ = {**os.environ, "UNISONO_CACHE_DIR": str(folder), "PYTHONPATH": str(source)}
    command = [*within, sys.executable, "-c", program]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout + done.stderr


CONTAINER = "unshare", "--user", "--map-root-user", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child"
"""Starts a program in namespaces of its own, as a container has them; it sees the same files."""


@pytest.mark.parametrize("within", [(), CONTAINER], ids=["processes", "containers"])
def test_one_process_compiles_and_others_load(tmp_path: Path, within: Sequence[str]) -> None:
    if within and subprocess.run([*within, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system lets this user make no namespaces")
    with ThreadPoolExecutor() as pool:  # two that find nothing
        said = list(pool.map(lambda _: run(USE, tmp_path, within=within), range(2)))
    assert sorted(line.split()[-1] for line in said) == ["False", "True"]
    assert "False 0 True True\n" in said
    assert run(USE, tmp_path, within=within) == run(USE, tmp_path) == "True 0 True False\n"


SHARE = """
from concurrent.futures import ThreadPoolExecutor
from unisono.engine.kernels import kernel
from unisono.engine.reducers import combine_address
with ThreadPoolExecutor() as pool:
    print(len({*pool.map(lambda _: (kernel("waiting.poll"), combine_address("float32", "sum", True)), range(4))}))
"""


def test_threads_share_what_one_has_compiled(tmp_path: Path) -> None:
    assert run(SHARE, tmp_path) == "1\n"


def test_changed_source_has_code_of_its_own(tmp_path: Path) -> None:
    """Old files of another version go, new ones stay: two versions may share a folder."""
    source = tmp_path / "source"
    shutil.copytree(PACKAGE, source / "unisono", ignore=shutil.ignore_patterns("__pycache__"))
    with (source / "unisono/engine/kernels/waiting.py").open("a") as text:
        text.write("# another\n")
    assert run(USE, tmp_path) == "False 0 True True\n"
    (code,) = tmp_path.glob("waiting.poll.*.code")
    assert run(USE, tmp_path, source) == "False 0 True True\n"
    assert [run(USE, tmp_path, of) for of in (PACKAGE.parent, source)] == 2 * ["True 0 True False\n"]
    (other,) = {*tmp_path.glob("waiting.poll.*.code")} - {code}
    other.unlink()
    unfinished = tmp_path / f"{code.name}abc", tmp_path / f"{code.name}xyz"
    for file in unfinished:
        file.touch()
    for old in (code, unfinished[0]):
        os.utime(old, (0, 0))
    assert run(USE, tmp_path, source) == "False 0 True True\n"
    assert [file.exists() for file in (code, *unfinished, other)] == [False, False, True, True]


def test_folder_that_keeps_nothing_is_no_error(tmp_path: Path) -> None:
    """A file is in its place, or the disk is full."""
    full = f"""
import resource
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
{USE}
resource.setrlimit(resource.RLIMIT_FSIZE, limits)  # for what is written at the end, such as coverage
"""
    assert run(full, tmp_path) == "False 0 False True\n"
    (lock,) = tmp_path.iterdir()
    assert lock.suffix == ".lock"
    assert run(USE, lock / "below") == "False 0 False True\n"


def test_long_held_lock_is_not_awaited(tmp_path: Path) -> None:
    """It may be stopped."""
    program = """
import fcntl, os
from unisono.engine import kernels, kept
kept._COMPILED_S = 0.1
of = kernels.unit("waiting.poll")
held = open(kept.writable_folder() / f"{of._family}lock", "w")
fcntl.flock(held, fcntl.LOCK_EX)
print(kernels.kernel("waiting.poll")(0, 0, 0), of.on_disk)
"""
    assert run(program, tmp_path) == "0 True\n"


def test_forked_process_holds_no_lock(tmp_path: Path) -> None:
    with kept._locked(tmp_path / "lock"):
        reads, writes = os.pipe()
        child = os.fork()
        if not child:
            os.close(writes)
            os.read(reads, 1)  # until the parent has looked
            os._exit(0)
    try:
        with (tmp_path / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(writes)
        os.close(reads)
        os.waitpid(child, 0)


def test_code_is_not_writable() -> None:
    address = kernels.unit("waiting.poll").address()
    maps = [line.replace("-", " ", 1).split() for line in Path("/proc/self/maps").read_text().splitlines()]
    assert [rights for first, last, rights, *_ in maps if int(first, 16) <= address < int(last, 16)] == ["r-xp"]


FORBIDDEN = """
import ctypes
from unisono.base.errors import ArgumentError
from unisono.engine.kernels import kernel
kernel("waiting.read_cycles")
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
if ctypes.CDLL(None).prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0):
    print("needs Linux 6.3")
else:
    try:
        kernel("waiting.register")
    except ArgumentError as error:
        print(error)
"""


def test_forbidden_machine_code_is_named(tmp_path: Path) -> None:
    run(FORBIDDEN.partition("PR_SET_MDWE")[0] + 'kernel("waiting.register")', tmp_path)  # compiles it
    said = run(FORBIDDEN, tmp_path)
    if "needs" in said:
        pytest.skip(said)
    assert said.startswith("the system forbids this process to run generated code")


def test_file_name_covers_processor_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process may run on another processor: a job moves, or several machines share a folder."""
    kernel("waiting.poll")
    name, features = machine_code._processor()
    others = (f"{name}x", features), (name, features.replace("+", "-", 1))
    for processor, is_known in zip([(name, features), *others], [True, False, False], strict=True):
        monkeypatch.setattr(machine_code, "_processor", lambda processor=processor: processor)
        assert kernels.unit("waiting.poll").on_disk is is_known


ORDERS = {
    "load_acquire": "load atomic i64, .* acquire",
    "store_release": "store atomic i64 .* release",
    "load_half": "load atomic i32, .* acquire",
    "store_half": "store atomic i32 .* release",
    "add_half": "atomicrmw add .* i32 .* seq_cst",
    "add": "atomicrmw add .* i64 .* seq_cst",
    "swap": "atomicrmw xchg .* i64 .* seq_cst",
    "acquire_fence": "fence acquire",
    "pause": "@.?llvm.aarch64.hint",
    "cycles": "@.?llvm.readcyclecounter",
}
"""What each intrinsic asks of LLVM on AArch64."""


@pytest.mark.parametrize(("name", "asked"), ORDERS.items())
def test_intrinsic_orders_memory(name: str, asked: str) -> None:
    defined = getattr(atomics, name)._defn  # Numba's
    count = len(signature(defined).parameters) - 1
    kinds, generate = defined(None, *[None] * count)
    module, word = ir.Module("one"), ir.IntType(64)
    module.triple = "aarch64-linux-gnu"
    function = ir.Function(module, ir.FunctionType(word, [word] * count), "one")
    builder = ir.IRBuilder(function.append_basic_block())
    context = SimpleNamespace(get_dummy_value=lambda: None)
    builder.ret(generate(context, builder, kinds, list(function.args)) or ir.Constant(word, 0))
    assert re.search(asked, str(module))


@pytest.mark.quick
def test_a_literal_is_an_integer_like_any_other() -> None:
    """What Numba takes for a literal depends on Python's version: `0 if number else 1` is two from 3.12 on."""

    @compiled
    def digits(number):
        return 1 if number < 10 else 1 + digits(number // 10)

    @compiled
    def of_some(number):
        return digits(7) + digits(0 if number else 1) + digits(number)

    object_file("some", of_some)
    assert list(digits.overloads) == [(int64,)]
    assert of_some(123) == 5


def test_numba_is_imported_by_few_files() -> None:
    found = {path for path in PACKAGE.rglob("*.py") if re.search(r"^ *(from|import) numba", path.read_text(), re.M)}
    assert found <= {*(ENGINE / "kernels").glob("*.py"), ENGINE / "reducers" / "custom_kernels.py"}


@pytest.mark.parametrize("path", sorted((ENGINE / "kernels").glob("*.py")), ids=lambda path: path.stem)
def test_kernels_import_only_what_renews_them(path: Path) -> None:
    """The constants that they take from other files are part of their code."""
    found = {*re.findall(r"^ *from (\.\S*) import", path.read_text(), re.MULTILINE)}
    siblings = {f".{other.stem}" for other in (ENGINE / "kernels").glob("*.py")}
    others = {"..compile.program", "..logs.rank_logs", "...base.linux"}
    if path.stem in ("__init__", "compiled"):  # their own code is not compiled
        others = {"..machine_code", "...base.python"}
    assert found <= siblings | others
    shared = {"compile/program.py", "logs/rank_logs.py", "../base/linux.py"}
    assert {ENGINE / file for file in shared} <= set(kernels.SOURCES)
