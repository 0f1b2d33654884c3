"""What two runs noted about the sources that they used, and which of these differ, in order of execution."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from determinism.run_spec import FIRST_NOTED, NOTES_SUFFIX, FixedSource
from determinism.trace.schema import Frame, family

# Reads what the processes of one run noted about the sources that they used.

MAIN_THREAD = "MainThread"
_MOST_LINES = 300_000
_MOST_BYTES = 1_000_000
"""Of one line; the recorder writes none longer."""


@dataclass(frozen=True)
class Unprobed:
    """A module of the user that ran unmodified, so that nothing was noted in it."""

    file: str
    module: str
    reason: str


@dataclass
class Series:
    """The uses of a source at one site by one thread, in order; threads other than the main one are combined."""

    notes: list[dict[str, Any]] = field(default_factory=list)
    count: int = 0


Site = tuple[str, str, int, int]
"""A source, and the file, line and column where it was used."""
Place = tuple[str, str, int, int, str]
"""The same, with the thread: the main one, or an empty name for all others."""


@dataclass
class ProcessNotes:
    """The notes of one process."""

    series: dict[Place, Series] = field(default_factory=dict)
    unprobed: list[Unprobed] = field(default_factory=list)
    drawn: dict[str, str] = field(default_factory=dict)
    """The states in which it left the global generators of Python and NumPy, as far as it changed them; as digests."""


def unprobed_modules(folder: Path) -> list[Unprobed]:
    """Return the user's modules in which nothing could be noted."""
    return list(dict.fromkeys(one for key in sorted(process_keys(folder)) for one in read_notes(folder, key).unprobed))


def unseeded_generators(first: Path, second: Path) -> list[str]:
    """Return which global generators, `numpy` or `python`, processes drew from and left in another state in each of two runs."""
    keys = sorted(process_keys(first) & process_keys(second))
    drawn = [(read_notes(first, key).drawn, read_notes(second, key).drawn) for key in keys]
    return sorted({name for one, other in drawn for name in one.keys() & other.keys() if one[name] != other[name]})


def process_keys(folder: Path) -> set[str]:
    """Return the keys of the processes that took notes in a folder."""
    return {path.name[: -len(NOTES_SUFFIX)] for path in folder.glob(f"*{NOTES_SUFFIX}")}


def read_notes(folder: Path, key: str) -> ProcessNotes:
    """Return what a process noted, without truncated lines.

    Args:
        folder: With the notes of a run.
        key: One of `process_keys`.
    """
    result = ProcessNotes()
    for document in _documents(folder / f"{key}{NOTES_SUFFIX}"):
        if "unprobed" in document:
            result.unprobed.append(Unprobed(document["unprobed"], document["module"], document["reason"]))
        elif "drawn" in document:
            result.drawn = document["drawn"]
        elif "source" in document:
            thread = MAIN_THREAD if document["thread"] == MAIN_THREAD else ""
            place = (document["source"], document["file"], document["line"], document["column"], thread)
            series = result.series.setdefault(place, Series())
            if "count" in document:
                series.count = max(series.count, document["count"])
            else:
                series.notes.append(document)
                series.count = max(series.count, document["occurrence"] + 1)
    return result


