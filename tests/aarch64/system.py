"""A Debian for AArch64 in a folder, with Python and this package's dependencies, and QEMU, which runs its programs.

Nothing is installed on this machine, and root is not needed: `apt-get` and `pip` download, and what is downloaded is
unpacked. Programs run in namespaces of their own (enter.sh), where Linux starts QEMU for programs of AArch64.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SUITE, PYTHON = "bookworm", "3.11"  # a release of Debian, and the version of its Python
PACKAGES = (f"python{PYTHON}", "libstdc++6", "libgomp1", "bash", "coreutils", "dash", "procps")
NEEDED = ("apt-get", "dpkg", "dpkg-deb", "tar", "unshare")
TESTERS = ("expecttest", "hypothesis", "numpy", "psutil", "pytest", "pyyaml")
"""How names of packages begin that tests need, of those for developers."""
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
"""Where torch is that has no CUDA. Where it cannot be reached, CUDA's libraries are downloaded, too: 2.5 GB."""
PROCESSOR = "neoverse-n1"
CPUINFO = """processor\t: {number}
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""
"""What Linux says of a Neoverse N1. QEMU shows programs what it says of this machine's processor, and torch dies."""
HEAP_BYTES = "512MiB"
"""Of a rank. QEMU keeps 24 bytes for each page of addresses that a program has ever mapped. By default each rank has
half of the machine's memory there: that is 300 MB for each world of four ranks, until QEMU gets no more, and hangs."""
LIMIT_S = 1800


class Missing(Exception):
    """What cannot be had here, as a sentence."""


