"""The data keep to their schema, contradict themselves nowhere, and the index beside them is current."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from determinism.knowledge.files import DATA, OP_FOLDERS, SCHEMA_FILE, op_files, ops_of, read_toml, source_of
from determinism.knowledge.framework import framework_named, framework_names
from determinism.knowledge.index import INDEX_FILE, index_text
from determinism.knowledge.status import SourceKind, Status

SCHEMA = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
KINDS = {
    **dict.fromkeys(OP_FOLDERS, "ops"),
    "frameworks": "framework",
    "settings": "settings",
    "history": "history",
    "myths.toml": "myths",
}
FILES = sorted(path.relative_to(DATA).as_posix() for path in DATA.rglob("*.toml"))
MOST_LINES = 450


def violations(document: dict[str, Any], kind: str) -> list[str]:
    """What in a document is not as the schema has it."""
    validator = jsonschema.Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": SCHEMA["$defs"]})
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def all_statuses() -> list[tuple[str, str, Status]]:
    """Every status, with the file and the op it belongs to."""
    return [(name, op.name, one) for name in op_files() for op in ops_of(name) for one in op.statuses]


def test_there_are_data() -> None:
    assert len(all_statuses()) > 500
    assert {name.split("/")[0] for name in op_files()} == set(OP_FOLDERS)


@pytest.mark.parametrize("name", FILES)
def test_every_file_keeps_to_the_schema(name: str) -> None:
    assert violations(read_toml(DATA / name), KINDS[name.split("/")[0]]) == []


@pytest.mark.parametrize("name", FILES)
def test_every_file_can_be_read_through(name: str) -> None:
    assert len((DATA / name).read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"since": 1.7}, "$.op[0].status[0].since: 1.7 is not of type 'string'"),
        ({"sources": []}, "$.op[0].status[0].sources: [] should be non-empty"),
        ({"sources": ["somewhere"]}, "does not match"),
        ({"sources": ["measurement: seen here"]}, "is not valid under any of the given schemas"),
        ({"verdict": "deterministic"}, "Additional properties are not allowed"),
        ({"default": "sometimes"}, "is not one of"),
        ({"device": "gpu0"}, "is not one of"),
        ({"id": "Not An Id"}, "does not match"),
        ({"note": " "}, "does not match"),
    ],
)
def test_the_schema_refuses(change: dict[str, Any], complaint: str) -> None:
    one = {"id": "a", "device": "cpu", "direction": "both", "basis": "observed", "default": "unknown"}
    one = {**one, "sources": ["issue: owner/name#1 (2026-11)"]}
    document = {"framework": "torch", "op": [{"name": "a", "summary": "b", "status": [one]}]}
    assert violations(document, "ops") == []

    document["op"][0]["status"] = [{**one, **change}]
    assert any(complaint in violation for violation in violations(document, "ops"))


def test_identifiers_are_unique() -> None:
    counted = Counter(one.identifier for _, _, one in all_statuses())
    assert [identifier for identifier, count in counted.items() if count > 1] == []


def test_ops_are_listed_once() -> None:
    counted = Counter(
        (ops_of(name)[number].framework, ops_of(name)[number].name)
        for name in op_files()
        for number in range(len(ops_of(name)))
    )
    assert [op for op, count in counted.items() if count > 1] == []


def test_ranges_of_the_same_thing_do_not_overlap() -> None:
    same = defaultdict(list)
    for name, op, one in all_statuses():
        what = (name, op, one.framework, one.device, one.direction, one.dtype, one.condition, one.basis)
        same[what].append(one)
    overlapping = [
        (first.identifier, second.identifier)
        for statuses in same.values()
        for number, first in enumerate(statuses)
        for second in statuses[number + 1 :]
        if first.versions.overlaps(second.versions)
    ]
    assert len(same) < len(all_statuses())
    assert overlapping == []


def test_no_range_is_empty() -> None:
    empty = [one.identifier for _, _, one in all_statuses() if not one.versions.overlaps(one.versions)]
    assert empty == []


def test_every_measurement_has_its_day_and_its_version() -> None:
    measured = [
        source for _, _, one in all_statuses() for source in one.sources if source.kind is SourceKind.MEASUREMENT
    ]
    assert len(measured) > 100
    assert [source.reference for source in measured if source.date is None or len(source.date) != 10] == []


def test_frameworks_are_named_as_their_files() -> None:
    assert [name for name in framework_names() if framework_named(name).identifier != name] == []
    named = {one.framework for _, _, one in all_statuses()} | {ops_of(name)[0].framework for name in op_files()}
    assert named - set(framework_names()) == set()


def test_ranges_of_modes_do_not_overlap() -> None:
    for name in framework_names():
        modes = framework_named(name).modes
        for number, first in enumerate(modes):
            assert not any(first.versions.overlaps(second.versions) for second in modes[number + 1 :]), name


def test_the_index_is_current() -> None:
    assert INDEX_FILE.read_text(encoding="utf-8") == index_text(), "make docs"


def test_sources_are_read() -> None:
    source = source_of("pull request: pytorch/pytorch#101115 (2023-05)")
    assert (source.kind, source.reference, source.date) == ("pull request", "pytorch/pytorch#101115", "2023-05")
    assert source_of("documentation: a page (of two)").date is None
    with pytest.raises(ValueError):
        source_of("hearsay: somebody")


def test_nothing_of_another_kind_lies_among_the_data() -> None:
    others = [path.name for path in Path(DATA).rglob("*") if path.is_file() and path.suffix != ".toml"]
    assert others == ["index.json"]
