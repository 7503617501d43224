"""Code images: which files are believed, what they may use of the processor, and how they lie in memory."""

import ctypes
import os
import platform
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from unisono.base.linux import first_processor
from unisono.engine import code_image, kernels, machine_code, object_code
from unisono.engine.code_image import MAGIC, load
from unisono.engine.machine_code import Unit, symbol
from unisono.engine.make_image import image_of
from unisono.engine.reducers.kernels import object_file

pytestmark = [
    pytest.mark.quick, pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 has code images"),
]  # fmt: skip

DOUBLED = """
@numbers = private constant [4 x i64] [i64 3, i64 5, i64 7, i64 11]
declare i32 @abs(i32)
define i64 @unisono_some_double(i64 %k, i32 %x) {
  %at = getelementptr [4 x i64], [4 x i64]* @numbers, i64 0, i64 %k
  %number = load i64, i64* %at
  %positive = call i32 @abs(i32 %x)
  %wide = sext i32 %positive to i64
  %sum = add i64 %number, %wide
  ret i64 %sum
}
"""
"""Reads constants, and calls a function outside."""

CHOOSES = """
declare i32 @abs(i32)
declare i32 @toupper(i32)
declare i32 @tolower(i32)
define i64 @unisono_some_choice(i64 %k, i32 %x) {
  switch i64 %k, label %none [ i64 0, label %a i64 1, label %b i64 2, label %c i64 3, label %d i64 4, label %none ]
a:
  %of_a = call i32 @abs(i32 %x)
  br label %end
b:
  %of_b = call i32 @toupper(i32 %x)
  br label %end
c:
  %of_c = call i32 @tolower(i32 %x)
  br label %end
d:
  %of_d = mul i32 %x, %x
  br label %end
none:
  br label %end
end:
  %found = phi i32 [ %of_a, %a ], [ %of_b, %b ], [ %of_c, %c ], [ %of_d, %d ], [ -1, %none ]
  %wide = sext i32 %found to i64
  ret i64 %wide
}
"""
"""Jumps by a table in the data to places in the code."""

COUNTS = """
@calls = internal global i64 0
define i64 @unisono_some_count() {
  %before = load i64, i64* @calls
  %now = add i64 %before, 1
  store i64 %now, i64* @calls
  ret i64 %now
}
"""
"""Has a variable, which an image has not."""


def code_of(text: str) -> bytes:
    return object_code.object_code(llvm.parse_assembly(text))


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Unit, list[int], Path]:
    """A unit whose code is on disk, how often it has been compiled since then, and its file."""
    monkeypatch.setenv("UNISONO_CACHE_DIR", str(tmp_path))
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        return code_of(DOUBLED)

    unit = Unit("some.double", [], make)
    unit.address()
    (file,) = tmp_path.glob("*.code")
    made.clear()
    return unit, made, file


def call(address: int, *args: int) -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)(address)(*args))


def test_image_has_constants_and_outside_calls(unit: tuple[Unit, list[int], Path]) -> None:
    of, made, file = unit
    assert file.read_bytes()[16:].startswith(MAGIC)
    assert [call(of.address(), k, -100) for k in range(4)] == [103, 105, 107, 111]
    assert not made


def test_damage_at_any_byte_is_found(unit: tuple[Unit, list[int], Path], capfd: pytest.CaptureFixture[str]) -> None:
    of, made, file = unit
    whole = file.read_bytes()
    for k in range(len(whole)):
        file.write_bytes(whole[:k] + bytes([whole[k] ^ 1 << k % 8]) + whole[k + 1 :])
        assert of._read() is None, k
    for k in range(len(whole)):
        file.write_bytes(whole[:k])
        assert of._read() is None, k
    assert capfd.readouterr().err == f"unisono: {file} is damaged; its code is compiled again\n" * 2 * len(whole)
    assert call(of.address(), 1, 2) == 7
    assert made == [1]
    assert file.read_bytes() == whole


