"""Gives directory listings in one order, or in another one in each run."""

from __future__ import annotations

import os

from determinism.factors.listed_entries import Entries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from determinism.factors.request import FactorRequest


def start(request: FactorRequest) -> None:
    """Replace `os.listdir` and `os.scandir`, on which `os.walk`, `glob` and `pathlib` build."""
    arrange = _Arrangement(request)
    listdir, scandir = os.listdir, os.scandir

    def arranged_listdir(path: Any = None) -> list[Any]:
        return arrange(listdir(path), os.fsdecode)

    def arranged_scandir(path: Any = None) -> Entries:
        with scandir(path) as entries:
            return Entries(arrange(list(entries), lambda entry: os.fsdecode(entry.name)))

    os.listdir = arranged_listdir
    os.scandir = arranged_scandir  # type: ignore[assignment]


class _Arrangement:
    def __init__(self, request: FactorRequest) -> None:
        self._is_fixed = request.is_fixed("listings")
        self._number = request.number

    def __call__(self, found: list[Any], name: Any) -> list[Any]:
        found.sort(key=name)
        if self._is_fixed:
            return found
        # Not from `random`, whose state is the program's. Turning and reversing gives every small listing another order.
        turn = self._number % len(found) if found else 0
        found = found[turn:] + found[:turn]
        return found[::-1] if self._number % 2 else found
