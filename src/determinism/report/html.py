"""The report as one HTML file: no script, nothing loaded from elsewhere, every string from outside escaped."""

from __future__ import annotations

import base64
import math
import posixpath
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from determinism.errors import legible
from determinism.op_semantics import base_name
from determinism.report.formats import summary
from determinism.types import Verdict, __version__

PATCH_FILE = "fix.patch"
"""The file of the diffs of all verified fixes."""

# Scales and ticks of charts: where a number is in a drawing, and which numbers are written next to an axis.

_NICE = (1, 2, 5, 10)


class Tick(NamedTuple):
    """A number next to an axis."""

    at: float
    """Its coordinate in the drawing."""
    text: str


@dataclass(frozen=True)
class Scale:
    """Maps numbers from `low` to `high` to coordinates from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    is_logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return the coordinate of a number."""
        low, high, value = (math.log10(v) if self.is_logarithmic else float(v) for v in (self.low, self.high, value))
        # Halved first, since the difference of the largest floats would overflow.
        share = (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 2)


def linear_ticks(scale: Scale, most: int = 5, text: Callable[[float], str] = "{:.6g}".format) -> list[Tick]:
    """Return ticks at round numbers on a linear scale.

    Args:
        scale: The scale.
        most: About how many ticks.
        text: Formats a number.
    """
    span = scale.high / most - scale.low / most
    power = 10.0 ** math.floor(math.log10(span)) if span > 0 else 0.0
    if not power:
        return [Tick(scale.at(scale.low), text(scale.low))]
    distance = next(nice * power for nice in _NICE if nice * power >= span * 0.999)
    first, last = math.ceil(scale.low / distance - 1e-9), math.floor(scale.high / distance + 1e-9)
    return [Tick(scale.at(number * distance), text(number * distance)) for number in range(first, last + 1)]


def step_ticks(scale: Scale, most: int = 8) -> list[Tick]:
    """Return ticks at whole numbers on a linear scale."""
    if scale.high - scale.low < most:
        return [Tick(scale.at(step), f"{step:,}") for step in range(int(scale.low), int(scale.high) + 1)]
    return linear_ticks(scale, most, lambda step: f"{round(step):,}")


def power_ticks(scale: Scale, most: int = 5) -> list[Tick]:
    """Return ticks at powers of ten on a logarithmic scale."""
    first, last = math.ceil(math.log10(scale.low) - 1e-9), math.floor(math.log10(scale.high) + 1e-9)
    every = max(1, math.ceil((last - first + 1) / most))
    return [Tick(scale.at(10.0**power), f"1e{power}") for power in range(first, last + 1, every)]


def value_scale(values: Sequence[float], start: float, end: float) -> Scale:
    """Return a scale that fits all numbers: logarithmic if they span orders of magnitude."""
    low, high = min(values), max(values)
    if low > 0 and high / low > 100:
        return Scale(low, high, start, end, is_logarithmic=True)
    if low == high:
        room = abs(low) / 10 or 1.0
        return _linear(low - room, high + room, start, end)
    room = high / 20 - low / 20
    return _linear(low - room, high + room, start, end)


def _linear(low: float, high: float, start: float, end: float) -> Scale:
    most = sys.float_info.max
    return Scale(max(low, -most), min(high, most), start, end)


# The picture of the dataflow around the first divergence: rows of records, from what it read down to what read it.

NODE_WIDTH, NODE_HEIGHT = 206, 62
_GAP, _ROW_GAP, _MARGIN = 18, 46, 10
_MOST_CHARACTERS = 29
_SWEEPS = 4


class Box(NamedTuple):
    """A record."""

    x: float
    y: float
    look: str
    """`origin`, `differs`, `equal` or `unknown`."""
    op: str
    place: str
    value: str
    node: dict[str, Any]


class Arrow(NamedTuple):
    """A value that one record made and another one read."""

    path: str
    look: str


@dataclass(frozen=True)
class FlowPicture:
    """The picture of the dataflow, laid out."""

    width: float
    height: float
    boxes: list[Box]
    arrows: list[Arrow]
    left_out: int


