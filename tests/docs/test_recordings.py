"""The recordings and pictures in the docs are what the programs show now."""

import html
import re
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from tests.docs.recordings import ALL, DOCS
from tests.support.browser import missing


def words(svg: bytes) -> set[str]:
    """The words of the terminal, without numbers, times and frames."""
    shown = html.unescape(" ".join(re.findall(r"<text [^>]*>(.*?)</text>", svg.decode())))
    return set(re.sub(r"[─╭╮╰╯│\d.]+|\b[nµm]?s\b", "", shown).split())


def grey(png: bytes) -> np.ndarray:
    """The picture in small, so that letters of another font look alike."""
    with Image.open(BytesIO(png)) as picture:
        return np.asarray(picture.convert("L").resize((64, 64)), dtype=np.int16)


@pytest.mark.parametrize("name", ALL)
def test_made_again(name: str) -> None:
    """`python -m tests.docs.recordings` makes them."""
    if name.endswith(".png") and missing():
        pytest.skip(missing())
    kept, made = (DOCS / name).read_bytes(), ALL[name]()
    if name.endswith(".png"):
        assert np.abs(grey(kept) - grey(made)).mean() < 1
    elif name == "doctor.svg":
        assert words(kept) <= words(made)
    else:
        assert kept == made
