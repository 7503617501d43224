"""Drawings as strings that notebooks display as pictures."""

from __future__ import annotations

from html import escape


class Grid(str):
    """A drawing as plain text."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self)}</pre>"


class Svg(str):
    """A drawing as SVG source."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)


class Page(str):
    """A drawing as the source of an HTML page. A notebook displays it in a frame."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        style = "width:100%;height:36rem;border:0"
        return f'<iframe srcdoc="{escape(self)}" sandbox="allow-scripts" style="{style}"></iframe>'
