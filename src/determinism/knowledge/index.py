"""The index: which file holds the op of a name. It is made from the data, so that a question need not read all of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from determinism.knowledge.files import DATA, op_files, ops_of
from determinism.knowledge.names import key_of
from determinism.knowledge.status import Op

INDEX_FILE = DATA / "index.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """Where an op is found.

    Attributes:
        file: The file that holds it.
        position: Which of the ops in that file it is.
        name: The name it is listed under.
        frameworks: Whose statuses it has.
    """

    file: str
    position: int
    name: str
    frameworks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """Where the ops are.

    Attributes:
        entries: Every op.
        names: Key of a name to the numbers of the ops that have it.
        texts: Name of a kernel or text of an alert, in lower case, to the numbers of the ops it is about.
    """

    entries: tuple[Entry, ...]
    names: dict[str, list[int]]
    texts: dict[str, list[int]]


@cache
def index() -> Index:
    """The index as it lies beside the data."""
    document = json.loads(INDEX_FILE.read_text(encoding="utf-8"))
    entries = [
        Entry(file, position, name, tuple(frameworks))
        for file, ops in document["files"].items()
        for position, (name, frameworks) in enumerate(ops)
    ]
    return Index(tuple(entries), document["names"], document["texts"])


def op_at(entry: Entry) -> Op:
    """The op that an entry of the index leads to."""
    return _read(entry.file)[entry.position]


@cache
def _read(file: str) -> list[Op]:
    return ops_of(file)


def index_document() -> dict[str, Any]:
    """The index as it should be, made from all data."""
    files: dict[str, list[Any]] = {}
    names: dict[str, list[int]] = {}
    texts: dict[str, list[int]] = {}
    number = 0
    for file in op_files():
        files[file] = []
        for op in ops_of(file):
            frameworks = sorted({op.framework, *(status.framework for status in op.statuses)})
            files[file].append([op.name, frameworks])
            for key in sorted({key_of(name) for name in (op.name, *op.names)}):
                names.setdefault(key, []).append(number)
            for text in sorted({text.lower() for text in (*op.kernels, *op.alerts)}):
                texts.setdefault(text, []).append(number)
            number += 1
    return {"files": files, "names": names, "texts": texts}


def index_text() -> str:
    """The index file as it should be: one line for each name, so that changes are easy to read."""
    parts = []
    for key, content in sorted(index_document().items()):
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(content.items())]
        parts.append(f"{json.dumps(key)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