class System:
    """The system in this folder. Its root is a folder there, which `make` fills the first time."""

    def __init__(self, folder: Path) -> None:
        if missing := [name for name in NEEDED if shutil.which(name) is None]:
            raise Missing(f"there is no {', '.join(missing)}")
        if not KEYS.exists():
            raise Missing(f"there is no {KEYS}, which the package debian-archive-keyring has")
        self.folder, self.root = folder, folder / "root"
        self._site = self.root / f"usr/local/lib/python{PYTHON}/dist-packages"

    def make(self, checkout: Path) -> None:
        """Download and unpack what is not here yet. Raises Missing."""
        if not (self.folder / "unpacked").exists():
            self._unpack()
        needed = "".join((checkout / name).read_text() for name in ("pyproject.toml", "constraints.txt"))
        installed = self.folder / "installed"
        if not installed.exists() or installed.read_text() != needed:
            shutil.rmtree(self._site, ignore_errors=True)
            self._install(checkout)
            installed.write_text(needed)
        custom = self.root / f"usr/lib/python{PYTHON}/sitecustomize.py"
        custom.unlink(missing_ok=True)
        shutil.copy(HERE / "sitecustomize.py", custom)
        processors = range(os.cpu_count() or 1)
        (self.folder / "cpuinfo").write_text("".join(CPUINFO.format(number=number) for number in processors))
        self._run("A program of AArch64", self.command(checkout, "true"))

    def command(self, checkout: Path, *command: str) -> list[str]:
        """A command of the system, as one of this machine. It runs in the checkout, which has the same path there."""
        namespaces = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]
        return [*namespaces, "sh", str(HERE / "enter.sh"), str(self.folder), str(checkout), *command]

    @staticmethod
    def environment() -> dict[str, str]:
        """For such commands. NIGHTLY: processes start as users start them, and are not forked from a warm process."""
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "TERM", "CI")}
        own = {"NIGHTLY": "1", "QEMU_CPU": PROCESSOR, "UNISONO_HEAP_BYTES": HEAP_BYTES}
        return {**kept, "HOME": "/tmp", "LANG": "C.UTF-8", **own}  # noqa: S108

    def emulator_version(self) -> str:
        said = subprocess.run(
            [self.folder / "qemu", "--version"], capture_output=True, text=True, check=True, timeout=60
        )
        return said.stdout.partition("\n")[0]

    def _unpack(self) -> None:
        apt, archives = self.folder / "apt", self.folder / "apt/archives"
        for folder in (apt / "lists/partial", archives / "partial"):
            folder.mkdir(parents=True, exist_ok=True)
        (apt / "status").touch()
        (apt / "sources.list").write_text(
            f"deb [arch=arm64,{_own_architecture()} signed-by={KEYS}] http://deb.debian.org/debian {SUITE} main\n"
        )
        (apt / "apt.conf").write_text(
            f'Dir::State "{apt}"; Dir::State::status "{apt}/status"; Dir::State::lists "{apt}/lists";\n'
            f'Dir::Cache "{apt}"; Dir::Cache::archives "{archives}";\n'
            f'Dir::Etc::sourcelist "{apt}/sources.list"; Dir::Etc::sourceparts "-";\n'
            f'APT::Architecture "arm64"; APT::Architectures {{ "arm64"; "{_own_architecture()}"; }};\n'
            'APT::Install-Recommends "false"; APT::Sandbox::User ""; Acquire::Languages "none"; Acquire::Retries "2";\n'
        )
        environment = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
        self._run("The list of Debian's packages", ["apt-get", "-qq", "update", "--error-on=any"], env=environment)
        download = ["apt-get", "-qq", "--yes", "--download-only", "install", *PACKAGES]
        self._run("Debian for AArch64", download, env=environment)
        emulator = f"qemu-user-static:{_own_architecture()}"
        self._run("QEMU", ["apt-get", "-qq", "download", emulator], env=environment, cwd=apt)
        shutil.rmtree(self.root, ignore_errors=True)
        for name in ("bin", "lib", "sbin"):
            (self.root / "usr" / name).mkdir(parents=True)
            (self.root / name).symlink_to(f"usr/{name}")
        for package in archives.glob("*.deb"):
            self._unpack_to(self.root, package)
        [package] = apt.glob("qemu-user-static_*.deb")
        self._unpack_to(apt, package)
        (apt / "usr/bin/qemu-aarch64-static").rename(self.folder / "qemu")
        shutil.rmtree(apt)
        (self.root / "etc/passwd").write_text("root:x:0:0:root:/tmp:/bin/sh\n")
        (self.root / "etc/hosts").write_text(f"127.0.0.1 localhost {os.uname().nodename}\n")
        (self.folder / "unpacked").touch()

    def _unpack_to(self, folder: Path, package: Path) -> None:
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as unpacked:
            tar = ["tar", "--extract", "--keep-directory-symlink", "--no-same-owner", "--directory", str(folder)]
            self._run(package.name, tar, stdin=unpacked.stdout)

    def _install(self, checkout: Path) -> None:
        """Install what pyproject.toml says. `pip` runs on this machine: emulated it would take an hour."""
        project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
        testers = [name for name in project["optional-dependencies"]["dev"] if name.startswith(TESTERS)]
        wheels = ["--platform=manylinux2014_aarch64", *(f"--platform=manylinux_2_{n}_aarch64" for n in range(17, 37))]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
        pip += ["--no-cache-dir", "--root-user-action=ignore", f"--target={self._site}"]
        index = ["--retries=1", f"--extra-index-url={os.environ.get('TORCH_INDEX', TORCH_INDEX)}"]
        kind = [*wheels, f"--python-version={PYTHON}", "--only-binary=:all:"]
        constraints = f"--constraint={checkout / 'constraints.txt'}"
        self._run("What the package needs", [*pip, *index, *kind, constraints, *project["dependencies"], *testers])
        self._run("The package", [*pip, "--no-deps", f"--editable={checkout}"])

    @staticmethod
    def _run(what: str, command: Sequence[str], **options: object) -> None:
        try:
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_S,
                check=False,
                **options,
            )  # type: ignore[call-overload]
        except subprocess.TimeoutExpired as error:
            raise Missing(f"{what} took more than {LIMIT_S} s: {command[0]}") from error
        if done.returncode:
            raise Missing(f"{what}: {command[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}")


def _own_architecture() -> str:
    said = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True, timeout=60)
    return said.stdout.strip()
