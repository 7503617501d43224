"""The plug-in for pytest: tests that run on every rank of a world.

    @pytest.mark.ranks(2, 4)
    def test_sum():
        tensor = torch.ones(3)
        unisono.all_reduce(tensor)
        assert tensor[0] == unisono.get_world_size()

pytest loads this module in all its sessions. So it imports nothing that pytest has not imported: what runs the tests is
in the modules beside it. `warm_worlds` is in pytest's process, `rank_body` on the ranks.
"""

import sys
from collections.abc import Generator
from functools import partial

import pytest

_MARK = (
    'ranks(*numbers, hosts="2x2", backend="gloo", timeout_s=None): run the test on every rank of a world, once for '
    "each of these numbers of ranks and shapes of hosts. backend: make torch.distributed's default group of it first."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("ranks", "tests on ranks").addoption(
        "--ranks-timeout",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="how long a test with @pytest.mark.ranks may run (5); then each rank's stack is shown, and the ranks end",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Describe the mark."""
    config.addinivalue_line("markers", _MARK)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a case of each world."""
    if mark := metafunc.definition.get_closest_marker("ranks"):
        from .warm_worlds import shapes

        if "ranks" not in metafunc.fixturenames:
            metafunc.fixturenames.append("ranks")
        metafunc.parametrize("ranks", shapes(mark))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let a test with the mark run on ranks. Its fixtures stay as they are: in this process."""
    if isinstance(item, pytest.Function) and item.get_closest_marker("ranks"):
        from .warm_worlds import run_test

        item.runtest = partial(run_test, item)  # type: ignore[method-assign]
        if getattr(item.obj, "__unittest_expecting_failure__", False):
            item.add_marker(pytest.mark.xfail(strict=True))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """End the ranks after the last test, before other plug-ins such as pytest-cov collect what processes have left."""
    try:
        return (yield)
    finally:
        if f"{__name__}.warm_worlds" in sys.modules:
            from .warm_worlds import close_worlds

            close_worlds(session.config)
