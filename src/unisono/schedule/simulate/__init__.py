"""Networks as data, and the costs of the catalogue's tables on them: messages are counted and timed, never sent."""

from .clocks import Played, play
from .networks import NETWORKS, Hardware, Network, network
from .survey import Candidate, Price, candidates, price
from .table_messages import Messages, messages

__all__ = [
    "NETWORKS",
    "Candidate",
    "Hardware",
    "Messages",
    "Network",
    "Played",
    "Price",
    "candidates",
    "messages",
    "network",
    "play",
    "price",
]  # fmt: skip
