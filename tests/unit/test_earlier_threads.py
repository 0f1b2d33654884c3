"""Threads from before recording began are one blind spot."""

from __future__ import annotations

import pytest

from determinism.frameworks.earlier_threads import note_earlier_threads


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([], None),
        (["reader"], ("reader", "it began before the framework was imported, and its ops are not recorded")),
        (["a", "b"], ("a, b", "they began before the framework was imported, and their ops are not recorded")),
        (
            [*"abcdefghij"],
            (
                "a, b, c, d, e, f, g, h and 2 more",
                "they began before the framework was imported, and their ops are not recorded",
            ),
        ),
    ],
)
def test_threads_are_told_as_one(names: list[str], told: tuple[str, str] | None) -> None:
    spots: list[tuple[str, str]] = []

    class Writer:
        def blind_spot(self, identifier: str, what: str, reason: str) -> None:
            spots.append((what, reason))

    note_earlier_threads(Writer(), names)  # type: ignore[arg-type]
    assert spots == ([] if told is None else [told])
