"""Networks as data, and the costs of the catalogue's tables on them: messages are counted and timed, never sent."""

from .clocks import Played, Routed, play, routed
from .networks import NETWORKS, Hardware, Network, network
from .survey import Candidate, Price, candidates, price
from .table_messages import Messages, messages, messages_of_call
from .this_host import Timed, calibrate, known_costs, like_this_host, price_here, trusted

__all__ = [
    "NETWORKS",
    "Candidate",
    "Hardware",
    "Messages",
    "Network",
    "Played",
    "Price",
    "Routed",
    "Timed",
    "calibrate",
    "candidates",
    "known_costs",
    "like_this_host",
    "messages",
    "messages_of_call",
    "network",
    "play",
    "price",
    "price_here",
    "routed",
    "trusted",
]  # fmt: skip
