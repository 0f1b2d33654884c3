"""Annotations for GitHub: one workflow command per line, and no text chosen by a program becomes a command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from determinism.report.document import document
from determinism.report.formats import annotation_lines, problem_lines, step_summary
from tests.builders import WEIRD, make_comparison, make_inconclusive, make_varied
from tests.documents import flooded, make_full_document, make_place

ROOT = Path(__file__).parents[2]
VARIED = dict(make_varied())

COMMAND = re.compile(r"::(error|warning|notice) ((?:[a-z]+=[^:,]*)(?:,[a-z]+=[^:,]*)*)::(.*)")
"""The format that the runner parses, as `ActionCommand.TryParseV2` of actions/runner does."""

ATTACKS = [
    "::error::x",
    "x::add-mask::y",
    "\n::stop-commands::pause",
    "\r\n::set-env name=PATH::/tmp",
    "\r##[command]rm",
    "\u2028::error::x",
    "\x0b::error::x",
    "\x85::error::x",
    "a,file=b,line=9",
    "%0A::error::x",
    "%25",
    WEIRD,
]


def parsed(line: str) -> tuple[str, dict[str, str], str]:
    """Level, properties and message, with the runner's unescaping."""
    found = COMMAND.fullmatch(line)
    assert found, line
    properties = dict(one.split("=", 1) for one in found[2].split(","))
    message = found[3].replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")
    for name, value in properties.items():
        value = value.replace("%0D", "\r").replace("%0A", "\n").replace("%3A", ":").replace("%2C", ",")
        properties[name] = value.replace("%25", "%")
    return found[1], properties, message


def test_a_difference_is_an_error_at_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", "/home/ada")
    level, properties, message = parsed(next(annotation_lines(make_full_document())))
    assert level == "error"
    assert properties == {"file": "project/train.py", "line": "17", "title": "determinism: different"}
    assert message.split("\n") == [
        "Different: aten.embedding_dense_backward.default varies on equal inputs (confirmed)",
        "",
        "perturbed         The plain runs were the same. They differ with memory and schedule perturbed on purpose.",
        "/home/ada/project/train.py:17 x = self.embedding(tokens)",
        "",
        "fix               Compute with one thread (verified by 3 equal runs)",
        "    OMP_NUM_THREADS=1 python train.py",
        "or                Sort it. (not verified: the cause is confirmed, but no run was made with this change)",
        "    for name in sorted(names):",
        "        x",
        "",
        "first difference  step 3, the gradient of train.py:17 "
        "(float32 [1024, 512], 37 of 524,288 elements, at most 3 ulp)",
        "reached           gradients at step 3; loss at step 4",
        "",
        "search            The budget was used up.",
    ]


def test_each_cause_is_a_warning_at_its_line() -> None:
    found = [parsed(line) for line in annotation_lines(make_full_document())][1:]
    assert [(level, properties["line"], properties["title"]) for level, properties, _ in found] == [
        ("warning", "17", "determinism: confirmed cause")
    ]
    assert found[0][2].startswith("An op whose threads add in any order\n100 repeats")


def test_a_missing_part_of_a_checkpoint_is_an_error_at_the_line_that_saves() -> None:
    content = {
        **make_full_document(),
        "missing": [{"id": "scheduler", "site": make_place(9, "save()"), "fix": "Save it."}],
    }
    level, properties, message = parsed(list(annotation_lines(content))[-1])
    assert (level, properties["line"], message) == ("error", "9", "Save it.")


def test_files_outside_the_workspace_keep_their_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert parsed(next(annotation_lines(make_full_document())))[1]["file"] == "/home/ada/project/train.py"


def test_equal_runs_are_a_notice_and_a_missing_verdict_is_an_error() -> None:
    [same] = annotation_lines(document(make_comparison()))
    assert (
        same == "::notice title=determinism%3A same::Same: 2 runs, 10 steps, 1,234 records, every tensor bit-identical"
    )
    [inconclusive] = annotation_lines(document(make_inconclusive("100 % failed.")))
    assert inconclusive == "::error title=determinism%3A inconclusive::Inconclusive: 100 %25 failed."


@pytest.mark.parametrize("name", VARIED)
def test_every_report_consists_of_commands(name: str) -> None:
    assert all(parsed(line) for line in annotation_lines(document(VARIED[name])))


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_string_becomes_a_command(attack: str) -> None:
    plain, attacked = ([parsed(line) for line in annotation_lines(flooded(text))] for text in ("harmless", attack))
    assert [(level, list(properties)) for level, properties, _ in attacked] == [
        (level, list(properties)) for level, properties, _ in plain
    ]
    for line in annotation_lines(flooded(attack)):
        assert len(line.splitlines()) == 1
        line.encode("utf-8")


MATCHER = json.loads(re.search(r"```json\n(.*?)```", (ROOT / "docs/ci.md").read_text(), re.DOTALL)[1])  # type: ignore[index]
PATTERN = MATCHER["tasks"][0]["problemMatcher"]["pattern"]


def matched(line: str) -> dict[str, str]:
    found = re.match(PATTERN["regexp"], line)
    assert found, line
    return {name: found[PATTERN[name]] for name in ("file", "line", "severity", "message", "code")}


def test_the_documented_matcher_finds_file_line_and_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", "/home/ada")
    first, cause = (matched(line) for line in problem_lines(make_full_document()))
    assert first["file"] == "project/train.py"
    assert (first["line"], first["severity"], first["code"]) == ("17", "error", "op")
    assert first["message"].startswith("Different: ")
    assert (cause["severity"], cause["message"]) == ("warning", "An op whose threads add in any order (confirmed)")


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_problem_is_one_line_whatever_its_text(attack: str) -> None:
    lines = list(problem_lines(flooded(attack)))
    assert len(lines) == len(list(problem_lines(flooded("harmless"))))
    assert all(len(line.splitlines()) == 1 for line in lines)


@pytest.mark.parametrize("text", ["```", "a ```` b", "</details>", *ATTACKS])
def test_no_text_in_a_step_summary_is_markup(text: str) -> None:
    heading, _, body = step_summary(flooded(text)).partition("\n\n")
    assert heading == "### Determinism: different"
    fence, *lines, last, end = body.split("\n")
    assert (fence.removesuffix("text"), end) == (last, "")
    assert set(last) == {"`"}
    assert not any(last in line for line in lines)
