"""Networks as data, and what the tables of the catalogue cost on them: no messages are sent, only counted and timed."""

from .clocks import Played, Routed, play, routed
from .links import Hardware, Network
from .networks import NETWORKS, network
from .survey import Candidate, Price, Ready, candidates, price, prices, ready
from .table_messages import Messages, messages, messages_of_call
from .this_host import Timed, calibrate, known_costs, like_this_host, price_here, trusted, whole_call, without_own

__all__ = [
    "NETWORKS",
    "Candidate",
    "Hardware",
    "Messages",
    "Network",
    "Played",
    "Price",
    "Ready",
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
    "prices",
    "ready",
    "routed",
    "trusted",
    "whole_call",
    "without_own",
]  # fmt: skip
