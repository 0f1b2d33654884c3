"""Versions of frameworks, and ranges of them."""

from __future__ import annotations

import operator
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    # At run time this would cost every Python process of the program the import of `typing`.
    from collections.abc import Callable

_PARTS = 3
_COMPARISONS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": operator.ge,
    "<": operator.lt,
}
_BOUND = re.compile(r"(>=|<)(\d+(?:\.\d+)*)")


def release(version: str) -> tuple[int, ...]:
    """The first three numbers of a version; what is not there counts as 0.

    What follows them (`rc1`, `.dev20260101`, `+cpu`) does not matter: a pre-release has the settings of its release.
    """
    match = re.match(r"\s*v?(\d+(?:\.\d+)*)", version)
    numbers = [int(part) for part in match[1].split(".")] if match else []
    return tuple((numbers + [0] * _PARTS)[:_PARTS])


def is_within(version: str, bounds: str) -> bool:
    """Whether a version lies in a range.

    Args:
        version: Such as `2.13.0+cpu`.
        bounds: Such as `>=1.8,<2.10`; empty for all versions.

    Raises:
        ValueError: The range is not written like that.
    """
    for bound in filter(None, (part.strip() for part in bounds.split(","))):
        match = _BOUND.fullmatch(bound)
        if match is None:
            raise ValueError(f"{bound!r} is no bound of a range of versions; write >=2.1 or <2.10")
        if not _COMPARISONS[match[1]](release(version), release(match[2])):
            return False
    return True
