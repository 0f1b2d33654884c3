"""SARIF and GitLab code quality: their contents, fixes that match the diffs, and strings that do not break the format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from determinism.lint.findings import explanation
from determinism.report.code_scanning import code_quality_text, sarif_text
from determinism.report.document import document, read_document
from tests.builders import WEIRD, make_comparison, make_inconclusive, make_varied
from tests.documents import FILE, flooded, make_full_document, make_place

# The part of SARIF's schema that these files use, made stricter: unknown keys are errors here.
TEXT = {
    "type": "object",
    "required": ["text"],
    "additionalProperties": False,
    "properties": {"text": {"type": "string"}},
}
LINE = {"type": "integer", "minimum": 1}


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "additionalProperties": False, "properties": properties}


ARTIFACT = closed(["uri"], uri={"type": "string", "format": "uri-reference"}, uriBaseId={"const": "SRCROOT"})
REGION = closed(["startLine"], startLine=LINE, startColumn=LINE, endLine=LINE, endColumn=LINE, snippet=TEXT)
LOCATION = closed(
    ["physicalLocation"],
    physicalLocation=closed(["artifactLocation", "region"], artifactLocation=ARTIFACT, region=REGION),
    message=TEXT,
)
REPLACEMENT = closed(
    ["deletedRegion", "insertedContent"],
    deletedRegion=REGION,
    insertedContent=closed(["text"], text={"type": "string"}),
)
RULE = closed(
    ["id"],
    id={"type": "string"},
    shortDescription=TEXT,
    help=closed(["text"], text={"type": "string"}, markdown={"type": "string"}),
    helpUri={"type": "string", "format": "uri"},
)
FIX = closed(
    ["description", "artifactChanges"],
    description=TEXT,
    artifactChanges={
        "type": "array",
        "minItems": 1,
        "items": closed(
            ["artifactLocation", "replacements"],
            artifactLocation=ARTIFACT,
            replacements={"type": "array", "minItems": 1, "items": REPLACEMENT},
        ),
    },
)
RESULT = closed(
    ["ruleId", "ruleIndex", "level", "message", "partialFingerprints"],
    ruleId={"type": "string", "minLength": 1},
    ruleIndex={"type": "integer", "minimum": 0},
    level={"enum": ["error", "warning"]},
    message=TEXT,
    partialFingerprints={"type": "object", "additionalProperties": {"type": "string"}},
    locations={"type": "array", "maxItems": 1, "items": LOCATION},
    relatedLocations={"type": "array", "items": LOCATION},
    fixes={"type": "array", "minItems": 1, "items": FIX},
)
DRIVER = closed(
    ["name", "rules"],
    name={"const": "determinism"},
    fullName={"type": "string"},
    version={"type": "string"},
    rules={"type": "array", "items": RULE},
)
NOTE = closed(["message"], level={"const": "error"}, descriptor=closed(["id"], id={"type": "string"}), message=TEXT)
RUN = closed(
    ["tool", "results", "invocations"],
    tool=closed(["driver"], driver=DRIVER),
    originalUriBaseIds={"type": "object"},
    invocations={
        "type": "array",
        "minItems": 1,
        "items": closed(
            ["executionSuccessful"],
            executionSuccessful={"type": "boolean"},
            toolExecutionNotifications={"type": "array", "items": NOTE},
        ),
    },
    results={"type": "array", "items": RESULT},
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    properties={"type": "object"},
)
SARIF = jsonschema.Draft202012Validator(
    closed(
        ["$schema", "version", "runs"],
        **{"$schema": {"type": "string"}},
        version={"const": "2.1.0"},
        runs={"type": "array", "minItems": 1, "maxItems": 1, "items": RUN},
    )
)
GITLAB = jsonschema.Draft202012Validator(
    {
        "type": "array",
        "items": closed(
            ["description", "check_name", "fingerprint", "severity", "location"],
            description={"type": "string", "minLength": 1},
            check_name={"type": "string"},
            fingerprint={"type": "string", "pattern": "^[0-9a-f]{32}$"},
            severity={"enum": ["info", "minor", "major", "critical", "blocker"]},
            location=closed(["path", "lines"], path={"type": "string"}, lines=closed(["begin"], begin=LINE)),
        ),
    }
)
VARIED = dict(make_varied())
STORED = sorted((Path(__file__).parents[1] / "golden" / "stored").rglob("report.json"))
DIFF = f"""--- {FILE}
+++ {FILE}
@@ -1,2 +1,4 @@
 import torch
+import random
+random.seed(0)
 x = 1
@@ -16,3 +18,2 @@
     names = load()
