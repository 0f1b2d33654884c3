"""The schema of the JSON document: every document conforms to it, and it detects violations."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from determinism.report.document import SCHEMA_FILE, document
from determinism.report.terminal import write_json
from determinism.types import Kind, Phase, Verdict
from tests.builders import (
    make_crowded,
    make_different,
    make_frame,
    make_varied,
)

SCHEMA = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
VARIED = dict(make_varied())


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema of an object within a schema."""
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for value in schema.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects(value)


def test_the_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_schema_is_strict() -> None:
    found = list(objects(SCHEMA))
    assert len(found) > 10
    for schema in found:
        if "properties" not in schema:
            # Values by name, where not all names are known.
            assert schema["additionalProperties"] == {"type": "string"}
            continue
        assert schema["additionalProperties"] is False
        assert schema["required"] == list(schema["properties"])


def test_the_schema_has_the_words_of_the_project() -> None:
    assert SCHEMA["$defs"]["kind"]["enum"] == [*Kind, None]
    assert SCHEMA["$defs"]["phase"]["enum"] == [phase.label for phase in Phase]
    assert SCHEMA["properties"]["verdict"]["enum"] == list(Verdict)


def reject(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize("name", VARIED)
def test_every_document_conforms_to_the_schema(name: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_json(VARIED[name], path)
    written = json.loads(path.read_text(encoding="utf-8"), parse_constant=reject)
    VALIDATOR.validate(written)
    assert written == document(VARIED[name])
    assert list(tmp_path.iterdir()) == [path]


def plant(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    planted = copy.deepcopy(document(make_crowded()))
    VALIDATOR.validate(planted)
    change(planted)
    return planted


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda found: found.pop("absorbed"), "'absorbed' is a required property"),
        (lambda found: found["first_divergence"].pop("forward_site"), "not valid under any"),
        (lambda found: found["runs"][0].pop("trace"), "'trace' is a required property"),
        (lambda found: found["recorded"].pop("steps"), "'steps' is a required property"),
        (lambda found: found.update(extra=1), "'extra' was unexpected"),
        (lambda found: found["recorded"].update(extra=1), "'extra' was unexpected"),
        (lambda found: found["divergences"][0].update(stack=[]), "'stack' was unexpected"),
        (lambda found: found.update(schema="determinism.report/2"), "'determinism.report/1' was expected"),
        (lambda found: found.update(verdict="equal"), "is not one of"),
        (lambda found: found["divergences"][0].update(kind="race"), "is not one of"),
        (lambda found: found["divergences"][0].update(phase="eval"), "is not one of"),
        (lambda found: found["divergences"][0].update(step="3"), "is not of type 'integer'"),
        (lambda found: found["dead_differences"].update(count=-1), "less than the minimum"),
        (lambda found: found["runs"][0].update(seconds="nan"), "is not of type"),
        (lambda found: found["runs"][0].update(command="python train.py"), "is not of type 'array'"),
        (lambda found: found["first_divergence"]["outputs"][0].update(elements=1.5), "not valid under any"),
        (lambda found: found["first_divergence"]["stack"][0].pop("code"), "not valid under any"),
        (lambda found: found["causes"].append({"id": "x"}), "is a required property"),
        (lambda found: found["fixes"].append({"id": "x"}), "is a required property"),
    ],
)
def test_the_schema_rejects(change: Callable[[dict[str, Any]], Any], complaint: str) -> None:
    with pytest.raises(jsonschema.ValidationError, match=re.escape(complaint)):
        VALIDATOR.validate(plant(change))


def test_the_schema_accepts_causes_and_fixes() -> None:
    found = document(make_different())
    sites = [make_frame()._asdict()]
    experiment = {"factor": "threads", "action": "fixed", "runs": 3, "equal": True, "outcome": "d", "seconds": 1.5}
    cause = {
        "id": "a",
        "title": "b",
        "status": "likely",
        "evidence": ["c"],
        "experiments": [experiment],
        "sites": sites,
    }
    fix = {
        "id": "a", "title": "b", "code": None, "patch": None, "verified": True, "runs": 3, "steps": None, "step_time_ratio": 1.1, "side_effect": "e",
    }  # fmt: skip
    found["causes"] = [cause]
    found["fixes"] = [{**fix, "env": None}, {**fix, "env": [{"name": "PYTHONHASHSEED", "value": "0"}]}]
    VALIDATOR.validate(found)
