"""`each`: a test of many values that is one test: to collect and report a case takes longer than most of them need."""

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Signature, signature
from typing import Any


def each(names: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: run a test with each of these values, as `pytest.mark.parametrize` does, but in one case.

    All values are tried. The error names those that fail, and has the first one's error as its cause.
    """
    arguments, rows = names.split(", "), list(values)
    assert rows, "a test without values cannot fail"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        others = [one for one in signature(test).parameters.values() if one.name not in arguments]

        @wraps(test)
        def run(**fixtures: Any) -> None:
            failed: list[tuple[str, Exception]] = []
            for row in rows:
                given = dict(zip(arguments, row if len(arguments) > 1 else [row], strict=True))
                try:
                    test(**given, **fixtures)
                except Exception as error:  # noqa: BLE001  told below
                    failed.append((", ".join(f"{name}={value}" for name, value in given.items()), error))
            if failed:
                told = "\n".join(f"{where}: {error}" for where, error in failed)
                raise AssertionError(f"{len(failed)} of {len(rows)} fail:\n{told}") from failed[0][1]

        run.__signature__ = Signature(others)  # type: ignore[attr-defined]  # what pytest asks which fixtures it wants
        return run

    return decorate
