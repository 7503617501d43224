"""Drawings of a table: text, one SVG picture, a page that plays its rounds; all are strings that notebooks show."""

from .html import html, notebook
from .picture import Grid, Page, Svg
from .svg import svg, svg_contract
from .text import text

__all__ = ["Grid", "Page", "Svg", "html", "notebook", "svg", "svg_contract", "text"]