def test_file_writable_by_others_is_ignored(
    unit: tuple[Unit, list[int], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    of, made, file = unit
    for mode in (0o664, 0o646):
        file.chmod(mode)
        assert call(of.address(), 0, 1) == 4
        assert file.stat().st_mode & 0o777 == 0o644
    said = f"unisono: {file} can be written to by other users; it is not used\n"
    assert capfd.readouterr().err == 2 * said
    assert made == [1, 1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_not_used(unit: tuple[Unit, list[int], Path]) -> None:
    of, made, file = unit
    os.chown(file, 54321, -1)
    assert call(of.address(), 0, 1) == 4
    assert (made, file.stat().st_uid) == ([1], 0)


def test_no_page_is_writable_and_executable(unit: tuple[Unit, list[int], Path]) -> None:
    address = unit[0].address()
    _, _, text, data, _, _ = code_image.HEAD.unpack_from(unit[2].read_bytes(), 16)
    assert (text <= 4096, 0 < data <= 4096) == (True, True)
    rights = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        for part, at in (("code", address), ("data", (address & -4096) + 4096)):
            if first <= at < last:
                rights[part] = line.split()[1]
    assert rights == {"code": "r-xp", "data": "r--p"}


def test_code_with_variables_is_linked_by_llvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_CACHE_DIR", str(tmp_path))
    assert image_of(code_of(COUNTS), symbol("some.count")) is None
    for _ in range(2):  # compiled, then from disk
        count = ctypes.CFUNCTYPE(ctypes.c_int64)(Unit("some.count", [], lambda: code_of(COUNTS)).address())
        assert [count(), count()] == [1, 2]
    (file,) = tmp_path.glob("*.code")
    assert not file.read_bytes()[16:].startswith(MAGIC)


def test_it_jumps_by_tables() -> None:
    image = image_of(code_of(CHOOSES), symbol("some.choice"))
    assert image is not None
    assert [call(load(image), k, 97) for k in range(6)] == [97, ord("A"), 97, 97 * 97, -1, -1]


def test_other_object_files_have_no_image() -> None:
    code = code_of(DOUBLED)
    assert image_of(code, symbol("some.double")) is not None
    assert image_of(code, symbol("another")) is None
    assert image_of(code[:18] + (183).to_bytes(2, "little") + code[20:], symbol("some.double")) is None  # AArch64
    assert image_of(code[:500], symbol("some.double")) is None
    assert image_of(b"", symbol("some.double")) is None


@pytest.mark.parametrize(
    ("dtype", "op", "divide"),
    [("float32", "sum", False), ("int64", "avg", True), ("uint8", "avg", True), ("complex64", "product", False),
     ("float8_e4m3fn", "max", False), ("bfloat16", "avg", True), ("bool", "sum", False)],
)  # fmt: skip
def test_kernels_have_images(dtype: str, op: str, divide: bool) -> None:
    image = image_of(object_file("some", dtype, op, divide=divide), symbol("some"))
    assert image is not None
    assert load(image)


@pytest.mark.parametrize("name", ["interpret.run", "lanes.help_lanes", "ring.write_whole"])
def test_functions_of_the_engine_have_images(name: str) -> None:
    assert image_of(kernels._compile(name), symbol(name)) is not None


def test_file_name_covers_processor_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine may hide from its kernel what the processor can do, and the next one may not have it."""
    first = first_processor()
    flags = first["flags"].split()
    there = object_code._features().split(",")
    assert {"+sse2", "+cx16"} <= {*there}
    for name, flag in (("sse4.2", "sse4_2"), ("sse3", "pni"), ("cx16", "cx16")):
        assert f"+{name}" in there
        fewer = " ".join(other for other in flags if other != flag)
        monkeypatch.setattr(object_code, "cpuinfo", {"flags": fewer}.__getitem__)
        assert f"-{name}" in object_code._features().split(",")
        name_here = machine_code._processor.__wrapped__()
        monkeypatch.setattr(machine_code, "first_processor", lambda fewer=fewer: {**first, "flags": fewer})
        assert machine_code._processor.__wrapped__() != name_here
        monkeypatch.setattr(machine_code, "first_processor", first_processor)
