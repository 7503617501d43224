"""Sessions of pytest that tests look at."""

from collections.abc import Callable

import pytest

import unisono.tools.pytest_plugin.warm_worlds  # noqa: F401  so inner sessions share the process that forks ranks

RanksSession = Callable[..., pytest.RunResult]


@pytest.fixture
def ranks_session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> RanksSession:
    """ranks_session(*options, name=text, ...): a session of pytest on files of these names, in this process."""
    monkeypatch.delenv("CI", raising=False)  # where it is set, pytest explains asserts at greater length

    def run(*options: str, **files: str) -> pytest.RunResult:
        if files:
            pytester.makepyfile(**files)
        return pytester.runpytest_inprocess("-p", "no:instafail", *options)  # it finds the plug-in by its entry point

    return run
