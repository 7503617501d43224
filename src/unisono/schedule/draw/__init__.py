"""Draw a table as text, as an SVG picture, still or moving, or as a page that plays it. Notebooks show them."""

from .html import html, notebook
from .moving import svg_film
from .picture import Grid, Page, Svg
from .svg import svg, svg_contract
from .text import text

__all__ = ["Grid", "Page", "Svg", "html", "notebook", "svg", "svg_contract", "svg_film", "text"]
