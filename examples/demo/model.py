"""A small language model of characters, and its training text, the sources of Python's standard library."""

import sysconfig
from pathlib import Path

import torch
from torch import nn

LENGTH = 64
"""Characters that the model sees at a time."""

_ASCII = 128
_MOST_CHARACTERS = 2_000_000


class CharacterModel(nn.Module):
    """Guesses the next character from those before it: an embedding, one GRU, a linear layer. 170,240 parameters."""

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        self.embed = nn.Embedding(_ASCII, 48)
        self.recur = nn.GRU(48, width, batch_first=True)
        self.guess = nn.Linear(width, _ASCII)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """characters: (batch, length) int64. Returns the logits of each next character: (batch, length, 128)."""
        states, _ = self.recur(self.embed(characters))
        logits: torch.Tensor = self.guess(states)
        return logits

    def loss(self, windows: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy of characters 1, 2, ... of each window, in nats. windows: (batch, length + 1) int64."""
        logits = self(windows[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())

    @torch.no_grad()
    def write(self, start: str, count: int, seed: int = 0) -> str:
        """`start`, continued by `count` characters drawn from what the model thinks likely."""
        generator = torch.Generator().manual_seed(seed)
        state, text, feed = None, start, torch.tensor([list(start.encode("ascii"))])
        for _ in range(count):
            states, state = self.recur(self.embed(feed), state)
            likely = torch.softmax(self.guess(states[0, -1]) / 0.7, dim=0)
            feed = torch.multinomial(likely, 1, generator=generator)[None]
            text += chr(int(feed))
        return text


def read_text() -> torch.Tensor:
    """The first two million characters of the standard library, in the order of file names: (characters,) int64."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = bytearray()
    for file in files:
        if len(text) >= _MOST_CHARACTERS:
            break
        text += file.read_bytes()
    characters = torch.frombuffer(text, dtype=torch.uint8)[:_MOST_CHARACTERS].long()
    return characters.where(characters < _ASCII, ord("?"))
