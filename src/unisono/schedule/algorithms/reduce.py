"""reduce: the root gets the sum of all vectors. Each is a broadcast transposed. Naive first."""

from . import broadcast
from .catalogue import dual

linear = dual(
    broadcast.linear,
    "Each rank sends its vector to the root, which adds them up in rank order.",
    sent="m",
    wins="inside a host, where the root can read the memory of all ranks",
)
binomial = dual(
    broadcast.binomial,
    "Half of the ranks that have a sum send it to the other half, until only the root has one.",
    sent="m",
)
knomial = dual(
    broadcast.knomial,
    "One of k ranks that have a sum gets the sums of the others, until only the root has one.",
    sent="m",
)
bine = dual(
    broadcast.bine,
    "The Bine tree backwards: sums come from both sides of the ring at once.",
    sent="m",
    requires=("commutative",),
)
chain = dual(
    broadcast.chain,
    "The linear pipeline backwards: sums of segments go from rank to rank towards the root.",
    wins="large tensors and few ranks",
    requires=("commutative",),
)
reduce_scatter_gather = dual(
    broadcast.scatter_all_gather,
    "A reduce_scatter, whose blocks the root then gathers.",
    name="reduce_scatter_gather",
    sent="m",
    source="Rabenseifner 2004",
    requires=("commutative",),
)
double_binary_tree = dual(
    broadcast.double_binary_tree,
    "Half of the segments go up one binary tree, half up another; a leaf of one is an inner node of the other.",
    requires=("commutative",),
)
circulant = dual(
    broadcast.circulant,
    "The circulant broadcast of n blocks backwards: each rank sends and adds a block in every round.",
    sent="m",
    requires=("commutative",),
)
