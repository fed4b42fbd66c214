"""Reading a report's page as a browser does, as far as tests need it."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "link", "input"}


class ReadPage(HTMLParser):
    """What a page holds; raises ``AssertionError`` where an element is not closed in order.

    Attributes:
        elements: names and attributes, in order.
        text: of all elements but the style, with single spaces.
        cells: rows of every table.
        style: all of the style sheets and style attributes.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.cells: list[list[str]] = []
        self.style = ""
        self._open: list[str] = []
        self._texts: list[str] = []
        assert page.startswith("<!doctype html>")
        self.feed(page)
        self.close()
        assert self._open == []

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._texts).split())

    def values(self, attribute: str) -> list[str]:
        """Of an attribute, wherever it stands."""
        return [found[attribute] for _, found in self.elements if attribute in found]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.elements.append((tag, found))
        self.style += found.get("style", "")
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            self.style += data
            return
        self._texts.append(data)
        if {"td", "th"} & set(self._open):
            self.cells[-1][-1] += data
