"""The ledger of a run: short digests of each step and group of tensors, and the text file that stores it."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

import numpy as np

from determinism.environment import Part, part_of
from determinism.errors import TraceError, UsageError
from determinism.trace.chunks import Chunk
from determinism.trace.ledger import GROUPS, form_text, group_digest, has_ledger, read_ledger, value_line
from determinism.trace.process import ProcessTrace, Trace
from determinism.trace.schema import END_OP, Meaning, Table
from determinism.types import Level, Role, Stream

FORMAT = "determinism.golden/1"
FINGERPRINTED = ("gradients", "parameters")
"""Groups for which the first step keeps a fingerprint per tensor."""
NO_VALUE = "-"
MOST_BYTES = 5000
"""The most bytes of a golden with one process and 20 steps. Fingerprints and ops get the space that the rest leaves."""
MOST_READ_BYTES = 4 << 20

_HELD = {
    "determinism::parameter": "parameters",
    "determinism::gradient": "gradients",
    "determinism::buffer": "buffers",
    "determinism::optimizer_state": "optimizer",
}
_GROUPS_OF_ROLES = {Role.BATCH: "batches", Role.LOSS: "loss", Role.OP: "results"}
_DIGITS = 32


@dataclass(frozen=True)
class Row:
    """One step of one process."""

    digests: Mapping[str, str]
    """By group, hexadecimal; `NO_VALUE` where the step had nothing in it."""
    loss: str = NO_VALUE
    """As a decimal number."""


@dataclass(frozen=True)
class ProcessLedger:
    """The steps of one process."""

    key: str
    framework: str
    steps_by: str
    rows: Sequence[Row]
    generators: tuple[int, ...] = ()
    """Positions of the random generators that count: those that steps draw from."""
    generator_states: Sequence[Sequence[str]] = ()
    """By step, the digest of every generator's state; not stored."""
    fingerprints: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By group, the fingerprints of its tensors at the first step."""
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By group, the names of these tensors; not stored."""
    operations: Sequence[str] = ()
    """Digests of the results of the first step's ops, in order."""
    operations_per_digest: int = 1
    """How many ops share one of these digests."""

    def counting(self, generators: tuple[int, ...]) -> ProcessLedger:
        """Return the same steps, with only these generators counted."""
        rows = [
            replace(row, digests={**row.digests, "generators": generators_digest(states, generators)})
            for row, states in zip(self.rows, self.generator_states, strict=True)
        ]
        return replace(self, rows=rows, generators=generators)


@dataclass(frozen=True)
class Ledger:
    """A run, as a golden stores it."""

    command: str
    steps: int | None
    """The number of steps after which the run was ended; None if it ran to its own end."""
    environment: Mapping[str, str]
    """Hardware, libraries and variables."""
    settings: Mapping[str, str]
    """Settings of the framework, which the program may change."""
    processes: Sequence[ProcessLedger]
    commit: str = NO_VALUE
    """Where the program came from: a commit, and whether files had changed since."""

    def process(self, key: str) -> ProcessLedger | None:
        """Return the steps of one process; None if it had none."""
        return next((process for process in self.processes if process.key == key), None)


# From a trace to a ledger.


def ledger_of(trace: Trace, *, commit: str = NO_VALUE) -> Ledger:
    """Derive the ledger of a run.

    Args:
        trace: Of level `step` or `module`.
        commit: What to note about the program's origin.

    Raises:
        UsageError: It was recorded op by op, or without any step or state.
        TraceError: It is damaged.
    """
    ordered = [process for process in trace.processes if process.description.get("stream") == Stream.PROCESS]
    if any(
        process.description.get("level") == Level.OP and process.description.get("framework") != "jax"
        for process in ordered
    ):
        raise UsageError(
            "golden-level",
            f"{trace.folder} was recorded at level op, and a golden needs the state at the end of each step. Record it with level "
            "'step': determinism record --level step, or record(level='step').",
        )
    processes = [ledger for ledger in map(_process_ledger, ordered) if ledger.rows]
    if not any(value != NO_VALUE for process in processes for row in process.rows for value in row.digests.values()):
        raise UsageError(
            "golden-empty",
            f"{trace.folder} has no batch and no state at the end of a step, so there is nothing to keep in a golden. Call "
            "determinism.step() at the end of each step, or train with an optimizer of the framework; record programs of JAX at level 'op'.",
        )
    manifest = trace.manifest
    steps = manifest.get("steps") if manifest.get("stopped_by") == "steps" else None
    environment, settings = (
        portable_facts(ordered[0].description.get(part) or {}) for part in ("environment", "settings")
    )
    return Ledger(_portable_command(manifest.get("command") or ()), steps, environment, settings, processes, commit)


