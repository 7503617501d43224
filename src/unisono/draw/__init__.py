"""Pictures of a table: as text, as one SVG picture, as a page that plays its rounds."""

from .html import html
from .svg import svg, svg_contract
from .text import text

__all__ = ["html", "svg", "svg_contract", "text"]
