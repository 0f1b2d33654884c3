"""Reads the TOML files that hold what is known; `status.schema.json` describes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from determinism.knowledge.status import Basis, Device, Direction, Op, OpVerdict, Source, SourceKind, Status
from determinism.knowledge.versions import VersionRange

DATA = Path(__file__).parent / "data"
SCHEMA_FILE = Path(__file__).parent / "status.schema.json"
OP_FOLDERS = ("jax", "libraries", "python", "tensorflow", "torch")
"""The folders whose files hold ops."""

_SOURCE = re.compile(r"(?P<kind>[a-z ]+): (?P<reference>.+?)(?: \((?P<date>\d{4}(?:-\d\d){0,2})\))?", re.DOTALL)


def read_toml(path: Path) -> dict[str, Any]:
    """The content of one file."""
    import tomllib

    with path.open("rb") as file:
        return tomllib.load(file)


def op_files() -> list[str]:
    """Every file that holds ops, as a path within the folder of data."""
    return sorted(path.relative_to(DATA).as_posix() for folder in OP_FOLDERS for path in (DATA / folder).glob("*.toml"))


def ops_of(name: str) -> list[Op]:
    """The ops of one file, in its order.

    Args:
        name: As `op_files` gives it.
    """
    document = read_toml(DATA / name)
    framework = str(document["framework"])
    return [_op(entry, framework) for entry in document["op"]]


def source_of(text: str) -> Source:
    """Read a source, such as `issue: pytorch/pytorch#51366 (2021-01)`.

    Raises:
        ValueError: It is not written that way.
    """
    match = _SOURCE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not written as `kind: reference (date)`")
    return Source(SourceKind(match["kind"]), match["reference"], match["date"])


def _op(entry: dict[str, Any], framework: str) -> Op:
    return Op(
        name=entry["name"],
        framework=framework,
        names=tuple(entry.get("names", ())),
        kernels=tuple(entry.get("kernels", ())),
        alerts=tuple(entry.get("alerts", ())),
        patches=tuple(entry.get("patches", ())),
        summary=entry["summary"],
        statuses=tuple(_status(status, framework) for status in entry["status"]),
    )


def _status(entry: dict[str, Any], framework: str) -> Status:
    return Status(
        identifier=entry["id"],
        framework=entry.get("framework", framework),
        versions=VersionRange(entry.get("since"), entry.get("until")),
        device=Device(entry["device"]),
        direction=Direction(entry["direction"]),
        dtype=entry.get("dtype"),
        condition=entry.get("condition"),
        basis=Basis(entry["basis"]),
        default=_verdict(entry.get("default")),
        deterministic=_verdict(entry.get("deterministic")),
        solution=entry.get("solution"),
        note=entry.get("note"),
        sources=tuple(source_of(text) for text in entry["sources"]),
    )


def _verdict(text: str | None) -> OpVerdict | None:
    return None if text is None else OpVerdict(text)