def _process_ledger(process: ProcessTrace) -> ProcessLedger:
    parts = _Parts()
    for chunk in process.chunks():
        parts.add(process, chunk)
    if process.truncated or process.stopped_by is not None:
        raise TraceError(
            "golden-incomplete",
            f"The records of {process.key} in {process.folder.parent.parent} are incomplete, so they cannot be compared with a golden. "
            "Record the run again.",
        )
    losses: dict[int, str] = {}
    for number in process.numbers[process.numbers["meaning"] == Meaning.LOSS]:
        losses[int(number["step"])] = f"{float(number['value']):.9g}"
    steps = sorted(parts.steps) or ([-1] if parts.end.keys() - {"generators"} else [])
    by_step = parts.steps if parts.steps else {-1: parts.end}
    states = [tuple(by_step[step].pop("generators", [])) for step in steps]
    used = tuple(
        place
        for place in range(max(map(len, states), default=0))
        if len({state[place] for state in states if place < len(state)}) > 1
    )
    rows = [
        Row(
            {group: _group_digest(group, by_step[step].get(group, [])) for group in GROUPS[:-1]}
            | {"generators": generators_digest(state, used)},
            losses.get(step, NO_VALUE),
        )
        for step, state in zip(steps, states, strict=True)
    ]
    rows = _as_in_ledger(process, steps, rows)
    first: Mapping[str, list[str]] = by_step[steps[0]] if steps else {}
    return ProcessLedger(
        process.key,
        str(process.description.get("framework") or NO_VALUE),
        str(process.steps_by or "batches"),
        rows,
        used,
        states,
        {group: [digest(value) for value in first.get(group, [])] for group in FINGERPRINTED if first.get(group)},
        {group: parts.names[group] for group in FINGERPRINTED if parts.names.get(group)},
    )


