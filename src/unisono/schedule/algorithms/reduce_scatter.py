"""reduce_scatter: every rank gets one block of the sum. Each is an all_gather transposed. Naive first."""

from . import all_gather
from .catalogue import dual

_COMMUTES = ("commutative",)

direct = dual(
    all_gather.direct,
    "Each rank sends every other rank its part, and adds up what it gets in rank order.",
    wins="inside a host; and where sums must not depend on anything but the order of the ranks",
)
ring = dual(
    all_gather.ring,
    "Partial sums go round a ring: in each round each rank adds its own part to the sum that it got, and passes it on.",
    requires=_COMMUTES,
)
two_way_ring = dual(
    all_gather.two_way_ring,
    "Partial sums go round a ring from both sides, and meet at their owner.",
    requires=_COMMUTES,
)
recursive_halving = dual(
    all_gather.recursive_doubling,
    "Pairs swap the half that the other needs: far pairs first, with halves, and so on down to neighbours.",
    name="recursive_halving",
    requires=_COMMUTES,
)
bruck = dual(
    all_gather.bruck,
    "Bruck's all_gather backwards: the first round takes the odd rest, and each further one half of what is left.",
    requires=_COMMUTES,
)
circulant = dual(
    all_gather.circulant,
    "The circulant all_gather backwards: each round halves what is left, rounded up.",
    requires=_COMMUTES,
)
pat = dual(
    all_gather.pat,
    "PAT backwards: near hops come first, with much to carry, far hops last, with little.",
    requires=_COMMUTES,
)
swing = dual(
    all_gather.swing,
    "Swing's all_gather backwards: peers are 1, 1, 3, 5, 11 ... hops away, the nearest come first.",
    requires=_COMMUTES,
)
neighbour_exchange = dual(
    all_gather.neighbour_exchange,
    "Pairs of partial sums go to the one neighbour and the other in turn, and the last swap parts the pairs.",
    requires=_COMMUTES,
)
