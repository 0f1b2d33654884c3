"""Parses a page into its tags, strictly: tags that do not nest are an error."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "img", "input", "hr", "base"}
_SELF_CLOSED_IN_DRAWINGS = {"line", "rect", "circle", "path", "polyline"}


class Page(HTMLParser):
    """The elements of a page, in the order in which they occur.

    Raises:
        AssertionError: A tag is closed that is not open, or is never closed.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._element(tag, attrs)
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _SELF_CLOSED_IN_DRAWINGS, tag
        self._element(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> closes <{self._open[-1:]}>, line {self.getpos()}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def _element(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    @property
    def text(self) -> str:
        """The text of the page, on one line."""
        return " ".join(" ".join(self.texts).split())
