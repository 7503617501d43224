"""Simulated ranks, a thread each, which take turns. A send waits for its receive, as that of a long message does.

A clock counts rounds: in a round a rank sends one message and receives one.
"""

from __future__ import annotations

import inspect
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch


class Here(NamedTuple):
    """A rank of a real group, as an answer sees it."""

    rank: int
    ranks: int
    send: Callable[[torch.Tensor, int], None]
    recv: Callable[[torch.Tensor, int], Any]
    isend: Callable[[torch.Tensor, int], Any]


Answer = Callable[[Any, torch.Tensor], None]
Wait = tuple[Callable[[], object], str, int]
"""May the rank go on? In what does it wait, and for whom?"""


class Mistake(AssertionError):
    """A usual mistake: its name, and where it shows."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(f"{name}: {where}")
        self.name, self.where = name, where


class World:
    """What all ranks share. blocked: the ranks that wait. by_element: a round lasts as long as its elements."""

    def __init__(self, ranks: int, *, by_element: bool = False) -> None:
        self.by_element = by_element
        self.lock, self.turn = threading.Condition(), 0
        self.mistake: Mistake | None = None
        self.messages: list[Message] = []
        self.nets = [Net(self, rank, ranks) for rank in range(ranks)]
        self.blocked: dict[int, Wait] = {rank: (lambda: True, "", rank) for rank in range(ranks)}

    def run(self, answer: Answer, tensors: list[torch.Tensor]) -> None:
        """Let each rank run the answer on its tensor."""
        pairs = zip(self.nets, tensors, strict=True)
        threads = [threading.Thread(target=self.work, args=(answer, *pair)) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for left in self.messages:
            if not (left.received and left.waited):
                name = "nobody waits for it" if left.received else "nobody receives it"
                self.mistake = self.mistake or Mistake(name, f"rank {left.src} sends to rank {left.dst} ({left.line})")
        if self.mistake:
            raise self.mistake

    @property
    def end(self) -> int:
        """In which round the last rank has ended."""
        return max(net.now for net in self.nets)

    def pairs(self) -> set[tuple[int, int]]:
        """Who has sent to whom, or waits for whom."""
        waits = ((peer, rank) if "receive" in what else (rank, peer) for rank, (_, what, peer) in self.blocked.items())
        return {*waits, *((m.src, m.dst) for m in self.messages)}

    def work(self, answer: Answer, net: Net, tensor: torch.Tensor) -> None:
        with self.lock:
            try:
                self.take_turn(net.rank)
                answer(net, tensor)
            except Mistake as mistake:
                self.mistake = self.mistake or mistake
            except NotImplementedError:
                self.mistake = Mistake("not written yet", answer.__name__)
            except Exception as error:  # noqa: BLE001  an answer may raise anything
                line = traceback.extract_tb(error.__traceback__)[-1].lineno
                self.mistake = Mistake("an exception", f"rank {net.rank}, line {line}: {error!r}")
            self.pass_on()

    def wait(self, rank: int, ready: Callable[[], object], what: str, peer: int) -> None:
        """Let other ranks run until this one is ready."""
        self.blocked[rank] = ready, f"{what} rank {peer} ({_line()})", peer
        self.pass_on()
        self.take_turn(rank)

    def take_turn(self, rank: int) -> None:
        self.lock.wait_for(lambda: self.turn == rank or self.mistake)
        if self.mistake:
            raise self.mistake
        del self.blocked[rank]

    def pass_on(self) -> None:
        """It is the turn of the first rank that may go on. If there is none, ranks wait for ever."""
        able = [rank for rank, (ready, _, _) in sorted(self.blocked.items()) if ready()]
        if able:
            self.turn = able[0]
        elif self.blocked and not self.mistake:
            waits = [f"rank {rank} waits in a {what}" for rank, (_, what, _) in sorted(self.blocked.items())]
            kinds = {what.split()[0] for _, what, _ in self.blocked.values()}
            name = "a circle of waits" if len(kinds) > 1 else f"all {kinds.pop()} first"
            if any(peer not in self.blocked for _, _, peer in self.blocked.values()):
                name = "waits for a rank that has ended"
            self.mistake = Mistake(name, "; ".join(waits))
        self.lock.notify_all()


@dataclass
class Message:
    """Also what `isend` returns. ready, taken: the rounds in which it has left, and has come."""

    net: Net
    dst: int
    line: str
    tensor: torch.Tensor
    content: torch.Tensor
    heard: set[int]
    ready: int
    taken: int = 0
    received: bool = False
    waited: bool = False

    @property
    def src(self) -> int:
        return self.net.rank

    def wait(self) -> None:
        """Return when the message has been received."""
        self.waited = True
        self.net.world.wait(self.src, lambda: self.received, "send to", self.dst)
        if not torch.equal(self.tensor, self.content):
            raise Mistake("changed while it was sent", f"rank {self.src} to rank {self.dst} ({self.line})")
        self.net.now = max(self.net.now, self.taken)


class Net:
    """A rank's view. heard: the ranks that it can know to have begun."""

    def __init__(self, world: World, rank: int, ranks: int) -> None:
        self.world, self.rank, self.ranks = world, rank, ranks
        self.now = self.sending = 0
        self.heard = {rank}

    def isend(self, tensor: torch.Tensor, dst: int) -> Message:
        """Start to send. The tensor must not change before `wait()` of the result has returned."""
        self.check(dst)
        self.sending = max(self.now, self.sending) + self.cost(tensor)
        message = Message(self, dst, _line(), tensor, tensor.clone(), set(self.heard), self.sending)
        self.world.messages.append(message)
        return message

    def send(self, tensor: torch.Tensor, dst: int) -> None:
        """Send, and return when the message has been received."""
        self.isend(tensor, dst).wait()

    def recv(self, tensor: torch.Tensor, src: int) -> None:
        """Put the next message of rank `src` into the tensor."""
        self.check(src)

        def coming() -> list[Message]:
            return [m for m in self.world.messages if (m.src, m.dst) == (src, self.rank) and not m.received]

        self.world.wait(self.rank, coming, "receive from", src)
        message = coming()[0]
        if message.content.numel() != tensor.numel():
            sizes = f"{message.content.numel()} elements ({message.line}) into {tensor.numel()} ({_line()})"
            raise Mistake("another size", f"rank {src} to rank {self.rank}: {sizes}")
        tensor.copy_(message.content.view_as(tensor))
        message.received = True
        message.taken = self.now = max(message.ready, self.now + self.cost(tensor))
        self.heard |= message.heard

    def cost(self, tensor: torch.Tensor) -> int:
        return tensor.numel() if self.world.by_element else 1

    def check(self, peer: int) -> None:
        if not 0 <= peer < self.ranks:
            raise Mistake("no such rank", f"rank {self.rank} asks for rank {peer} of {self.ranks} ({_line()})")
        if peer == self.rank:
            raise Mistake("a message to itself", f"rank {peer} ({_line()})")


def _line() -> str:
    """The line of the answer that is being run."""
    frame = next(each for each in inspect.stack(context=0) if each.filename != __file__)
    return f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
