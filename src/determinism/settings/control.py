"""A setting of a framework that can be read and written while the program runs."""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


@dataclass(frozen=True)
class Control:
    """How to read and write one setting; both raise AttributeError or ImportError if this version has none."""

    read: Callable[[], Any]
    write: Callable[[Any], None]
