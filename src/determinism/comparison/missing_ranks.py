"""Ranks that a launcher started and that recorded nothing where the traces are, such as those on other machines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from determinism.comparison.result import BlindSpot
from determinism.trace.reader import Trace

_NUMBERED = re.compile(r"(?P<among>.*\b(?P<word>rank|task)-)(?P<number>\d+)")
_MOST_RANGES = 8


def missing_ranks(trace: Trace) -> Iterator[BlindSpot]:
    """One for each group of ranks that is not whole, as far as those that did record know how many there are."""
    found: dict[tuple[str, str], set[int]] = {}
    sizes: dict[tuple[str, str], int] = {}
    for process in trace.processes:
        numbered = _NUMBERED.fullmatch(process.key)
        if numbered is None:
            continue
        group = numbered["among"], numbered["word"]
        found.setdefault(group, set()).add(int(numbered["number"]))
        sizes[group] = max(sizes.get(group, 0), process.description.get("world_size") or 0)
    for group, numbers in found.items():
        missing = sorted(set(range(sizes[group])) - numbers)
        if missing:
            word = group[1]
            reason = (
                f"{sizes[group]:,} {word}s were started, and these recorded nothing here; where they are on another machine, "
                "record there too, each machine with --part"
            )
            yield BlindSpot(
                "ranks-missing", f"{word}{'s' * (len(missing) > 1)} {_ranges(missing)}", reason, len(missing)
            )


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in ascending order as text: `1, 4 to 7`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [f"{first}" if first == last else f"{first} to {last}" for first, last in ranges[:_MOST_RANGES]]
    return ", ".join(texts) + (" and more" if len(ranges) > _MOST_RANGES else "")
