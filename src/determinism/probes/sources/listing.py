"""Listings of folders, whose order is the file system's. Fixed, they are sorted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from determinism.factors.listed_entries import Entries
from determinism.probes.source_function import Function, functions
from determinism.probes.use import Use

SOURCE = "listing"


def _as_is(value: Any) -> Any:
    return value


def _name(entry: Any) -> str:
    return str(getattr(entry, "name", entry))


def _settled(use: Use, found: list[Any], key: Callable[[Any], Any] = _as_is) -> list[Any]:
    """A listing as the program gets it; noted, unless it does not mind the order."""
    if use.is_unordered:
        return found
    if use.is_fixed:
        found = sorted(found, key=key)
    use.note(lambda: "\n".join(_name(entry) for entry in found))
    return found


def _whole(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return _settled(use, function(*arguments, **keywords))


def _one_by_one(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Iterator[Any]:
    return _later(use, function(*arguments, **keywords))


def _later(use: Use, found: Iterable[Any]) -> Iterator[Any]:
    yield from _settled(use, list(found))


def _scanned(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    with function(*arguments, **keywords) as entries:
        found = list(entries)
    return Entries(_settled(use, found, _name))


def _walked(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Iterator[Any]:
    return _each_folder(use, function(*arguments, **keywords))


def _each_folder(use: Use, folders: Iterable[Any]) -> Iterator[Any]:
    for found in folders:
        # The lists themselves are sorted, since the walk goes on through the one of folders.
        names, files = found[1], found[2]
        if use.is_fixed:
            names.sort()
            files.sort()
        if not use.is_unordered:
            use.note(lambda parts=(*names, "", *files): "\n".join(map(os.fsdecode, parts)))  # type: ignore[misc]
        yield found


FUNCTIONS = (
    *functions(SOURCE, _whole, "os", "listdir"),
    *functions(SOURCE, _scanned, "os", "scandir"),
    *functions(SOURCE, _walked, "os", "walk fwalk"),
    *functions(SOURCE, _whole, "glob", "glob"),
    *functions(SOURCE, _one_by_one, "glob", "iglob"),
    *functions(SOURCE, _one_by_one, "pathlib", "Path.iterdir Path.glob Path.rglob"),
    *functions(SOURCE, _walked, "pathlib", "Path.walk"),
)