-    for name in names:
-        print(name)
+    for name in sorted(names):
     done()"""


def run_of(content: dict[str, Any]) -> dict[str, Any]:
    written = json.loads(sarif_text(content))
    SARIF.validate(written)
    return dict(written["runs"][0])


def listed(content: dict[str, Any]) -> list[dict[str, Any]]:
    written = json.loads(code_quality_text(content))
    GITLAB.validate(written)
    return list(written)


def with_diff(**changes: Any) -> dict[str, Any]:
    content = make_full_document()
    cause = content["causes"][0]
    fix = {**content["fixes"][0], "id": cause["id"], "patch": DIFF, "verified": True, **changes}
    return {**content, "fixes": [fix]}


def test_a_confirmed_cause_is_an_error_at_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", "/home/ada")
    content = make_full_document()
    [result] = run_of(content)["results"]
    assert (result["ruleId"], result["level"]) == (content["causes"][0]["id"], "error")
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "project/train.py", "uriBaseId": "SRCROOT"}
    assert place["region"]["startLine"] == 17
    [quality] = listed(content)
    assert quality["location"] == {"path": "project/train.py", "lines": {"begin": 17}}
    assert quality["severity"] == "major"


def test_a_likely_cause_is_a_warning() -> None:
    content = make_full_document()
    content["causes"][0]["status"] = "likely"
    assert [result["level"] for result in run_of(content)["results"]] == ["warning"]
    assert [quality["severity"] for quality in listed(content)] == ["minor"]


def test_without_a_cause_the_first_divergence_is_the_finding() -> None:
    content = {**make_full_document(), "causes": []}
    [result] = run_of(content)["results"]
    assert result["ruleId"] == content["first_divergence"]["kind"]
    assert result["message"]["text"].startswith(content["headline"])


def test_a_verified_fix_replaces_the_lines_of_its_diff() -> None:
    before = [f"line {number}\n" for number in range(1, 25)]
    [result] = run_of(with_diff())["results"]
    [change] = result["fixes"][0]["artifactChanges"]
    after = list(before)
    for replacement in reversed(change["replacements"]):
        region = replacement["deletedRegion"]
        after[region["startLine"] - 1 : region["endLine"] - 1] = [replacement["insertedContent"]["text"]]
    assert "".join(after) == "".join(
        [before[0], "import random\nrandom.seed(0)\n", *before[1:16], "    for name in sorted(names):\n", *before[18:]]
    )


def test_an_unverified_fix_is_not_offered() -> None:
    [result] = run_of(with_diff(verified=False))["results"]
    assert "fixes" not in result


def test_a_missing_part_of_a_checkpoint_is_a_finding() -> None:
    content = {**make_full_document(), "causes": [], "missing": [{"id": "scheduler", "site": make_place(9, "save()"), "fix": "Save it."}]}  # fmt: skip
    [result] = run_of(content)["results"]
    assert result["ruleId"] == "checkpoint-incomplete"
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 9


def test_equal_runs_have_no_finding_and_no_verdict_is_a_failed_invocation() -> None:
    same = run_of(document(make_comparison()))
    assert same["results"] == []
    assert same["invocations"] == [{"executionSuccessful": True}]
    assert listed(document(make_comparison())) == []
    trouble = run_of(document(make_inconclusive("100 % failed.")))
    assert trouble["results"] == []
    assert trouble["invocations"][0]["executionSuccessful"] is False
    assert trouble["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"] == "100 % failed."


def test_the_fingerprint_is_unchanged_by_lines_added_above() -> None:
    content, moved, other = make_full_document(), make_full_document(), make_full_document()
    moved["causes"][0]["sites"][0]["line"] += 40
    other["causes"][0]["sites"][0]["code"] = "y = 1"
    prints = [listed(one)[0]["fingerprint"] for one in (content, moved, other)]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize("name", VARIED)
def test_every_report_conforms_to_the_schema(name: str) -> None:
    run_of(document(VARIED[name]))
    listed(document(VARIED[name]))


def test_every_stored_report_conforms_to_the_schema() -> None:
    assert len(STORED) > 100
    for path in STORED:
        content = read_document(path)
        assert bool(run_of(content)["results"]) == (content["verdict"] == "different"), path
        listed(content)


@pytest.mark.parametrize("text", [WEIRD, "", "a b%20c", "é\n--- x\n+++ y\n@@ -1 +1 @@\n-a\n+b", "\ud800"])
def test_no_string_of_a_program_breaks_the_format(text: str) -> None:
    content = flooded(text or " ")
    run_of(content)
    listed(content)


def test_a_cause_has_the_same_page_as_in_lint() -> None:
    content = make_full_document()
    (rule, *_) = json.loads(sarif_text(content))["runs"][0]["tool"]["driver"]["rules"]
    assert rule["id"] == content["causes"][0]["id"]
    assert rule["help"]["markdown"] == explanation(rule["id"])
