"""Strings from programs made safe to print: what a terminal would obey becomes visible instead."""

from __future__ import annotations


def legible(text: str, encoding: str = "utf-8") -> str:
    """Replace every character that does not print by its escape.

    That takes in control characters, terminal sequences, line breaks, marks that reverse the direction of
    writing, surrogates, and whatever the output's encoding cannot hold.

    Args:
        text: Any string.
        encoding: Encoding of the output.
    """
    shown = "".join(character if character.isprintable() else _escape(character) for character in text)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
