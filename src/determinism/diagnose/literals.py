"""Turns what a process of the program wrote into Python source: names that were checked to be names, and literals."""

from __future__ import annotations

import math
import re
from typing import Any

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def checked_name(text: Any) -> str:
    """A name as it is.

    Raises:
        ValueError: It is none.
    """
    if type(text) is not str or _NAME.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no name")
    return text


def whole(number: Any) -> int:
    """A whole number.

    Raises:
        ValueError: It is none.
    """
    if type(number) is not int:
        raise ValueError(f"{number!r} is no whole number")
    return number


def sizes(numbers: Any) -> tuple[int, ...]:
    """Whole numbers."""
    return tuple(whole(number) for number in numbers)


def real(text: Any) -> str:
    """The source of a number that was written as hexadecimal digits."""
    number = float.fromhex(text)
    return repr(number) if math.isfinite(number) else f"float({str(number)!r})"


def printable(text: str) -> str:
    """A text of which a terminal prints every character as it is."""
    return "".join(part if part.isprintable() else ascii(part)[1:-1] for part in text)
