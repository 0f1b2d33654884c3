"""Entries: the sentences and phrases that make up every form of the report, and the answer at its beginning.

The answer is the verdict, the cause, the fix, and where the difference shows, in 10 to 15 lines.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Any

from determinism.comparison.divergence import Cause, Divergence, Fix
from determinism.errors import exit_phrase
from determinism.op_semantics import base_name
from determinism.trace.schema import STEP_OP, Frame
from determinism.types import Kind, Level

# Causes and fixes as parts of the JSON document, which converts their values.


def fields_of(described: object, names: str) -> dict[str, Any]:
    """Return some fields under their own names."""
    return {name: getattr(described, name) for name in names.split()}


def cause_document(cause: Cause) -> dict[str, Any]:
    """Return a cause with its evidence."""
    return {"id": cause.identifier, **fields_of(cause, "title status evidence experiments sites")}


def fix_document(fix: Fix) -> dict[str, Any]:
    """Return a fix, or an attempted one."""
    variables = fix.environment
    return {
        "id": fix.identifier,
        **fields_of(fix, "title code patch"),
        "env": None if variables is None else [{"name": name, "value": value} for name, value in variables],
        **fields_of(fix, "verified runs steps step_time_ratio side_effect"),
    }


# One entry of a report, before layout.


class Section(StrEnum):
    """The part of the report that an entry belongs to, in reading order."""

    CAUSE = "cause"
    FIX = "fix"
    PLACE = "place"
    SEARCH = "search"
    NOTES = "notes"
    DETAILS = "details"
    """Shown only on request."""


@dataclass(frozen=True)
class Entry:
    """A labelled paragraph. The text may come from untrusted sources; the layout makes it safe to print."""

    text: str
    label: str = ""
    """Shown in the left column; empty for an entry that continues the one above."""
    section: Section = Section.DETAILS
    is_code: bool = False
    """Whether the text is one line of code, of a diff or of a command."""


def entries_under(label: str, texts: Iterable[str], most: int = sys.maxsize, noun: str = "") -> Iterator[Entry]:
    """Yield the first few texts under one label; if there are more and a noun says what they are, their number, too."""
    texts = list(texts)
    for number, text in enumerate(texts[:most]):
        yield Entry(text, "" if number else label)
    if noun and len(texts) > most:
        yield Entry(f"and {counted(len(texts) - most, f'more {noun}')}")


# Formats places in the user's code and folders.

LONGEST_PATH = 150
LONGEST_NAME = 60


def path_text(path: str) -> str:
    """Write a path relative to the current folder if it is below it; only the end of a very long one is kept."""
    try:
        shown = str(PurePath(path).relative_to(os.getcwd()))
    except (ValueError, OSError):
        shown = path
    return shown if len(shown) <= LONGEST_PATH else f"...{shown[3 - LONGEST_PATH :]}"


def line_text(frame: Frame) -> str:
    """Write `file:line`."""
    return f"{path_text(frame.file)}:{frame.line}"


def frame_text(frame: Frame) -> str:
    """Write `file:line in function`."""
    if not frame.function or frame.function == "<module>":
        return line_text(frame)
    name = frame.function
    return f"{line_text(frame)} in {name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + '...'}"


_KINDS = {
    Kind.STRUCTURE: "the runs executed different operations here: one has records that another lacks, or an op read "
    "a different tensor",
    Kind.RNG: "a random op ran with different states of its random generator",
    Kind.DATA: "a value that came from outside the framework differs, such as a batch, a file or an array",
    Kind.ARGUMENT: "a plain value passed to the op differs, such as a number, an index, a shape or a flag",
    Kind.ORDER: "the same values arrived in a different order",
    Kind.UNINITIALIZED: "the op read memory that nothing had written, so it got whatever was there",
    Kind.MUTATION: (
        "a tensor was changed between two ops by something else, such as a NumPy view, another thread or process, or an extension"
    ),
    Kind.OP: "the op itself gave different outputs from equal inputs and arguments",
}

_UNPROVEN_OP = "the op gave different outputs from equal arguments, and the records that its inputs come from are equal"

_STOPS = {
    "steps": "ended by --steps",
    "fail-fast": "ended by --fail-fast",
    "time-limit": "stopped at its time limit",
    "max-disk": "recording ended at the limit of --max-disk",
    "disk-full": "recording ended because the disk was full",
    "interrupt": "interrupted",
}


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Write a number with its noun, such as `1,234 records`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def listed(items: Sequence[str]) -> str:
    """Join items as `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def one_paragraph(text: str) -> str:
    """Turn a text that may have line breaks into one paragraph."""
    return " ".join(text.split())


def kind_sentence(first: Divergence, level: str) -> str:
    """Explain the kind of a divergence in one sentence."""
    kind = first.kind
    if kind is Kind.OP and first.inputs_equal is None:
        return f"{kind}: {_UNPROVEN_OP}"
    if kind is not None:
        return f"{kind}: {_KINDS[kind]}"
    if first.op == STEP_OP and level == Level.OP:
        return f"not known: {first.detail}"
    if level != Level.OP:
        return f"not known: recording at level {level} does not show it; rerun with --level op"
    return "not established: the outputs of this op differ, and it is not known why"


def dead_phrase(count: int) -> str:
    """Say how many dead differences there are."""
    return f"{counted(count, 'value')} that reached nothing kept or shown {'differs' if count == 1 else 'differ'}"


def stop_phrase(stopped_by: str) -> str:
    """Say what ended a run."""
    return _STOPS.get(stopped_by, f"stopped by {stopped_by}")


# The composer reads only the JSON document, so every form of the report says the same, even for a stored one.

Document = dict[str, Any]

MOST_CAUSES = 3
MOST_POSSIBLE = 3
MOST_FIXES = 2
"""For each cause."""
MOST_DIFF_LINES = 16
FAR_APART = 1 << 24
"""A distance in ulp from which on it is meaningless: the signs differ, or the values are unrelated."""

_LONGEST_COMMAND = 160
_ALTERNATIVE = "Or, "
"""Prefix of the title of a fix that is an alternative to the one before it."""

WHAT_DIFFERS = {
    Kind.STRUCTURE: "the runs executed different operations",
    Kind.RNG: "random numbers differ",
    Kind.DATA: "a value from outside the framework differs",
    Kind.ARGUMENT: "an argument of an operation differs",
    Kind.ORDER: "the same values arrived in a different order",
    Kind.UNINITIALIZED: "uninitialized memory was read",
    Kind.MUTATION: "a tensor was changed outside the framework",
    Kind.OP: "an operation gave different results",
}
"""What the headline says for each kind."""
_NOT_SEARCHED = "No cause was searched for: "
"""Prefix of a diagnosis whose label already says this."""

_TELLING = frozenset({Kind.STRUCTURE, Kind.ARGUMENT, Kind.ORDER, Kind.MUTATION})
"""Kinds whose detail says more than the kind alone."""

_SORTS = {
    "gradient ": "gradients",
    "parameter ": "parameters",
    "buffer ": "buffers",
    "optimizer state": "optimizer state",
}

_ONLY_READ = ("value read by", "printed tensor", "result that the program may read")
"""Prefixes of what a difference reached where the program only looked at it."""
_OUTSIDE_STEPS = (*_ONLY_READ, "saved tensor")
_NOTHING_KEPT = "nothing that was trained and no saved tensor differs"

_PHASES = {
    "init": "before the first forward pass",
    "data": "while loading data",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer",
    "communication": "in the communication between processes",
    "checkpoint": "at a checkpoint",
}


def headline(content: Document) -> str:
    """Write the first line of a report: the verdict, and what is known to be wrong."""
    match content["verdict"]:
        case "same":
            return _same_headline(content)
        case "different":
            return f"Different: {_difference(content)}"
        case _:
            messages = [one_paragraph(trouble["message"]) for trouble in content["trouble"]]
            if len(messages) == 1:
                return f"Inconclusive: {messages[0]}"
            return f"Inconclusive, for {len(messages)} reasons" if messages else "Inconclusive: nothing was compared"


def _same_headline(content: Document) -> str:
    recorded = content["recorded"]
    steps = [counted(recorded["steps"], "step")] if recorded["steps"] else []
    counts = [*steps, counted(recorded["records"], "record")]
    recorded_only = "recorded " if recorded["blind_spots"] else ""
    read_only = " that was read" if content["dead_differences"]["count"] else ""
    tensors = f"every {recorded_only}tensor{read_only}"
    if content["missing"] is not None:
        return f"Same: the resumed run continues the full one, {', '.join(counts)}, {tensors} bit-identical"
    return f"Same: {', '.join([counted(len(content['runs']), 'run'), *counts])}, {tensors} bit-identical"


def _difference(content: Document) -> str:
    causes = [cause for cause in content["causes"] if cause["status"] != "possible"]
    first = content["first_divergence"]
    if content["missing"] is not None and first is not None:
        return f"the resumed run diverges from the full one {_point(first, content)}"
    if causes:
        # One cause may occur at several lines.
        named = [*dict.fromkeys(f"{_in_sentence(_title(cause, content))} ({cause['status']})" for cause in causes)]
        shown = named[:MOST_CAUSES]
        more = len(named) - MOST_CAUSES
        return listed([*shown, counted(more, "more cause")] if more > 0 else shown)
    if first is not None:
        return f"{_what(first)} {_point(first, content)}"
    statuses = [run["exit_status"] for run in content["runs"]]
    if len(set(statuses)) > 1:
        return f"the runs ended with {listed(['an unknown status' if one is None else exit_phrase(one) for one in statuses])}"
    dead = content["dead_differences"]["count"]
    return dead_phrase(dead) if dead else "the runs are not bit-identical"


def answer(content: Document) -> Iterator[Entry]:
    """Say what causes a difference, what fixes it, and where it shows."""
    first = content["first_divergence"]
    if content["varied"]:
        yield Entry(_varied_sentence(content), "perturbed", Section.CAUSE)
    yield from _cause_entries(content)
    if first is not None:
        yield from _place_entries(content, first)
    if content["diagnosis"] is not None:
        said, *commands = content["diagnosis"].split("\n")
        why_not = said.removeprefix(_NOT_SEARCHED)
        label = "search" if why_not == said else "not searched"
        yield Entry(one_paragraph(f"{why_not[:1].upper()}{why_not[1:]}"), label, Section.SEARCH)
        for command in commands:
            yield Entry(command, section=Section.SEARCH, is_code=True)
    yield from _alternatives(content)


# Causes with their fixes.


def _varied_sentence(content: Document) -> str:
    names = listed(list(content["varied"]))
    if content["verdict"] == "different":
        return f"The plain runs were the same. They differ with {names} perturbed on purpose."
    return f"The runs were the same even with {names} perturbed on purpose."


def _cause_entries(content: Document) -> Iterator[Entry]:
    causes = content["causes"]
    known = [cause for cause in causes if cause["status"] != "possible"]
    # What a checkpoint lacks is reported together with how to save it.
    fixes = _by_cause(content["fixes"] if content["missing"] is None else [], known)
    command = content["runs"][0]["command"] if content["runs"] else []
    first = content["first_divergence"]
    hints = [Entry(first["hint"], "hint", Section.FIX)] if first is not None and first["hint"] else []
    for cause, belonging in zip(known[:MOST_CAUSES], fixes, strict=False):
        if len(known) > 1:
            yield Entry(f"{_title(cause, content)} ({cause['status']})", "cause", Section.CAUSE)
        for site in cause["sites"][:1]:
            yield site_entry(site, Section.CAUSE)
        # That an op is not wanted at all comes before how to make it repeatable.
        yield from hints
        hints = []
        for number, fix in enumerate(belonging[:MOST_FIXES]):
            if not _is_alternative(fix, belonging):
                yield from _fix_entries(fix, cause, _joined(fix, belonging) if number else "fix", command)
    yield from hints
    possible = list(dict.fromkeys(_possible(cause) for cause in causes if cause["status"] == "possible"))
    for number, text in enumerate(possible[:MOST_POSSIBLE]):
        yield Entry(text, "" if number else "possible causes", Section.CAUSE)
    if len(possible) > MOST_POSSIBLE:
        yield Entry(f"and {len(possible) - MOST_POSSIBLE:,} more", section=Section.CAUSE)


def _joined(fix: Document, fixes: Sequence[Document]) -> str:
    """The label of a further fix for one cause: runs verified both together, or any one of them may do."""
    are_together = fix["verified"] and fixes[0]["verified"] and not str(fix["title"]).startswith(_ALTERNATIVE)
    return "and" if are_together else "or"


def _is_alternative(fix: Document, fixes: Sequence[Document]) -> bool:
    """Whether a fix is only an alternative to the first one, which can be applied as it is; then it is a detail."""
    first = fixes[0]
    is_enough = first["verified"] and bool(first["patch"] or first["code"])
    return is_enough and fix is not first and str(fix["title"]).startswith(_ALTERNATIVE)


def _alternatives(content: Document) -> Iterator[Entry]:
    """Yield alternatives to better fixes, and the side effects of the better ones."""
    known = [cause for cause in content["causes"] if cause["status"] != "possible"]
    command = content["runs"][0]["command"] if content["runs"] else []
    groups = _by_cause(content["fixes"] if content["missing"] is None else [], known)
    for cause, belonging in list(zip(known, groups, strict=True))[:MOST_CAUSES]:
        for fix in [fix for fix in belonging[:MOST_FIXES] if _is_alternative(fix, belonging)]:
            lines = " ".join(line.strip() for line in code_lines(fix, command))
            yield Entry(f"{_fix_title(fix)} ({proof(fix, cause)}): {lines}", "or")
        for effect in dict.fromkeys(fix.get("side_effect") for fix in belonging[:1]):
            if effect:
                yield Entry(effect, "side effect")


def _fix_title(fix: Document) -> str:
    title = str(fix["title"]).removeprefix(_ALTERNATIVE)
    return f"{title[:1].upper()}{title[1:]}"


def _possible(cause: Document) -> str:
    place = f", {line_of(cause['sites'][0])}" if cause["sites"] else ""
    return f"{cause['title']}{place}"


_VARYING = frozenset({"nondeterministic-op", "varying-op-tensorflow", "varying-op-jax", "varying-triton-kernel"})


def _title(cause: Document, content: Document) -> str:
    """Return the title of a cause; if an op varies, with its name."""
    first = content["first_divergence"]
    if cause["id"] in _VARYING and first is not None:
        inside = first.get("inside")
        name = short_op(first["op"])
        if inside is not None:
            name = f"{short_op(inside['op'])} in {name}"
        return f"{name} varies on equal inputs"
    return str(cause["title"])


def _in_sentence(title: str) -> str:
    """Adapt a title for use within a sentence: only names keep their capital."""
    word = title.split(" ", 1)[0]
    is_name = any(letter.isupper() for letter in word[1:]) or word.startswith("Python")
    return title if is_name else f"{title[:1].lower()}{title[1:]}"


def _by_cause(fixes: Sequence[Document], causes: Sequence[Document]) -> list[list[Document]]:
    """Group fixes by cause; if causes share an identifier, each gets one fix, and the last of them all the rest."""
    rest = list(fixes)
    groups = []
    for number, cause in enumerate(causes):
        mine = [fix for fix in rest if fix["id"] == cause["id"]]
        if any(other["id"] == cause["id"] for other in causes[number + 1 :]):
            mine = mine[:1]
        rest = [fix for fix in rest if fix not in mine]
        groups.append(mine)
    if groups:
        groups[-1] += rest
    return groups


def _fix_entries(fix: Document, cause: Document, label: str, command: Sequence[str]) -> Iterator[Entry]:
    yield Entry(f"{_fix_title(fix)} ({proof(fix, cause)})", label, Section.FIX)
    lines = code_lines(fix, command)
    for line in lines[:MOST_DIFF_LINES]:
        yield Entry(line, section=Section.FIX, is_code=True)
    if len(lines) > MOST_DIFF_LINES:
        yield Entry(f"and {counted(len(lines) - MOST_DIFF_LINES, 'more line')}", section=Section.FIX)


def code_lines(fix: Document, command: Sequence[str] = ()) -> list[str]:
    """Return the lines to write for a fix: a diff of the user's file, code, or a command with variables set."""
    if fix["patch"]:
        return str(fix["patch"]).splitlines()
    code = (fix["code"] or "").splitlines()
    if not fix["env"]:
        return code
    variables = [f"{one['name']}={shlex.quote(one['value'])}" for one in fix["env"]]
    line = " ".join([*variables, shlex.join(command)] if command else variables)
    return [*code, line if len(line) <= _LONGEST_COMMAND else " ".join(variables)]


def proof(fix: Document, cause: Document) -> str:
    """Say how a fix was verified, or why it is not."""
    if not fix["verified"]:
        with_lines = [made for made in cause["experiments"] if fix["patch"] and made["factor"].startswith("line ")]
        # Without them, the experiment did the same as the fix.
        others = [made for made in cause["experiments"] if fix["patch"] and made["equal"] is False]
        failed = (made for made in with_lines or others if made["equal"] is not True)
        outcome = next((str(made["outcome"]) for made in failed), None)
        if outcome is None and cause["status"] == "confirmed":
            return "not verified: the cause is confirmed, but no run was made with this change"
        if outcome is None:
            return "not verified: no run was made with it"
        outcome = outcome.removeprefix("No conclusion: ").rstrip(".")
        return f"not verified: {outcome[:1].lower()}{outcome[1:]}"
    extent = f" of {counted(fix['steps'], 'step')}" if fix["steps"] else ""
    return f"verified by {counted(fix['runs'], 'equal run')}{extent}" if fix["runs"] else "verified"


# Where a difference shows first, and what it reached.


def _place_entries(content: Document, first: Document) -> Iterator[Entry]:
    sites = [site for cause in content["causes"] for site in cause["sites"][:1]]
    place = _line(first)
    if not any(cause["status"] != "possible" for cause in content["causes"]):
        if place is not None:
            yield site_entry(place, Section.PLACE)
        detail = one_paragraph(first.get("detail") or "")
        if detail and first["kind"] in _TELLING:
            yield Entry(detail, "what", Section.PLACE)
    # Where the line is shown, it says as much as the phase, and "the gradient of" as much as the backward pass.
    is_told_by_line = place is not None and (first["phase"] == "init" or first["forward_site"] is not None)
    where = [_step(first, content), "" if is_told_by_line else _PHASES.get(first["phase"], "")]
    if place is not None and (sites or first["kind"] is None):
        gradient = "the gradient of " if first["forward_site"] is not None else ""
        is_shown = any(site["file"] == place["file"] for site in sites)
        name = f"{PurePath(place['file']).name}:{place['line']}" if is_shown else line_of(place)
        where.append(f"{gradient}{name}")
    elif place is None:
        where.append(_named(first))
    if content["recorded"]["processes"] > 1:
        where.append(f"process {first['process']}")
    if first["thread"] is not None:
        where.append(f"thread {first['thread']}")
    size = _size(first["outputs"])
    text = ", ".join(part for part in where if part) + (f" ({size})" if size else "")
    yield Entry(text, "first difference", Section.PLACE)
    reached = _reached(content)
    if reached:
        yield Entry(reached, "reached", Section.PLACE)


def _line(first: Document) -> Document | None:
    """Return the line that a divergence points to; for a backward op, the forward line."""
    line: Document | None = first["forward_site"] or first["site"]
    return line


def _what(first: Document) -> str:
    if first["kind"] is None:
        return "the runs diverge"
    text = WHAT_DIFFERS[Kind(first["kind"])]
    return f"{text} from equal inputs" if first["kind"] == Kind.OP and first["inputs_equal"] else text


def _point(first: Document, content: Document) -> str:
    """Say briefly where a divergence is: its step and its line."""
    place = _line(first)
    parts = [_step(first, content), _named(first) if place is None else line_of(place)]
    text = ", ".join(part for part in parts if part)
    return text if text.startswith(_AFTER) else f"at {text}"


def _named(first: Document) -> str:
    """Return the op; empty where a step as a whole differs."""
    return "" if first["op"] == STEP_OP else short_op(first["op"])


def _step(first: Document, content: Document) -> str:
    # Where nothing counts steps, the end of initialization is unknown: this may be in the middle of a loop.
    is_counted = content["recorded"]["steps"] or first["phase"] != "init"
    is_after = is_counted and first["phase"] in _BETWEEN_STEPS and _is_after_steps(first["step"], content)
    return _AFTER if is_after else f"step {first['step']:,}" if is_counted else ""


_AFTER = "after the last step"
_BETWEEN_STEPS = ("other", "checkpoint")
"""Phases in which a program may be once its steps are over."""


def _is_after_steps(step: int, content: Document) -> bool:
    """Whether this step number means after the last step of both runs; no actual step has it."""
    recorded = content["recorded"]
    is_whole = not any(run["stopped_by"] or run["exit_status"] for run in content["runs"])
    return (
        # Runs that took different paths may have different numbers of steps, and so may processes.
        content["first_divergence"]["kind"] != Kind.STRUCTURE
        and recorded["processes"] == 1
        and recorded["steps_by"] not in (None, "batches")
        and is_whole
        # With these, only the recorded steps are counted.
        and not any(spot["id"] in ("ops-before", "ops-removed") for spot in recorded["blind_spots"])
        and step == recorded["steps"]
        # If a loss is computed afterwards, that is a step that nothing counted.
        and all(one["step"] < step or one["what"].startswith(_OUTSIDE_STEPS) for one in content["reached"] or ())
    )


def _at_step(step: int, content: Document) -> str:
    return _AFTER if _is_after_steps(step, content) else f"at step {step:,}"


def _size(outputs: Sequence[Document]) -> str:
    """Say how much of an op's output differs, and by how much."""
    if not outputs:
        return ""
    output = outputs[0]
    text = f"{output['dtype']} {output['shape']}"
    different = output["elements_different"]
    if different is None:
        return text
    sampled = output["elements_sampled"]
    of = f"{sampled:,} sampled" if sampled else f"{output['elements']:,}"
    text += f", {different:,} of {of} element{'s' if output['elements'] != 1 else ''}"
    ulp = output["max_ulp"]
    return f"{text}, at most {ulp:,} ulp" if ulp is not None and ulp < FAR_APART else text


def _reached(content: Document) -> str:
    """Say what a difference reached, and when: one phrase for each step."""
    by_step: dict[int, list[str]] = {}
    for one in content["reached"] or ():
        by_step.setdefault(one["step"], []).append(_sort(one["what"]))
    parts = [
        f"{listed(list(dict.fromkeys(sorts)))} {_at_step(step, content)}" for step, sorts in sorted(by_step.items())
    ]
    if parts:
        kept = f"; {_NOTHING_KEPT}" if _is_only_read(content) else ""
        return "; ".join(parts[:3]) + ("; and more later" if len(parts) > 3 else "") + kept
    visible = content["first_visible"]
    if visible is None:
        return "nothing that was kept: the difference was read and then disappeared" if content["absorbed"] else ""
    return f"{visible['what']} {_at_step(visible['step'], content)}"


_TIMES_APART = "Keep measured times out of tensors{}, for example with statistics.fmean: nothing else depends on them"


def with_fixes_for_times(content: Document) -> list[Document]:
    """Return the fixes; the one for the clock is replaced if the program only looks at times that it measured."""
    fixes: list[Document] = content["fixes"]
    if content["first_divergence"] is None or not content["reached"] or not _is_only_read(content):
        return fixes
    return [
        {**fix, "title": _TIMES_APART.format("".join(fix["title"].rpartition(", at ")[1:])), "side_effect": ""}
        if fix["id"] == "clock" and fix["code"] is None
        else fix
        for fix in fixes
    ]


def _is_only_read(content: Document) -> bool:
    """Whether it is certain that only values that the program reads differ, such as a speed that it logs."""
    first, recorded = content["first_divergence"], content["recorded"]
    return (
        all(one["what"].startswith(_ONLY_READ) for one in content["reached"] or ())
        # Where no optimizer steps, what is trained is unknown; in a JAX program, even where one does.
        and recorded["steps_by"] not in (None, "batches")
        and "package jax" not in content["ran_on"]
        # Parameters of runs that took different paths are not compared; what another stream received is listed separately.
        and first["kind"] != Kind.STRUCTURE
        and not content["divergences"]
        # Unrecorded ops may have trained parameters.
        and not recorded["blind_spots"]
        and not any(run["stopped_by"] for run in content["runs"])
    )


def _sort(what: str) -> str:
    """Return the sort of a value, without its name."""
    return next((sort for start, sort in _SORTS.items() if what.startswith(start)), what)


# Formats places and ops.


def site_entry(site: Document, section: Section) -> Entry:
    """Return an entry for a line of the user's program, with its code."""
    return Entry(site["code"].strip(), line_of(site), section, is_code=True)


def line_of(site: Document) -> str:
    """Write `file:line`."""
    return f"{path_text(site['file'])}:{site['line']}"


def short_op(op: str) -> str:
    """Return the name of an op without namespace and overload: `index_put` for `aten::index_put.default`."""
    name = base_name(op)
    return name.partition(".")[0] if "::" in op else name
