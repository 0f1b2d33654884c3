"""Stands for the iterator of `os.scandir`, once its entries were brought into an order."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    # At run time this would cost every Python process of the program the import of `typing`.
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Any


class Entries:
    """The entries of a folder; a context, as that iterator is."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the listing."""
        self._entries = iter(())
