"""Steps of mailboxes of several ranks in one process, so that every interleaving can be made by hand."""

import torch

from unisono.engine.mailbox import Mailbox, Receive, Send

RING = 4096
Boxes = list[Mailbox]


def values(count: int, seed: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return (torch.arange(count) * 7 + seed * 1_000_003).to(dtype)


def send(box: Mailbox, tensor: torch.Tensor, to: int, tag: int = 0) -> Send:
    request = Send(tensor, to, tag)
    box.submit(request)
    return request


def receive(box: Mailbox, tensor: torch.Tensor | None, source: int, tag: int = 0) -> Receive:
    request = Receive(tensor, source, tag)
    box.submit(request)
    return request


def run(*boxes: Mailbox) -> None:
    """Let them move all that there is."""
    while sum(box.progress() for box in boxes):
        pass
