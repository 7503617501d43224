"""Read the five lines of an algorithm's docstring. A test evaluates the formulas for rounds and bytes in them.

The docstring of every algorithm has its idea in the first line, then `rounds`, `bytes`, `wins` and `source`. `rounds`
is the number of rounds in which messages travel; `bytes` is what the busiest rank sends, and after `; received:` what
the busiest rank receives, where that is more. Both are for root 0. `at most` marks a bound.

The names in formulas: m bytes of the vector (see `schedule.counts`); p ranks; F = (p - 1) / p; lg and floor_lg, the
logarithm of p to base 2 rounded up and down; pow2, the largest power of two not above p; below, the largest below p;
folded, 1 if p is no power of two, else 0; ones, the number of one bits in all numbers below p; n segments; k, the radix
of a k-nomial tree, and lgk, the logarithm of p to base k rounded up; l ranks on an island; and rounds_for(x), the
logarithm of x to base 2 rounded up.
"""

from ...base.errors import ArgumentError

LINES = ("idea", "rounds", "bytes", "wins", "source")
"""The names of the lines of an algorithm's docstring."""


def lines(doc: str) -> dict[str, str]:
    """Split the docstring of an algorithm into LINES. Raises ArgumentError if one of them is missing."""
    idea, *rest = (line.strip() for line in doc.strip().splitlines() if line.strip())
    texts = {"idea": idea} | {name: text for name, _, text in (line.partition(": ") for line in rest)}
    if tuple(texts) != LINES or len(rest) != len(LINES) - 1:
        raise ArgumentError(f"the docstring of an algorithm needs the lines {', '.join(LINES)}, but it is\n{doc}")
    return texts