def _as_in_ledger(process: ProcessTrace, steps: Sequence[int], rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the digests of the process's own ledger, which includes groups whose tensors have no records."""
    if not has_ledger(process.folder):
        return list(rows)
    ledger = read_ledger(process.folder)
    places = {ledger.step(place): place for place in range(len(ledger))}
    found = []
    for step, row in zip(steps, rows, strict=True):
        digests = ledger.digests(places[step]) if step in places else {}
        held = {group: digest.hex() for group, digest in digests.items() if group in _HELD.values()}
        found.append(replace(row, digests={**row.digests, **held}))
    return found


class _Parts:
    """What a process had at each step, by group."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, list[str]]] = {}
        self.end: dict[str, list[str]] = {}
        self.names: dict[str, list[str]] = {}
        """Names of the tensors of the first step."""
        self._ended: set[int] = set()

    def add(self, process: ProcessTrace, chunk: Chunk) -> None:
        """Add the records of a chunk."""
        names = process.names
        ops, columns, outputs = names.texts(Table.OP), chunk.columns, chunk.children["outputs"]
        roles = [Role.BATCH, Role.LOSS, Role.HELD, Role.STATE]
        if process.description.get("level") == Level.OP:
            roles.append(Role.OP)
        wanted = np.isin(columns["role"], roles)
        for row in np.flatnonzero(wanted):
            op, role, step = ops[int(columns["op"][row])], int(columns["role"][row]), int(columns["step"][row])
            values = [
                value_line(_form(process, int(outputs.columns["layout"][at])), outputs.columns["digest"][at].tobytes())
                for at in outputs.of(int(row))
            ]
            if role == Role.STATE:
                states = [state.hex() for state in chunk.children["generators"].digests_of(int(row))]
                if op == END_OP:
                    # What is held at the end was recorded as one more step.
                    held = self.steps.pop(step, {}) if step not in self._ended else {}
                    self.end = {**held, "generators": states}
                    if step not in self._ended and any(group in held for group in ("batches", "loss")):
                        self.steps[step] = held
                else:
                    self._ended.add(step)
                    self._step(step)["generators"] = states
                continue
            group = _GROUPS_OF_ROLES.get(Role(role)) or _HELD.get(op)
            if group is None or (role == Role.HELD and step in self._ended):
                continue
            parts = self._step(step)
            parts.setdefault(group, []).extend(values)
            if role == Role.HELD and len(self.steps) == 1:
                text = names.text(Table.ARGUMENTS, int(columns["arguments"][row]))
                self.names.setdefault(group, []).extend([text or "unnamed"] * len(values))

    def _step(self, step: int) -> dict[str, list[str]]:
        return self.steps.setdefault(step, {})


def _form(process: ProcessTrace, layout: int) -> str:
    found = process.names.layout(layout)
    return form_text(found)


def digest(text: str) -> str:
    """Return the hexadecimal digest of a text."""
    return hashlib.blake2b(text.encode(), digest_size=_DIGITS // 2).hexdigest()


def _group_digest(group: str, values: Sequence[str]) -> str:
    """Return one hexadecimal digest for a group's values at a step."""
    return group_digest(group, values).hex() if values else NO_VALUE


def generators_digest(states: Sequence[str], counted: Sequence[int]) -> str:
    """Return one digest for the states of the generators that count."""
    chosen = [states[place] for place in counted if place < len(states)]
    return digest("\n".join(chosen)) if chosen else NO_VALUE


# The parts of the environment and the command that are the same on every comparable machine.

_LEFT_OUT = re.compile(r"(_HOME|_PATH|_DIR|_FILE|FILENAME|_RANK)$")
_KERNEL = re.compile(r"^(\w+)-.*?(?:-with-(.*))?$")


def portable_facts(facts: Mapping[str, str]) -> dict[str, str]:
    """Return the facts that may change results, without paths; sorted by name."""
    kept: dict[str, str] = {}
    for name, value in facts.items():
        if part_of(name) is Part.OTHER or _LEFT_OUT.search(name):
            continue
        if name == "platform" and (found := _KERNEL.match(value)):
            value = " ".join(part for part in found.groups() if part)
        kept[_one_line(name)] = _one_line(" ".join(_portable_word(word) for word in value.split()))
    return dict(sorted(kept.items()))


def _portable_command(command: Sequence[str]) -> str:
    return _one_line(shlex.join([_portable_word(word) for word in command]))


def _portable_word(word: str) -> str:
    """Keep only the last part of a path in a word."""
    head, sign, tail = word.rpartition("=")
    return f"{head}{sign}{PurePath(tail).name}" if tail.startswith(("/", "~")) else word


def _one_line(text: str) -> str:
    return " ".join(text.split())


# The text.

_TITLE = "# State of the program after each step, as digests. Check: determinism golden check FILE -- COMMAND"
_WIDTHS = (8, 6, 4)
_FINGERPRINT, _OPERATION = 4, 5
_PER_LINE = 100
_LEAST_FOR_OPERATIONS = 500


def text_of(ledger: Ledger) -> str:
    """Return the golden of a ledger: lines in a stable order."""
    width = _WIDTHS[min(len(ledger.processes), len(_WIDTHS)) - 1]
    lines = [
        FORMAT, _TITLE, f"command = {ledger.command}", f"commit = {ledger.commit}",
        f"steps = {NO_VALUE if ledger.steps is None else ledger.steps}", "", "[environment]",
        *(f"{name} = {value}" for name, value in ledger.environment.items()), "", "[settings]",
        *(f"{name} = {value}" for name, value in ledger.settings.items()),
    ]  # fmt: skip
    sections = [_section(process, width) for process in ledger.processes]
    size = sum(len(line.encode()) + 1 for line in [*lines, *(line for section in sections for line in section)])
    room = max((MOST_BYTES - size) // len(ledger.processes), _LEAST_FOR_OPERATIONS)
    for process, section in zip(ledger.processes, sections, strict=True):
        lines += ["", *section, *_details(process, room - 2)]
    return "\n".join(lines) + "\n"


def _section(process: ProcessLedger, width: int) -> list[str]:
    counted = " ".join(map(str, process.generators)) or NO_VALUE
    cells = [["step", *GROUPS, "value"]]
    for step, row in enumerate(process.rows):
        cells.append([str(step), *(row.digests[group][:width] for group in GROUPS), row.loss])
    # An empty column gets a cell of one character.
    widths = [max(len(line[at]) for line in cells[1:]) for at in range(len(cells[0]))]
    table = [" ".join(cell.ljust(size) for cell, size in zip(line, widths, strict=True)).rstrip() for line in cells]
    head = [f"[process {process.key}]", f"framework = {process.framework}", f"steps counted by = {process.steps_by}"]
    return [*head, f"generators = {counted}", *table]


def _details(process: ProcessLedger, room: int) -> Iterator[str]:
    """Yield fingerprints of the first step's tensors and ops, as far as they fit."""
    for group, fingerprints in process.fingerprints.items():
        lines = [f"[{group} of {process.key}, step 0]", *_wrapped([text[:_FINGERPRINT] for text in fingerprints])]
        size = sum(len(line) + 1 for line in lines)
        if size <= room // 2:
            room -= size
            yield from lines
    operations = [text[:_OPERATION] for text in process.operations]
    head = f"[ops of {process.key}, step 0]"
    most = (room - len(head) - 40) * _PER_LINE // (_PER_LINE + 1) // _OPERATION
    if not operations or most < 1:
        return
    size = -(-len(operations) // most)
    yield head
    yield f"ops per digest = {size}"
    grouped = grouped_digests(process.operations, size)
    yield from _wrapped([text[:_OPERATION] for text in grouped], gap="")


def grouped_digests(digests: Sequence[str], size: int) -> list[str]:
    """Return one digest for each `size` of them."""
    if size == 1:
        return list(digests)
    return [digest(" ".join(digests[start : start + size])) for start in range(0, len(digests), size)]


def _wrapped(words: Sequence[str], gap: str = " ") -> list[str]:
    per_line = _PER_LINE // (len(words[0]) + len(gap)) if words else 1
    return [gap.join(words[start : start + per_line]) for start in range(0, len(words), per_line)]


def write_golden(path: Path, text: str, *, update: bool = False) -> None:
    """Write a golden entirely or not at all.

    Raises:
        UsageError: The file exists and `update` is false, or it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.resolve().parent)
        temporary = Path(name)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o666 & ~_umask())
            if update:
                temporary.replace(path.resolve())
            else:
                os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError:
        raise exists_already(path) from None
    except (OSError, ValueError) as error:
        raise _unwritable(path, str(getattr(error, "strerror", None) or error)) from None


def require_writable(path: Path) -> None:
    """Check that a golden can be written, before the program runs for it; missing folders will be made.

    Raises:
        UsageError: It cannot be written.
    """
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        raise _unwritable(path, f"{folder} is not a folder")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise _unwritable(path, f"{path if path.exists() else folder} is not writable")


def _unwritable(path: Path, reason: str) -> UsageError:
    return UsageError(
        "golden-unwritable",
        f"The golden {path} cannot be written ({reason}), so nothing was changed. Give a file in a folder that you can write to.",
    )


def exists_already(path: Path) -> UsageError:
    """Return the error for a golden that would be overwritten."""
    return UsageError(
        "golden-exists",
        f"{path} exists, so nothing was changed. To replace it with the program's current results, add --update "
        "(update=True in Python).",
    )


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


# Reading it back.

_HEX = re.compile(r"[0-9a-f]+")
_LOSS = re.compile(r"-|nan|-?inf|-?[0-9][0-9.e+-]*")


def read_golden(path: Path) -> Ledger:
    """Read a golden.

    Raises:
        TraceError: It cannot be read, is not a golden, is damaged, or belongs to a newer version.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_READ_BYTES + 1)
        text = content.decode()
    except (OSError, ValueError) as error:
        raise TraceError(
            "golden-unreadable",
            f"The golden {path} cannot be read ({getattr(error, 'strerror', None) or error}), so nothing was checked. Make one with: "
            f"determinism golden create {shlex.quote(str(path))} -- COMMAND",
        ) from None
    first = text.partition("\n")[0].strip()
    name, _, version = first.partition("/")
    if name != "determinism.golden" or not version.isdecimal():
        raise TraceError(
            "golden-foreign",
            f"{path} begins with {first[:40]!r} instead of {FORMAT!r}, so it is not a golden. Give a file that `determinism golden create` wrote.",
        )
    if first != FORMAT:
        raise TraceError(
            "golden-newer",
            f"{path} has the format {first[:40]!r}, and this version reads {FORMAT!r}. Update `determinism`, or make the golden again with --update.",
        )
    return _Reader(path, text.splitlines()).ledger()


class _Reader:
    """Reads the lines of a golden, and says which one is wrong."""

    def __init__(self, path: Path, lines: Sequence[str]) -> None:
        self._path = path
        self._lines = lines
        self._at = 1

    def ledger(self) -> Ledger:
        """Read everything."""
        facts = self._facts(["command", "commit", "steps"])
        self._expect("[environment]")
        environment = self._facts()
        self._expect("[settings]")
        settings = self._facts()
        processes: list[ProcessLedger] = []
        while (line := self._peek()) is not None:
            if not line.startswith("[process ") or not line.endswith("]"):
                raise self._damaged("a line '[process NAME]' was expected")
            processes.append(self._process(line[len("[process ") : -1]))
        if not processes:
            raise self._damaged("it has no process")
        steps = None if facts["steps"] == NO_VALUE else self._count(facts["steps"])
        return Ledger(facts["command"], steps, environment, settings, processes, facts["commit"])

    def _process(self, key: str) -> ProcessLedger:
        self._at += 1
        facts = self._facts(["framework", "steps counted by", "generators"])
        places = () if facts["generators"] == NO_VALUE else tuple(map(self._count, facts["generators"].split()))
        header = (self._peek() or "").split()
        if header != ["step", *GROUPS, "value"]:
            raise self._damaged("the names of the columns were expected")
        self._at += 1
        rows: list[Row] = []
        while (line := self._peek()) is not None and not line.startswith("["):
            rows.append(self._row(line.split(), len(rows)))
            self._at += 1
        if not rows:
            raise self._damaged("it has no step")
        fingerprints: dict[str, list[str]] = {}
        operations: list[str] = []
        size = 1
        while (line := self._peek()) is not None and line.endswith(f" of {key}, step 0]"):
            self._at += 1
            group = line[1:].partition(" ")[0]
            if group == "ops":
                size = self._count(self._facts(["ops per digest"])["ops per digest"])
                if size < 1:
                    raise self._damaged("a number of ops of 1 or more was expected")
                text = "".join(self._words())
                operations = [text[at : at + _OPERATION] for at in range(0, len(text), _OPERATION)]
            elif group in FINGERPRINTED:
                fingerprints[group] = self._words()
            else:
                raise self._damaged(f"{group!r} is not known")
        return ProcessLedger(
            key, facts["framework"], facts["steps counted by"], rows, places, (), fingerprints, {}, operations, size
        )

    def _row(self, cells: Sequence[str], number: int) -> Row:
        if len(cells) != len(GROUPS) + 2 or cells[0] != str(number):
            raise self._damaged(f"step {number} with {len(GROUPS) + 1} cells was expected")
        digests = dict(zip(GROUPS, cells[1:-1], strict=True))
        for value in digests.values():
            if value != NO_VALUE and not (4 <= len(value) <= _DIGITS and _HEX.fullmatch(value)):
                raise self._damaged(f"{value[:40]!r} is not a digest")
        if not _LOSS.fullmatch(cells[-1]):
            raise self._damaged(f"{cells[-1][:40]!r} is not a number")
        return Row(digests, cells[-1])

    def _words(self) -> list[str]:
        """Return the digests on the lines that follow."""
        words: list[str] = []
        while (line := self._peek()) is not None and not line.startswith("["):
            for word in line.split():
                if not _HEX.fullmatch(word):
                    raise self._damaged(f"{word[:40]!r} is not a digest")
                words.append(word)
            self._at += 1
        return words

    def _facts(self, names: Sequence[str] | None = None) -> dict[str, str]:
        """Return the `name = value` lines that follow: exactly the given names, or any."""
        facts: dict[str, str] = {}
        while (line := self._peek()) is not None and " = " in f"{line} " and not line.startswith("["):
            name, _, value = f"{line} ".partition(" = ")
            if name in facts or (names is not None and name not in names):
                raise self._damaged(f"{name[:40]!r} was not expected")
            facts[name] = value.strip()
            self._at += 1
        missing = [name for name in names or () if name not in facts]
        if missing:
            raise self._damaged(f"{missing[0]!r} is missing")
        return facts

    def _peek(self) -> str | None:
        """Return the next line that is neither empty nor a comment; None at the end."""
        while self._at < len(self._lines) and (
            not self._lines[self._at].strip() or self._lines[self._at].startswith("#")
        ):
            self._at += 1
        return self._lines[self._at].strip() if self._at < len(self._lines) else None

    def _expect(self, text: str) -> None:
        if self._peek() != text:
            raise self._damaged(f"the line {text!r} was expected")
        self._at += 1

    def _count(self, text: str) -> int:
        if not (text.isdecimal() and text.isascii() and len(text) < 10):
            raise self._damaged(f"{text[:40]!r} is not a count")
        return int(text)

    def _damaged(self, reason: str) -> TraceError:
        place = f"line {self._at + 1}" if self._at < len(self._lines) else "its end"
        hint = (
            "It has the marks of a merge conflict. " if any(line.startswith("<<<<<<<") for line in self._lines) else ""
        )
        return TraceError(
            "golden-damaged",
            f"The golden {self._path} is damaged at {place}: {reason}. {hint}So nothing was checked. Take the file from version control, or make "
            "it again with --update.",
        )
