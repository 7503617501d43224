"""A network as data, and the costs of the catalogue's tables on it: messages are counted and timed, never sent."""

from .clocks import Played, play
from .network import Hardware, Network
from .survey import Candidate, Price, candidates, price
from .table_messages import Messages, messages

__all__ = [
    "Candidate",
    "Hardware",
    "Messages",
    "Network",
    "Played",
    "Price",
    "candidates",
    "messages",
    "play",
    "price",
]  # fmt: skip
