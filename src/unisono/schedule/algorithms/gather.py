"""gather: the root gets the blocks of all ranks. Each is a scatter transposed. Naive first."""

from . import scatter
from .catalogue import dual

linear = dual(scatter.linear, "Every rank sends the root its block.", sent="m / p")
binomial = dual(
    scatter.binomial,
    "Neighbours put their blocks together, then pairs, and so on up to the root.",
    sent="m * max(p - below, below // 2) / p",
)
