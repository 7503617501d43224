"""Files that are made once and kept: which are believed, and which are made again."""

import os
from pathlib import Path

import pytest

from unisono.engine.kept import Kept

pytestmark = pytest.mark.quick

CONTENT = bytes(range(200))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Kept, list[int], Path]:
    """Content that is on disk, how often it has been made since then, and its file."""
    monkeypatch.setenv("UNISONO_CACHE_DIR", str(tmp_path))
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        return CONTENT

    kept = Kept("some", [], make)
    assert kept.content() == CONTENT
    (file,) = tmp_path.glob("*.code")
    made.clear()
    return kept, made, file


def test_damage_at_any_byte_is_found(kept: tuple[Kept, list[int], Path], capfd: pytest.CaptureFixture[str]) -> None:
    of, made, file = kept
    whole = file.read_bytes()
    for k in range(len(whole)):
        file.write_bytes(whole[:k] + bytes([whole[k] ^ 1 << k % 8]) + whole[k + 1 :])
        assert of._read() is None, k
    for k in range(len(whole)):
        file.write_bytes(whole[:k])
        assert of._read() is None, k
    assert capfd.readouterr().err == f"unisono: {file} is damaged; it is made again\n" * 2 * len(whole)
    assert of.content() == CONTENT
    assert made == [1]
    assert file.read_bytes() == whole


def test_file_writable_by_others_is_ignored(
    kept: tuple[Kept, list[int], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    of, made, file = kept
    for mode in (0o664, 0o646):
        file.chmod(mode)
        assert of.content() == CONTENT
        assert file.stat().st_mode & 0o777 == 0o644
    said = f"unisono: {file} can be written to by other users; it is not used\n"
    assert capfd.readouterr().err == 2 * said
    assert made == [1, 1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_not_used(kept: tuple[Kept, list[int], Path]) -> None:
    of, made, file = kept
    os.chown(file, 54321, -1)
    assert of.content() == CONTENT
    assert (made, file.stat().st_uid) == ([1], 0)
