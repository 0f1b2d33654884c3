"""Finds the ops that somebody means: by a name, a kernel, or the text of an error."""

from __future__ import annotations

from collections.abc import Iterable

from determinism.knowledge.index import Entry, Index, index
from determinism.knowledge.names import key_of, last_part

_ALERT = " does not have a deterministic implementation"
_SHORTEST_PART_OF_A_TEXT = 8
_MOST_SUGGESTIONS = 5
_NEAR_ENOUGH = 0.7
_LONGEST_NAME = 200


def entries_for(text: str, framework: str | None = None) -> list[Entry]:
    """The ops that a text means, in the order of the data; none if it means none.

    Tried in this order: a whole name; a kernel or the text of an alert; the last part of a name, if the text has no dots.

    Args:
        text: A name, a kernel's name, or a message that holds one.
        framework: Only ops with statuses of this framework.
    """
    everything = index()
    for numbers in (_by_name(text, everything), _by_text(text, everything), _by_last_part(text, everything)):
        entries = [everything.entries[number] for number in sorted(set(numbers))]
        held = [entry for entry in entries if framework is None or is_of(entry, framework)]
        if held:
            return held
    return []


def is_of(entry: Entry, framework: str) -> bool:
    """Whether an op is one of a framework. A container has all ops of the framework within it."""
    return framework in entry.frameworks or (framework == "ngc-tensorflow" and "tensorflow" in entry.frameworks)


def near_names(text: str, framework: str | None = None) -> list[str]:
    """Names of ops that are called something like a text, the nearest first."""
    from difflib import get_close_matches

    everything = index()
    ops: dict[str, dict[str, None]] = {}
    for key, numbers in everything.names.items():
        entries = [everything.entries[number] for number in numbers]
        names = {entry.name: None for entry in entries if framework is None or is_of(entry, framework)}
        for spelling in (key, last_part(key)) if names else ():
            ops.setdefault(spelling, {}).update(names)
    wanted = key_of(text[:_LONGEST_NAME])
    near = [
        *get_close_matches(wanted, ops, _MOST_SUGGESTIONS, _NEAR_ENOUGH),
        *get_close_matches(last_part(wanted), ops, _MOST_SUGGESTIONS, _NEAR_ENOUGH),
    ]
    return list(dict.fromkeys(name for key in near for name in ops[key]))[:_MOST_SUGGESTIONS]


def _by_name(text: str, everything: Index) -> list[int]:
    return everything.names.get(key_of(text), [])


def _by_text(text: str, everything: Index) -> list[int]:
    lowered = " ".join(text.lower().split())
    before, alert, _ = lowered.partition(_ALERT)
    for candidate in (lowered, before.rpartition(": ")[2] if alert else ""):
        if candidate in everything.texts:
            return everything.texts[candidate]
    held = [known for known in everything.texts if len(known) >= _SHORTEST_PART_OF_A_TEXT and known in lowered]
    return _of_longest(held, everything)


def _of_longest(texts: Iterable[str], everything: Index) -> list[int]:
    longest = max(texts, key=len, default=None)
    return [] if longest is None else everything.texts[longest]


def _by_last_part(text: str, everything: Index) -> list[int]:
    key = key_of(text)
    if "." in key or not key:
        return []
    return [number for known, numbers in everything.names.items() if last_part(known) == key for number in numbers]