def flow_picture(dataflow: dict[str, Any] | None) -> FlowPicture | None:
    """Lay the picture out; None if there is nothing to draw."""
    if dataflow is None or not dataflow["nodes"]:
        return None
    nodes = {node["id"]: node for node in dataflow["nodes"]}
    edges = [edge for edge in dataflow["edges"] if edge["from"] in nodes and edge["to"] in nodes]
    rows = _rows(nodes, edges)
    widest = max(len(row) for row in rows)
    width = 2 * _MARGIN + widest * NODE_WIDTH + (widest - 1) * _GAP
    places: dict[int, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        left = (width - len(row) * NODE_WIDTH - (len(row) - 1) * _GAP) / 2
        for position, identifier in enumerate(row):
            places[identifier] = (
                left + position * (NODE_WIDTH + _GAP),
                _MARGIN + number * (NODE_HEIGHT + _ROW_GAP),
            )
    return FlowPicture(
        width,
        2 * _MARGIN + len(rows) * NODE_HEIGHT + (len(rows) - 1) * _ROW_GAP,
        [_box(nodes[identifier], *place) for identifier, place in places.items()],
        [_arrow(edge, places) for edge in edges],
        dataflow["left_out"],
    )


def _rows(nodes: dict[int, dict[str, Any]], edges: list[dict[str, Any]]) -> list[list[int]]:
    """Arrange records in rows by distance, each near the ones it is connected to, so that few arrows cross."""
    by_distance: dict[int, list[int]] = defaultdict(list)
    for identifier, node in nodes.items():
        by_distance[node["distance"]].append(identifier)
    rows = [by_distance[distance] for distance in sorted(by_distance)]
    linked: dict[int, list[int]] = defaultdict(list)
    for edge in edges:
        linked[edge["from"]].append(edge["to"])
        linked[edge["to"]].append(edge["from"])
    middles: dict[int, float] = {}
    for row in rows:
        _place(row, middles)
    for sweep in range(_SWEEPS):
        # Down and up in turn: each row is sorted by the present positions of its neighbours.
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = {one: fmean([middles[other] for other in linked[one]] or [middles[one]]) for one in row}
            row.sort(key=wanted.__getitem__)
            _place(row, middles)
    return rows


def _place(row: list[int], middles: dict[int, float]) -> None:
    middles.update({identifier: (position + 0.5) / len(row) for position, identifier in enumerate(row)})


def _box(node: dict[str, Any], x: float, y: float) -> Box:
    look = "origin" if node["distance"] == 0 else _look(node["differs"])
    place = node["module"] or node["phase"]
    value = ", ".join(f"{made['dtype']} {made['shape']}" for made in node["outputs"])
    return Box(x, y, look, _cut(base_name(node["op"])), _cut(place, at_start=True), _cut(value), node)


def _look(differs: bool | None) -> str:
    return {True: "differs", False: "equal", None: "unknown"}[differs]


def _cut(text: str, *, at_start: bool = False) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"…{text[1 - _MOST_CHARACTERS :]}" if at_start else f"{text[: _MOST_CHARACTERS - 1]}…"


def _arrow(edge: dict[str, Any], places: dict[int, tuple[float, float]]) -> Arrow:
    (start_x, start_y), (end_x, end_y) = places[edge["from"]], places[edge["to"]]
    x0, y0 = start_x + NODE_WIDTH / 2, start_y + NODE_HEIGHT
    x1, y1 = end_x + NODE_WIDTH / 2, end_y - 5
    if y1 <= y0:
        # An arrow to the same row or back goes around the side.
        x0, y0, x1, y1 = start_x + NODE_WIDTH, start_y + NODE_HEIGHT / 2, end_x + NODE_WIDTH, end_y + NODE_HEIGHT / 2
        return Arrow(f"M{x0:g},{y0:g} C{x0 + 40:g},{y0:g} {x1 + 40:g},{y1:g} {x1:g},{y1:g}", _look(edge["differs"]))
    bend = (y1 - y0) / 2
    return Arrow(f"M{x0:g},{y0:g} C{x0:g},{y0 + bend:g} {x1:g},{y1 - bend:g} {x1:g},{y1:g}", _look(edge["differs"]))


# The chart of the losses of both runs, with their difference below.

LOSS_WIDTH = 720
LOSS_LEFT, LOSS_RIGHT = 64, 12
CURVES_TOP, CURVES_BOTTOM = 14, 208
DIFFERENCE_TOP, DIFFERENCE_BOTTOM = 248, 352
_ZERO_ROOM = 16
"""Space between the lowest power of ten and the line for equal losses."""
_MOST_DOTS = 60


class Dot(NamedTuple):
    """One step of a curve."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class LossChart:
    """The chart of the losses, laid out."""

    curves: tuple[list[str], list[str]]
    """The paths of each run; an unknown loss interrupts the curve."""
    dots: list[Dot]
    values: list[Tick]
    steps: list[Tick]
    is_logarithmic: bool
    mark: float | None
    """Where the step of the first divergence is."""
    difference: list[str]
    difference_ticks: list[Tick]
    zero: float
    largest: float
    """The largest difference."""
    largest_at: int
    first_at: int | None
    """The first step with unequal losses."""
    num_steps: int


def loss_chart(document: dict[str, Any]) -> LossChart | None:
    """Lay the chart out; None if the document has no losses."""
    losses = [loss for loss in document["losses"] or () if loss["first"] is not None or loss["second"] is not None]
    if not losses:
        return None
    known = [float(loss[run]) for loss in losses for run in ("first", "second") if loss[run] is not None]
    steps = Scale(losses[0]["step"], losses[-1]["step"], LOSS_LEFT + 6, LOSS_WIDTH - LOSS_RIGHT - 6)
    values = value_scale(known, CURVES_BOTTOM - 6, CURVES_TOP + 6)
    gaps = [(loss["step"], _gap(loss)) for loss in losses]
    unequal = [(step, gap) for step, gap in gaps if gap]
    largest_at, largest = max(unequal, key=lambda one: one[1] or 0.0, default=(0, 0.0))
    ticks = power_ticks(values) if values.is_logarithmic else []
    lines, gap_ticks = _difference(gaps, steps)
    return LossChart(
        curves=(_curve(losses, "first", steps, values), _curve(losses, "second", steps, values)),
        dots=_dots(losses, steps, values),
        values=ticks if len(ticks) > 1 else linear_ticks(values, 4),
        steps=step_ticks(steps),
        is_logarithmic=values.is_logarithmic,
        mark=_mark(document, steps),
        difference=lines,
        difference_ticks=gap_ticks,
        zero=DIFFERENCE_BOTTOM,
        largest=largest or 0.0,
        largest_at=largest_at,
        first_at=unequal[0][0] if unequal else None,
        num_steps=len(losses),
    )


def _mark(document: dict[str, Any], steps: Scale) -> float | None:
    """Return where the step of the first divergence is; None if there is none in the chart."""
    first = document["first_divergence"]
    return steps.at(first["step"]) if first is not None and steps.low <= first["step"] <= steps.high else None


def _gap(loss: dict[str, Any]) -> float | None:
    """Return how far apart the losses of a step are; None where one is unknown or the difference is not finite."""
    if loss["first"] is None or loss["second"] is None:
        return None
    gap = abs(float(loss["first"]) - float(loss["second"]))
    return gap if math.isfinite(gap) else None


def _curve(losses: Sequence[dict[str, Any]], run: str, steps: Scale, values: Scale) -> list[str]:
    points = [
        None if loss[run] is None else (steps.at(loss["step"]), values.at(float(loss[run]))) for loss in losses
    ]  # fmt: skip
    return _paths(points)


def _dots(losses: Sequence[dict[str, Any]], steps: Scale, values: Scale) -> list[Dot]:
    if len(losses) > _MOST_DOTS:
        return []
    found = []
    for loss in losses:
        drawn = loss["second"] if loss["second"] is not None else loss["first"]
        texts = ["not known" if loss[run] is None else repr(float(loss[run])) for run in ("first", "second")]
        text = f"step {loss['step']:,}: {texts[0]} and {texts[1]}"
        found.append(Dot(steps.at(loss["step"]), values.at(float(drawn)), text))
    return found


def _difference(gaps: Sequence[tuple[int, float | None]], steps: Scale) -> tuple[list[str], list[Tick]]:
    sizes = [gap for _, gap in gaps if gap]
    if not sizes:
        points = [None if gap is None else (steps.at(step), float(DIFFERENCE_BOTTOM)) for step, gap in gaps]
        return _paths(points), []
    low = 10.0 ** max(math.floor(math.log10(min(sizes))), -307)
    high = min(max(max(sizes), low * 10), sys.float_info.max)
    scale = Scale(low, high, DIFFERENCE_BOTTOM - _ZERO_ROOM, DIFFERENCE_TOP + 4, is_logarithmic=True)
    points = [
        None
        if gap is None
        else (steps.at(step), scale.at(max(gap, low)) if gap else float(DIFFERENCE_BOTTOM))
        for step, gap in gaps
    ]  # fmt: skip
    return _paths(points), power_ticks(scale, 4)


def _paths(points: Sequence[tuple[float, float] | None]) -> list[str]:
    """Return polylines through the points; a lone point becomes a short line, so that it is visible."""
    runs: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is None:
            runs.append([])
        else:
            runs[-1].append(point)
    drawn = [[(one[0][0] - 2, one[0][1]), (one[0][0] + 2, one[0][1])] if len(one) == 1 else one for one in runs if one]
    return [" ".join(f"{x:g},{y:g}" for x, y in one) for one in drawn]


# The chart of how far a difference spread: the share of records that differ, step by step.

SPREAD_WIDTH, SPREAD_HEIGHT = 720, 190
SPREAD_LEFT, SPREAD_RIGHT, TOP, BOTTOM = 52, 12, 14, 30
_LEAST_HEIGHT = 1.5
"""Makes a few records among very many visible, too."""
_WIDEST_BAR = 28.0


class Bar(NamedTuple):
    """One step, or several combined."""

    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True)
class SpreadChart:
    """The chart of the spread, laid out."""

    bars: list[Bar]
    baseline: float
    steps: list[Tick]
    shares: list[Tick]
    mark: float | None
    """Where the step of the first divergence is."""
    is_thinned: bool
    last_share: float
    """The share of the last step's records that differ."""
    last_step: int


def spread_chart(document: dict[str, Any]) -> SpreadChart | None:
    """Lay the chart out; None if the document has no numbers for it."""
    spans = [span for span in document["divergence_by_step"] or () if span["records"]]
    if not spans:
        return None
    steps = Scale(spans[0]["step"] - 0.5, spans[-1]["last_step"] + 0.5, SPREAD_LEFT, SPREAD_WIDTH - SPREAD_RIGHT)
    shares = Scale(0, 1, SPREAD_HEIGHT - BOTTOM, TOP)
    last = spans[-1]
    ends = spans[0]["step"], last["last_step"]
    inner = Scale(*ends, steps.at(ends[0]), steps.at(ends[1]))
    return SpreadChart(
        bars=[_bar(span, steps, shares) for span in spans if span["different"]],
        baseline=shares.at(0),
        steps=step_ticks(inner),
        shares=linear_ticks(shares, 4, "{:.0%}".format),
        mark=_mark(document, steps),
        is_thinned=any(span["last_step"] > span["step"] for span in spans),
        last_share=last["different"] / last["records"],
        last_step=last["last_step"],
    )


def _bar(span: dict[str, Any], steps: Scale, shares: Scale) -> Bar:
    left, right = steps.at(span["step"] - 0.5), steps.at(span["last_step"] + 0.5)
    width = right - left
    drawn = min(width * (0.82 if width > 4 else 1), _WIDEST_BAR)
    share = min(1.0, span["different"] / span["records"])
    height = max(shares.at(0) - shares.at(share), _LEAST_HEIGHT)
    which = f"step {span['step']:,}"
    if span["last_step"] > span["step"]:
        which = f"steps {span['step']:,} to {span['last_step']:,}"
    text = f"{which}: {span['different']:,} of {span['records']:,} records differ ({share:.1%})"
    return Bar(
        round((left + right - drawn) / 2, 2), round(shares.at(0) - height, 2), round(drawn, 2), round(height, 2), text
    )


# The story as rows of a page, without what the page shows elsewhere.

_OF_PLACES = {"site": "site", "forward site": "forward_site"}
"""Rows that only name a place that the page shows with its lines."""


class Row(NamedTuple):
    """The texts next to one label."""

    label: str
    texts: list[str]


class Block(NamedTuple):
    """A block of the answer at the top of the page: a sentence, a line of the program, or code to copy."""

    section: str
    label: str
    text: str
    is_site: bool
    code: list[str]


def answer_blocks(document: dict[str, Any]) -> list[Block]:
    """Return what every form of the report shows, in order; consecutive lines of code form one block."""
    blocks: list[Block] = []
    for entry in document["story"]:
        if entry["is_detail"]:
            continue
        section, label, text = entry["section"], entry["label"], entry["text"]
        if not entry["is_code"]:
            blocks.append(Block(section, label, text, False, []))
        elif label:
            blocks.append(Block(section, label, text, True, []))
        elif blocks and blocks[-1].code:
            blocks[-1].code.append(text)
        else:
            blocks.append(Block(section, "", "", False, [text]))
    return blocks


def patch_link(document: dict[str, Any]) -> str | None:
    """Return all diffs of verified fixes as a file embedded in the page; None if there is none."""
    text = base64.b64encode(patch_text(document).encode()).decode("ascii")
    return f"data:text/x-diff;charset=utf-8;base64,{text}" if text else None


def patch_text(document: dict[str, Any]) -> str:
    """Return the diffs of all verified fixes, one per file; empty if there is none."""
    diffs = [fix["patch"] for fix in document["fixes"] if fix["patch"] and fix["verified"]]
    by_file: dict[str, list[str]] = {}
    for diff in dict.fromkeys(diffs):
        by_file.setdefault(diff.partition("\n@@")[0], []).append(diff)
    for head, parts in by_file.items():
        if len(parts) > 1:
            by_file[head] = _merged(head, parts) or parts
    return "".join(f"{diff}\n" for parts in by_file.values() for diff in parts)


_HUNK = re.compile(r"@@ -(\d+)")


def _merged(head: str, diffs: list[str]) -> list[str] | None:
    """Merge the diffs of one file: if they were applied one after the other, the second would not find its lines.

    Args:
        head: The lines with the names of the file.
        diffs: Diffs from the same text.

    Returns:
        None if two of them replace the same line, or the file is empty.
    """
    lines: dict[int, str] = {}
    inserted: dict[int, list[str]] = {}
    removed: set[int] = set()
    for diff in diffs:
        at, block = 0, list[str]()
        for line in [*diff[len(head) + 1 :].split("\n"), "@@ -0"]:
            if line.startswith("+"):
                block.append(line)
                continue
            if block and block != inserted.get(at, [])[-len(block) :]:
                inserted.setdefault(at, []).extend(block)
            block = []
            if hunk := _HUNK.match(line):
                at = int(hunk[1])
                continue
            if line.startswith("-"):
                if at in removed:
                    return None
                removed.add(at)
            lines[at] = line[1:]
            at += 1
    if not lines:
        return None
    parts, offset, body = [head], 0, list[str]()
    for at in sorted(lines):
        if at - 1 not in lines:
            body, first = [], at
        body += [*inserted.get(at, ()), f"{'-' if at in removed else ' '}{lines[at]}"]
        if at + 1 not in lines:
            body += inserted.get(at + 1, ())
            old, new = (sum(not line.startswith(sign) for line in body) for sign in "+-")
            parts += [f"@@ -{first},{old} +{first + offset},{new} @@", *body]
            offset += new - old
    return ["\n".join(parts)]


def patch_command(document: dict[str, Any], file: str = PATCH_FILE) -> str:
    """Return the command that applies the file of diffs; `patch` accepts absolute paths only if it starts at the root."""
    names = re.findall(r"^--- (.)", patch_text(document), re.MULTILINE)
    return f"patch {'-d / ' if names and set(names) == {'/'} else ''}-p0 < {shlex.quote(file)}"


def story_rows(document: dict[str, Any]) -> list[Row]:
    """Return the rows of a document's story, in order."""
    rows: list[Row] = []
    for entry in document["story"]:
        if not entry["is_detail"]:
            continue
        if entry["label"] or not rows:
            rows.append(Row(entry["label"], []))
        if not entry["is_code"]:
            rows[-1].texts.append(entry["text"])
    return [row for row in rows if row.texts and not _is_elsewhere(row.label, document)]


def _is_elsewhere(label: str, document: dict[str, Any]) -> bool:
    first = document["first_divergence"]
    return label in _OF_PLACES and first is not None and first[_OF_PLACES[label]] is not None


# Pages of the documentation that explain what a report names.


class DocumentLink(NamedTuple):
    """A page of the documentation; the address is None if the installed package names none."""

    page: str
    address: str | None


def document_links(document: dict[str, Any]) -> dict[str, DocumentLink]:
    """Return the pages that explain the kind, the causes and the report itself."""
    first = document["first_divergence"]
    kind = f"#{first['kind']}" if first is not None and first["kind"] else ""
    pages = {"kind": f"kinds.md{kind}", "cause": "causes.md#the-causes", "report": "report.md"}
    base = _documentation()
    return {
        name: DocumentLink(f"docs/{page}", None if base is None else f"{base}/{page}") for name, page in pages.items()
    }


@cache
def _documentation() -> str | None:
    """Return the address of the documentation from the package's metadata; None if it has none."""
    try:
        named = [one.partition(", ") for one in metadata("determinism").get_all("Project-URL") or ()]
    except PackageNotFoundError:
        return None
    found = [address for label, _, address in named if label.lower() == "documentation"]
    return found[0].rstrip("/") if found and found[0].startswith("https://") else None


# Makes the HTML page from a JSON document alone.

_FOLDER = Path(__file__).with_name("templates")
_LONGEST_TEXT = 5000
"""Longer texts are cut: a name as long as a book would make the page useless."""


def page(document: dict[str, Any]) -> str:
    """Return the page of a document that conforms to `report.schema.json`."""
    return _rendered("page.html", document)


def summary_fragment(document: dict[str, Any]) -> str:
    """Return the top of the page as an HTML fragment that can be embedded in another page."""
    return _rendered("summary.html", document)


def _rendered(template: str, document: dict[str, Any]) -> str:
    first = document["first_divergence"]
    return (
        _environment()
        .get_template(template)
        .render(
            report=document,
            headline=summary(document),
            badge=_badge(document),
            # What must agree within one run is checked without another one, so there is nothing to say about a second run.
            compares=document["verdict"] == Verdict.DIFFERENT and len(document["runs"]) != 1,
            first=first,
            story=story_rows(document),
            answer=answer_blocks(document),
            patch_link=patch_link(document),
            patch_command=patch_command(document),
            documents=document_links(document),
            spread=spread_chart(document),
            losses=loss_chart(document),
            flow=flow_picture(document["dataflow"]),
            sources={(source["file"], source["line"]): source for source in document["sources"]},
            run_names=[f"run {number}" for number in document["compared_runs"] or (1, 2)],
            version=__version__,
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.globals["style"] = Markup((_FOLDER / "style.css").read_text(encoding="utf-8"))
    environment.filters["counted"] = _counted
    environment.filters["number"] = _number
    environment.filters["main_versions"] = _main_versions
    environment.filters["command_line"] = shlex.join
    environment.filters["split_path"] = posixpath.split
    environment.filters["code_lines"] = _code_lines
    environment.filters["without_verdict"] = _without_verdict
    return environment


def _shown(value: Any) -> Any:
    """Make untrusted text safe to print: control characters and marks that reverse the writing direction become visible."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    if len(value) <= _LONGEST_TEXT:
        return legible(value)
    return f"{legible(value[:_LONGEST_TEXT])}… ({len(value) - _LONGEST_TEXT:,} more characters)"


_MAIN_PACKAGES = ("torch", "tensorflow", "keras", "jax", "numpy", "determinism")


def _main_versions(facts: dict[str, str]) -> list[str]:
    """List the versions of Python and of the packages that affect results most, and the processor."""
    named = {"Python": facts.get("python")}
    named |= {package: facts.get(f"package {package}") for package in _MAIN_PACKAGES}
    found = [f"{name} {version}" for name, version in named.items() if version]
    return [*found, *([facts["processor"]] if facts.get("processor") else [])]


def _code_lines(text: str) -> list[str]:
    """Split code into lines, with tabs expanded."""
    return [line.expandtabs(4) for line in text.split("\n")]


_WORD = re.compile(r"[a-z]+[,;']?(?= |$)")


_OF_ONE_RUN = ("violated", "consistent")


def _badge(document: dict[str, Any]) -> str:
    """Return the verdict as the headline calls it, which has other words for what must agree within one run."""
    word = summary(document).partition(":")[0].lower()
    return word if word in _OF_ONE_RUN else str(document["verdict"])


def _without_verdict(headline: str) -> str:
    """Return the headline without the verdict, which is shown next to it."""
    rest = headline.partition(": ")[2] or headline
    # The name of an op, a file or a folder stays in lower case.
    return rest[:1].upper() + rest[1:] if _WORD.match(rest) else rest


def _counted(count: int, noun: str, plural: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def _number(value: float | int | None, digits: int = 3) -> str:
    """Format a number for people; None becomes a dash."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}"
