"""Networks as data, and what the tables of the catalogue cost on them: no messages are sent, only counted and timed."""

from .atlas import Atlas, atlas, atlas_text
from .clocks import Played, Routed, play, routed
from .messages import Messages, messages, messages_of_call
from .named import NETWORKS, network
from .network import Hardware, Network
from .referee import referee
from .survey import Candidate, Price, Ready, candidates, price, ready, survey
from .this_host import Timed, calibrate, known_costs, like_this_host, price_here, trusted, whole_call, without_own
from .workers import prices

__all__ = [
    "NETWORKS", "Atlas", "Candidate", "Hardware", "Messages", "Network", "Played", "Price", "Ready", "Routed", "Timed",
    "atlas", "atlas_text", "calibrate", "candidates", "known_costs", "like_this_host", "messages", "messages_of_call",
    "network", "play", "price", "price_here", "prices", "ready", "referee", "routed", "survey", "trusted",
    "whole_call", "without_own",
]  # fmt: skip
