"""Pages of Markdown as their blocks of code, and blocks run as a reader would run them."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.support.programs import run_python

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(?P<info>\w[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code. "python torchrun=2 --max-restarts=1" is Python, to be started by torchrun with two ranks.

    launcher: the words of torchrun; empty: it is not used.
    output: what it prints, if the next block of the page says so (language "output").
    """

    page: str
    line: int
    language: str
    text: str
    launcher: tuple[str, ...]
    output: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    matches = list(_BLOCK.finditer(text))
    found = []
    for match, after in zip(matches, [*matches[1:], None], strict=True):
        language, _, options = match["info"].partition(" ")
        shown = after["text"] if after and after["info"] == "output" else None
        launcher = tuple(options.replace("torchrun=", "--nproc-per-node=").split())
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(str(page.relative_to(ROOT)), line, language, match["text"], launcher, shown))
    return found


def run(block: Block, folder: Path) -> str:
    """What a block of Python prints, run as script.py in this folder; it must end well. The folder is left out."""
    script = folder / "script.py"
    script.write_text(block.text)
    launcher = ["-m", "torch.distributed.run", "--standalone", *block.launcher] if block.launcher else []
    done = run_python(*launcher, script, cwd=folder)
    assert done.returncode == 0, f"{block}\n{done.stderr}"
    return done.stdout.replace(f"{folder}/", "")
