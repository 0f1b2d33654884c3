"""Reading a stored document: those of this and compatible versions are read, others are refused with a message."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from determinism.errors import UsageError
from determinism.report.document import SCHEMA_FILE, UNDERSTOOD, document, first_fault, read_document
from determinism.report.formats import junit_text
from determinism.report.html import page
from determinism.report.terminal import write_json
from tests.builders import make_crowded, make_different, make_varied
from tests.documents import make_full_document

SCHEMA = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
VARIED = dict(make_varied())
FIRST_KEYS = [
    "schema", "verdict", "trouble", "runs", "recorded", "first_divergence", "divergences", "first_visible", "absorbed",
    "dead_differences", "leftovers", "extra_runs", "open_settings", "causes", "fixes", "missing", "environment",
]  # fmt: skip
"""The keys of the first documents."""


def store(folder: Path, content: Any) -> Path:
    path = folder / "report.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def refused(path: Path) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read_document(path)
    assert str(path) in caught.value.message
    return caught.value


@pytest.mark.parametrize("name", VARIED)
def test_a_written_document_is_read_back(name: str, tmp_path: Path) -> None:
    write_json(VARIED[name], tmp_path / "report.json")
    assert read_document(tmp_path / "report.json") == document(VARIED[name])


def test_the_page_of_a_stored_report_is_that_of_the_comparison(tmp_path: Path) -> None:
    write_json(make_different(), tmp_path / "report.json")
    assert page(read_document(tmp_path / "report.json")) == page(document(make_different()))


def test_a_document_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    found = document(make_different())
    earlier = {key: found[key] for key in FIRST_KEYS}
    content = read_document(store(tmp_path, earlier))
    text = page(content)
    assert "An operation gave different results from equal inputs at step 3, /home/ada/project/train.py:17" in text
    assert "<dt>kind</dt><dd>op</dd>" in text
    assert "different results from equal inputs at step 3" in junit_text(content)


def test_fields_unknown_to_an_earlier_version_are_filled_in_within_lists(tmp_path: Path) -> None:
    found = document(make_different(environment=[("variable OMP_NUM_THREADS", "1", "2")]))
    del found["environment"][0]["part"]
    for output in found["first_divergence"]["outputs"]:
        del output["max_relative"], output["elements_sampled"]
    content = read_document(store(tmp_path, found))
    assert content["environment"][0]["part"] == "other"
    assert content["first_divergence"]["outputs"][0]["elements_sampled"] is None


def test_a_document_of_a_later_version_is_read(tmp_path: Path) -> None:
    found = {**make_full_document(), "weather": {"sun": 1}}
    found["recorded"]["moon"] = 2
    assert page(read_document(store(tmp_path, found))) == page(make_full_document())


@pytest.mark.parametrize(
    ("content", "identifier", "reason"),
    [
        ({**make_full_document(), "schema": "determinism.report/2"}, "report-newer", "'determinism.report/2'"),
        ({**make_full_document(), "schema": "other"}, "report-foreign", "does not say that it is"),
        ({}, "report-foreign", "does not say that it is"),
        ([], "report-foreign", "not an object"),
        ("text", "report-foreign", "not an object"),
    ],
)
def test_a_foreign_document_is_refused(content: Any, identifier: str, reason: str, tmp_path: Path) -> None:
    error = refused(store(tmp_path, content))
    assert (error.identifier, reason in error.message) == (identifier, True)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"schema": NaN}', b"9" * 10_000])
def test_invalid_json_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(data)
    assert refused(path).identifier == "report-foreign"


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "nowhere.json").identifier == "report-unreadable"
    assert refused(tmp_path).identifier == "report-unreadable"


def change_at(*keys: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(found: Any) -> None:
        for key in keys[:-1]:
            found = found[key]
        found[keys[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (change_at("verdict", to="equal"), "verdict is 'equal'"),
        (change_at("runs", to=None), "runs is None"),
        (change_at("runs", 0, "seconds", to="long"), "runs[0].seconds is 'long'"),
        (change_at("runs", 0, "seconds", to=True), "runs[0].seconds is True"),
        (change_at("runs", 0, "command", to="python x"), "runs[0].command is 'python x'"),
        (change_at("runs", 0, to={}), "runs[0].command is missing"),
        (change_at("first_divergence", "step", to=-1), "first_divergence.step is -1"),
        (change_at("first_divergence", "step", to=10**70), "first_divergence.step is a number too large for a count"),
        (change_at("first_divergence", "stack", 0, "line", to=1.5), "first_divergence.stack[0].line is 1.5"),
        (change_at("first_divergence", to=[]), "first_divergence is a list"),
        (change_at("losses", 3, "first", to="x" * 99), f"losses[3].first is '{'x' * 39}..."),
        (change_at("recorded", "blind_spots", 0, "share", to=2), "recorded.blind_spots[0].share is 2"),
        (change_at("dataflow", "nodes", 0, "phase", to="eval"), "dataflow.nodes[0].phase is 'eval'"),
    ],
)
def test_the_fault_is_named(change: Callable[[Any], None], fault: str, tmp_path: Path) -> None:
    found = copy.deepcopy(make_full_document())
    change(found)
    error = refused(store(tmp_path, found))
    assert error.identifier == "report-foreign"
    assert f"is not a report: {fault}." in error.message


def keywords(schema: Any) -> set[str]:
    """The keywords of a schema, without the names of properties and definitions."""
    if not isinstance(schema, dict):
        return set()
    found = set(schema)
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            found = found.union(*map(keywords, value.values()))
        elif key in ("items", "anyOf"):
            found = found.union(*map(keywords, value if isinstance(value, list) else [value]))
    return found


def test_every_keyword_of_the_schema_is_understood() -> None:
    assert keywords(SCHEMA) <= UNDERSTOOD


def places(value: Any, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(found for key, item in inner for found in places(item, (*place, key)))]


VALUES: list[Any] = [None, "text", -1, 7, 1.5, True, [], {}, ["text"], [None]]


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_the_check_agrees_with_the_schema(number: int) -> None:
    value = VALUES[number]
    validator = jsonschema.Draft202012Validator(SCHEMA)
    whole = document(make_crowded())
    assert first_fault(whole, SCHEMA) is None
    seen = set()
    # One entry represents each list; each place gets three or four of the values.
    tried = [place for place in places(whole) if place and not any(isinstance(key, int) and key for key in place)]
    for place in tried[number % 3 :: 3]:
        planted = copy.deepcopy(whole)
        change_at(*place, to=value)(planted)
        is_valid = validator.is_valid(planted)
        seen.add(is_valid)
        assert (first_fault(planted, SCHEMA) is None) is is_valid, place
    assert False in seen
