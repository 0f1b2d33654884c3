"""The picture of the dataflow around the first divergence: rows of records, from what it read down to what read it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

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
    """A value on its way from one record to another."""

    path: str
    look: str


@dataclass(frozen=True)
class FlowPicture:
    """What is drawn."""

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
    """Records by distance; within a row near those that they are connected with, so that arrows cross little."""
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
        # Down and up in turn: a row goes by where its neighbours are now.
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = {one: _average([middles[other] for other in linked[one]] or [middles[one]]) for one in row}
            row.sort(key=wanted.__getitem__)
            _place(row, middles)
    return rows


def _place(row: list[int], middles: dict[int, float]) -> None:
    middles.update({identifier: (position + 0.5) / len(row) for position, identifier in enumerate(row)})


def _average(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def _box(node: dict[str, Any], x: float, y: float) -> Box:
    look = "origin" if node["distance"] == 0 else _look(node["differs"])
    place = node["module"] or node["phase"]
    value = ", ".join(f"{made['dtype']} {made['shape']}" for made in node["outputs"])
    return Box(x, y, look, _cut(_base_name(node["op"])), _cut(place, at_start=True), _cut(value), node)


def _look(differs: bool | None) -> str:
    return {True: "differs", False: "equal", None: "unknown"}[differs]


def _base_name(op: str) -> str:
    """The name of an op without its namespace: `aten::add.Tensor` is `add.Tensor`."""
    return op.partition("::")[2] or op


def _cut(text: str, *, at_start: bool = False) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"…{text[1 - _MOST_CHARACTERS :]}" if at_start else f"{text[: _MOST_CHARACTERS - 1]}…"


def _arrow(edge: dict[str, Any], places: dict[int, tuple[float, float]]) -> Arrow:
    (start_x, start_y), (end_x, end_y) = places[edge["from"]], places[edge["to"]]
    x0, y0 = start_x + NODE_WIDTH / 2, start_y + NODE_HEIGHT
    x1, y1 = end_x + NODE_WIDTH / 2, end_y - 5
    if y1 <= y0:
        # To the same row or back: around the side.
        x0, y0, x1, y1 = start_x + NODE_WIDTH, start_y + NODE_HEIGHT / 2, end_x + NODE_WIDTH, end_y + NODE_HEIGHT / 2
        return Arrow(f"M{x0:g},{y0:g} C{x0 + 40:g},{y0:g} {x1 + 40:g},{y1:g} {x1:g},{y1:g}", _look(edge["differs"]))
    bend = (y1 - y0) / 2
    return Arrow(f"M{x0:g},{y0:g} C{x0:g},{y0 + bend:g} {x1:g},{y1 - bend:g} {x1:g},{y1:g}", _look(edge["differs"]))
