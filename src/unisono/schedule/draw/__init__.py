"""Draw a table as text, as an SVG picture, still or moving, or as a page that plays it. Notebooks show them."""

from .html import Page, html, notebook
from .svg import Svg, svg, svg_contract
from .text import Grid, text

__all__ = ["Grid", "Page", "Svg", "html", "notebook", "svg", "svg_contract", "text"]
