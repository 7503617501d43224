"""Draw a table as text, as an SVG picture, or as a page that plays its rounds. Notebooks display the results."""

from .html import html, notebook
from .picture import Grid, Page, Svg
from .svg import svg, svg_contract
from .text import text

__all__ = ["Grid", "Page", "Svg", "html", "notebook", "svg", "svg_contract", "text"]