def _documents(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of a file; the file of a killed process may end in the middle of one."""
    with path.open("rb") as file:
        for _ in range(_MOST_LINES):
            line = file.readline(_MOST_BYTES)
            if not line:
                return
            try:
                document = json.loads(line)
            except ValueError:
                continue
            if isinstance(document, dict):
                yield document


TIMED = frozenset({"completion-order", "loader-order", "queue-order", "timer"})
"""Sources that depend on timing, so that two runs may have the same values by chance."""


@dataclass(frozen=True)
class SourceSite:
    """The expression in user code where a source was used."""

    file: str
    line: int
    column: int
    """Of the expression's first byte in its line, in UTF-8."""
    end_line: int
    end_column: int
    """After the last byte."""
    function: str
    code: str
    name_line: int = 0
    """The line of the called name, which in a chain of calls is not where the expression begins; 0 if it is."""

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Where the expression begins and ends."""
        return self.line, self.column, self.end_line, self.end_column

    @property
    def frame(self) -> Frame:
        """The line, as reports have it."""
        return Frame(self.file, self.name_line or self.line, self.function, self.code)


@dataclass(frozen=True)
class LedBy:
    """A line of the program that led to what a library does, and how to pass a seed there."""

    site: SourceSite
    """The call."""
    argument: str | None = None
    """The parameter that takes a seed or a generator; None if unknown."""
    is_declared: bool = False
    """Whether the function called on that line has the parameter itself, rather than passing it on."""
    method: str | None = None
    """The method that seeds the object which that line draws from; None if it has none, or an argument seeds it."""
    is_made: bool = False
    """Whether that line makes the object, rather than draws from it."""


@dataclass(frozen=True)
class Source:
    """A source that two runs used at one site, and whose values differ or may differ."""

    source: str
    """Its identifier."""
    site: SourceSite
    process: str
    """Key of the process among those that took notes; if several used it, of the first."""
    recorded_as: str | None
    """Its key in the trace, if it was recorded."""
    thread: str
    counts: tuple[int, int]
    """How often, at least, each run used it there."""
    differs: bool | None
    """Whether its values differ; None if that cannot be determined; False if they may in other runs."""
    occurrence: int
    """Number of the first use that differs, from 0."""
    records: tuple[int, int]
    """How many records each run's recorder had made in this process before the first use that differs."""
    shown: tuple[str | None, str | None]
    """The beginning of each run's value as text."""
    elements: str | None = None
    """For a set: what its elements are; see `determinism.probes.runtime.Elements`."""
    key: str | None = None
    """For a set of objects: the attribute to sort them by."""
    argument: str | None = None
    """For a set that is passed to a call: number or keyword of the argument."""
    records_at_first: int = 0
    """How many records the first run's recorder had made in this process before the very first use."""
    apart: int = 1
    """How many processes of the first run used it there, each with its own values."""
    is_in_library: bool = False
    """Whether a library used it."""
    led_by: tuple[LedBy, ...] = ()
    """The lines of the program that led a library there, each with values that differ between runs; those known to take a seed first."""
    program: str | None = None
    """For output of another program: that program's name."""


# Answers of other programs and databases: only answers to the same question can be compared.

ANSWERED = frozenset({"program-output", "query-result"})
_SHOWN = 60


def use_text(source: Source) -> str:
    """Describe in a sentence what was seen of a source."""
    if source.source in ANSWERED and source.differs:
        asked = "The query" if source.program is None else f"The program {source.program}"
        gave, same = ("returned", "text") if source.program is None else ("printed", "arguments")
        return f"{asked} {gave} something different in two further runs, with the same {same}."
    times = "once" if max(source.counts) == 1 else f"{max(source.counts):,} times"
    used = f"{source.source} was used there {times}"
    if source.differs is False:
        return f"{used}; its result depends on timing, and was the same in two further runs."
    if source.differs is None:
        return f"{used}; whether its values differ is not known."
    if None in source.shown:
        return f"{used}, with different values in two further runs."
    first, second = (" ".join(str(text).split())[:_SHOWN] for text in source.shown)
    return f"{used}, with different values in two further runs: {first} and {second}."


def differing_sources(first: Path, second: Path) -> list[Source]:
    """Return the sources whose values in two runs differ or cannot be compared, in order of execution.

    They are followed by sources that were equal but depend on timing: those may differ in other runs.

    Returns:
        Each source once per site; by process, then in the order of the first run's first difference. Sites that only
        one run reached are left out: that is the consequence of another difference.
    """
    found: dict[Site, Source] = {}
    same: dict[Site, Source] = {}
    used: dict[Site, list[str | None]] = {}
    families = _Families(first, second)
    for key in sorted(process_keys(first) & process_keys(second), key=lambda key: (key.count("."), len(key), key)):
        one, other = read_notes(first, key), read_notes(second, key)
        ordered = []
        for place in [place for place in one.series if place in other.series]:
            series = one.series[place]
            used.setdefault(place[:4], []).append(series.notes[0]["digest"])
            difference = _difference(place, series, other.series[place])
            if difference is not None and difference[1] and place[0] not in TIMED:
                difference = families.difference(key, place, series, difference[0])
            if difference is not None:
                ordered.append((series.notes[difference[0]]["number"], place, *difference))
            elif place[0] in TIMED:
                same.setdefault(place[:4], _source(key, place, series, other.series[place], 0, False))
        for _, place, index, differs in sorted(ordered, key=lambda entry: entry[0]):
            source = _source(key, place, one.series[place], other.series[place], index, differs)
            found.setdefault(place[:4], source)
    differing = [replace(source, apart=_apart(used[place])) for place, source in found.items()]
    return [*differing, *(source for place, source in same.items() if place not in found)]


def _apart(values: Sequence[str | None]) -> int:
    """Return how many processes had their own values, given each one's first; unknown values count as different."""
    return len(values) if None in values else len(set(values))


def places_used(folder: Path) -> frozenset[FixedSource]:
    """Return which sources a run used, and at which lines, whether or not their values differ."""
    places = (place for key in process_keys(folder) for place in read_notes(folder, key).series)
    return frozenset(FixedSource(file, line, source) for source, file, line, *_ in places)


def seeding_calls(folder: Path, library: str) -> list[tuple[SourceSite, int]]:
    """Return where the program seeded the generators of a library, perhaps through another one, and how many records it had made before."""
    found: dict[SourceSite, int] = {}
    for key in sorted(process_keys(folder)):
        for series in read_notes(folder, key).series.values():
            for note in series.notes:
                if note["source"] == "seed-value" and library in (note.get("seeds") or ()):
                    found.setdefault(_site(note.get("led", note)), note["records"])
    return list(found.items())


def _difference(place: Place, first: Series, second: Series) -> tuple[int, bool | None] | None:
    """Return which use differs first, and whether it is known to differ; None if none does."""
    untold = None
    if place[4] != MAIN_THREAD:
        return _difference_of_many(first, second)
    others = {note["occurrence"]: note for note in second.notes}
    for index, note in enumerate(first.notes):
        other = others.get(note["occurrence"])
        if other is None or note.get("asked") != other.get("asked"):
            continue
        if None not in (note["digest"], other["digest"]) and note["digest"] != other["digest"]:
            return index, True
        if untold is None and (note["digest"] is None or other["digest"] is None or note.get("partial")):
            untold = index
    return None if untold is None else (untold, None)


def _difference_of_many(first: Series, second: Series) -> tuple[int, bool | None] | None:
    """Do the same where threads share the work, and which thread does what is unknown."""
    asked = {note.get("asked") for note in second.notes}
    ours, theirs = _values([note for note in first.notes if note.get("asked") in asked]), _values(second.notes)
    extra = _extra(ours, theirs)
    if not extra:
        is_untold = ours[None] or theirs[None] or any(note.get("partial") for note in first.notes)
        return (0, None) if is_untold else None
    return next(index for index, note in enumerate(first.notes) if note["digest"] in extra), True


_Values = Counter[str | None]


def _values(notes: Sequence[dict[str, Any]]) -> _Values:
    return Counter(note["digest"] for note in notes)


def _extra(ours: _Values, theirs: _Values) -> _Values:
    """Return the values that the first of two runs had more often, if the second had others instead."""
    extra = ours - theirs
    return extra if theirs - ours else _Values()


def is_interchangeable(process: str) -> bool:
    """Whether another process may do this one's work in another run, as the workers of a pool may."""
    return family(process) != process


@dataclass
class _Shared:
    """What the processes of one family noted at a site in one run."""

    values: dict[str, _Values] = field(default_factory=dict)
    """By process."""
    is_sampled: bool = False
    """Whether a process used the source so often that it did not note every use."""
    is_partial: bool = False

    @property
    def total(self) -> _Values:
        """The values of all processes together."""
        return sum(self.values.values(), _Values())


class _Families:
    """The processes of two runs by family, within which it is unknown which process does what."""

    def __init__(self, first: Path, second: Path) -> None:
        """Take the folders with the notes of the runs. Only the names of the files are read."""
        self._folders = (first, second)
        self._members: dict[str, tuple[list[str], list[str]]] = {}
        for run, folder in enumerate(self._folders):
            for key in sorted(process_keys(folder)):
                self._members.setdefault(family(key), ([], []))[run].append(key)
        self._last: tuple[str, tuple[dict[Place, _Shared], dict[Place, _Shared]]] = ("", ({}, {}))
        """The last requested family, and what each run noted in it."""

    def difference(self, key: str, place: Place, series: Series, index: int) -> tuple[int, bool | None] | None:
        """Decide whether what a process noted at a site differs, whichever process of the family did its work in the other run.

        Args:
            key: Of the process.
            place: With a source that differs when only this process is compared.
            series: What the process noted in the first run.
            index: Of the first use that then differs.

        Returns:
            Which use differs first, and whether it is known to differ; None if it is not this process that differs.
        """
        kin = family(key)
        members = self._members[kin]
        if len({*members[0], *members[1]}) < 2:
            return index, True
        if self._last[0] != kin:
            self._last = (kin, (self._noted(0, members[0]), self._noted(1, members[1])))
        first, second = self._last[1][0][place], self._last[1][1][place]
        ours, theirs = first.total, second.total
        extra = _extra(ours, theirs)
        if (first.is_sampled or second.is_sampled) and 2 * (ours & theirs).total() >= min(ours.total(), theirs.total()):
            # Which of many uses are noted depends on which process makes them.
            extra = _Values()
        if not extra:
            return (index, None) if ours[None] or theirs[None] or first.is_partial else None
        own = next((at for at, note in enumerate(series.notes) if note["digest"] in extra), None)
        if own is not None:
            return own, True
        # The difference is another process's, if that process is in both runs.
        is_told = any(values & extra for one, values in first.values.items() if one in second.values)
        return None if is_told else (index, True)

    def _noted(self, run: int, keys: Sequence[str]) -> dict[Place, _Shared]:
        found: dict[Place, _Shared] = {}
        for key in keys:
            for place, series in read_notes(self._folders[run], key).series.items():
                shared = found.setdefault(place, _Shared())
                shared.values[key] = _values(series.notes)
                shared.is_sampled |= series.count > FIRST_NOTED
                shared.is_partial |= any(note.get("partial") for note in series.notes)
        return found


def _source(process: str, place: Place, first: Series, second: Series, index: int, differs: bool | None) -> Source:
    note = first.notes[index]
    other = next((one for one in second.notes if one["occurrence"] == note["occurrence"]), second.notes[0])
    return Source(
        source=place[0],
        site=_site(note),
        process=process,
        recorded_as=note.get("recorded_as"),
        thread=note["thread"],
        counts=(first.count, second.count),
        differs=differs,
        occurrence=note["occurrence"],
        records=(note["records"], other["records"]),
        shown=(note["shown"], other["shown"]),
        elements=note.get("elements"),
        key=note.get("key"),
        argument=note.get("argument"),
        records_at_first=first.notes[0]["records"],
        is_in_library=note.get("is_in_library", False),
        program=note.get("program"),
        led_by=tuple(
            sorted(dict.fromkeys(_led_by(first.notes[index:], second.notes)), key=lambda led: not led.is_declared)
        ),
    )


def _led_by(notes: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> Iterator[LedBy]:
    digests = {other["occurrence"]: other["digest"] for other in others}
    for note in notes:
        is_same = note["digest"] is not None and digests.get(note["occurrence"], "") == note["digest"]
        if not is_same and (led := note.get("led")) is not None:
            how = (note.get("argument"), note.get("is_declared", False), note.get("method"), note.get("is_made", False))
            yield LedBy(_site(led), *how)


def _site(note: dict[str, Any]) -> SourceSite:
    return SourceSite(
        file=note["file"],
        line=note["line"],
        column=note["column"],
        end_line=note["end_line"],
        end_column=note["end_column"],
        function=note["function"],
        code=note["code"],
        name_line=note.get("name_line", 0),
    )


# What to report about a library that seeds itself differently in each run.

LIBRARY_SEED = "outside-entropy"
_MOST_LED_BY = 3


def library_sites(source: Source) -> tuple[Frame, ...]:
    """Return the lines of the program that led to what a library used, then the library's own line."""
    return (*(led.site.frame for led in source.led_by[:_MOST_LED_BY]), source.site.frame)


def library_evidence(source: Source) -> tuple[str, ...]:
    """Return sentences on what a library did, and which lines of the program led there."""
    did = (
        "creates a generator without a seed"
        if source.source == "unseeded-generator"
        else "seeds a generator with a different value in each run"
    )
    lines = list(dict.fromkeys(_place(led) for led in source.led_by))
    more = len(lines) - _MOST_LED_BY
    named = [*lines[:_MOST_LED_BY], *([f"{more} more lines"] if more > 0 else [])]
    led = f"; reached from {' and '.join(named)}" if named else ""
    return (f"{source.site.function} at {source.site.file}:{source.site.line} {did}{led}.",)


def _place(led: LedBy) -> str:
    return f"{PurePath(led.site.file).name}:{led.site.frame.line}"
