"""`python -m tests.aarch64` reports why it cannot emulate AArch64, and succeeds. The rest of it needs downloads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.aarch64 import system
from tests.aarch64.system import Missing, System


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.aarch64"]
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == (
        "Skipped: no AArch64 can be emulated here: there is no apt-get, dpkg, dpkg-deb, tar, unshare\n"
    )


def test_so_are_keys_of_debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "NEEDED", ())
    monkeypatch.setattr(system, "KEYS", tmp_path / "keys")
    with pytest.raises(Missing, match=r"there is no .*keys, which the package debian-archive-keyring has"):
        System(tmp_path)


def test_a_command_that_fails_is_shown(tmp_path: Path) -> None:
    with pytest.raises(Missing, match=r"(?s)Something: sh ended with 3:.*no such thing"):
        System._run("Something", ["sh", "-c", "echo no such thing >&2; exit 3"])
