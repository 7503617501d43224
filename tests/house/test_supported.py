"""Which Pythons and which torch are supported is said alike by the package, the tests' workflows and all pages."""

import re
import tomllib

import yaml

from tests.support.markdown import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CLASSIFIERS = PROJECT["project"]["classifiers"]
PYTHONS = [c.rpartition(" ")[2] for c in CLASSIFIERS if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", c)]
REQUIRED = next(name for name in PROJECT["project"]["dependencies"] if name.startswith("torch"))
FIRST_TORCH, NEXT_TORCH = re.fullmatch(r"torch>=2\.(\d+),<2\.(\d+)", REQUIRED).groups()  # type: ignore[union-attr]
LAST_TORCH = int(NEXT_TORCH) - 1


def versions(workflow: str) -> list[dict[str, str]]:
    """The pairs of a Python and a torch with which a workflow runs the tests."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / workflow).read_text())["jobs"]
    return list(jobs["versions"]["strategy"]["matrix"]["include"])


def test_the_package_s_settings_agree() -> None:
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    assert PROJECT["tool"]["mypy"]["python_version"] == PYTHONS[0]
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{PYTHONS[0].replace('.', '')}"
    first, last = (int(python.removeprefix("3.")) for python in (PYTHONS[0], PYTHONS[-1]))
    assert [f"3.{minor}" for minor in range(first, last + 1)] == PYTHONS


def test_workflows_cover_all_versions() -> None:
    ends, between = versions("tests.yml"), versions("nightly.yml")
    assert (ends[0]["python"], ends[0]["torch"]) == (PYTHONS[0], f"2.{FIRST_TORCH}.*")
    assert (ends[-1]["python"], ends[-1]["torch"]) == (PYTHONS[-1], f"2.{LAST_TORCH}.*")
    assert {pair["python"] for pair in ends + between} == set(PYTHONS)
    tried = {pair["torch"] for pair in ends + between} - {"nightly"}
    assert tried == {f"2.{minor}.*" for minor in range(int(FIRST_TORCH), LAST_TORCH + 1)}
    assert "nightly" in {pair["torch"] for pair in between}


def test_the_pages_say_the_same() -> None:
    table = (ROOT / "docs" / "versions.md").read_text()
    assert f"| Python | {PYTHONS[0]} to {PYTHONS[-1]} |" in table
    assert f"| PyTorch | 2.{FIRST_TORCH} to 2.{LAST_TORCH} |" in table
    assert f"no 2.{NEXT_TORCH} until" in table
    said = f"Python {PYTHONS[0]} to {PYTHONS[-1]}, PyTorch 2.{FIRST_TORCH} to 2.{LAST_TORCH}"
    for page in ("README.md", "docs/start.md", "docs/index.md"):
        assert said in " ".join((ROOT / page).read_text().split()), page
