"""The reports that commands write: which files, what happens to existing files, and annotations."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from determinism.cli.ending import conclude, keep_report
from determinism.cli.options import Reports
from determinism.comparison.divergence import Fix
from tests.builders import make_different
from tests.html_structure import Page
from tests.unit.test_trace_damage import write

COMMAND = [sys.executable, "-m", "determinism"]


@pytest.fixture
def traces(tmp_path: Path) -> list[str]:
    return [str(write(tmp_path / "one")), str(write(tmp_path / "two", records=30))]


def run(*arguments: str | Path, folder: Path) -> tuple[int, str, str]:
    """Run a command and return its exit status, output and messages."""
    ended = subprocess.run([*COMMAND, *map(str, arguments)], cwd=folder, capture_output=True, check=False, text=True)
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stdout, ended.stderr


def test_compare_writes_all_reports(traces: list[str], tmp_path: Path) -> None:
    status, printed, _ = run(
        "compare", *traces, "--json", "r.json", "--html", "r.html", "--junit", "r.xml", folder=tmp_path
    )
    assert status == 1
    headline = json.loads((tmp_path / "r.json").read_text())["headline"]
    assert printed.startswith(headline[:40])
    assert headline.partition(": ")[2][1:] in Page((tmp_path / "r.html").read_text()).text
    assert Xml.parse(tmp_path / "r.xml").getroot().get("failures") == "1"


def test_a_stored_report_makes_the_same_files(traces: list[str], tmp_path: Path) -> None:
    run("compare", *traces, "--json", "r.json", "--html", "a.html", "--junit", "a.xml", folder=tmp_path)
    for trace in traces:
        os.rename(trace, f"{trace}-gone")
    assert run("report", "r.json", "--html", "b.html", "--junit", "b.xml", folder=tmp_path) == (0, "", "")
    for kind in ("html", "xml"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


@pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")
def test_the_command_that_applies_a_verified_fix_is_named_and_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "two words"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "train.py"
    program.write_text("import torch\n", encoding="utf-8")
    diff = "--- train.py\n+++ train.py\n@@ -1 +1,2 @@\n import torch\n+torch.manual_seed(0)"
    for is_verified in (False, True):
        fix = Fix("torch-seed", "Seed PyTorch", "torch.manual_seed(0)", verified=is_verified, runs=2, patch=diff)
        found = make_different(fixes=[fix])
        with pytest.raises(SystemExit):
            conclude(found, Reports(), kept=keep_report(found, folder))
        commands = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  apply the fix ")]
        assert len(commands) == is_verified
    subprocess.run(commands[0].removeprefix("  apply the fix "), shell=True, check=True, cwd=tmp_path)
    assert program.read_text(encoding="utf-8") == "import torch\ntorch.manual_seed(0)\n"


def test_the_command_that_shows_the_details_is_named_and_works(traces: list[str], tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    _, printed, _ = run("compare", *traces, "--json", "kept/report.json", folder=tmp_path)
    assert "  details           determinism report -v kept/report.json" in printed.splitlines()
    status, short, _ = run("report", "kept", folder=tmp_path)
    assert status == 0
    assert short.splitlines()[-1] == "  details           determinism report -v kept"
    status, whole, _ = run("report", "-v", "kept", folder=tmp_path)
    assert status == 0
    assert "  kind " in whole and "  kind " not in short
    assert "determinism report -v" not in whole
    _, printed, _ = run("compare", *traces, folder=tmp_path)
    assert "  details           the same command with -v" in printed.splitlines()


def test_trouble_is_in_every_report(traces: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    files = ["--html", "r.html", "--junit", "r.xml", "--annotate"]
    status, printed, message = run("compare", traces[0], "nowhere", *files, folder=tmp_path)
    assert status == 2
    assert "nowhere does not exist" in message
    assert "nowhere does not exist" in Page((tmp_path / "r.html").read_text()).text
    assert Xml.parse(tmp_path / "r.xml").getroot().get("errors") == "1"
    assert printed.startswith("::error title=determinism%3A inconclusive::")


def test_wrong_options_are_in_every_report(tmp_path: Path) -> None:
    status, _, _ = run("compare", "--junit", "r.xml", "--html", "r.html", folder=tmp_path)
    assert status == 2
    assert Xml.parse(tmp_path / "r.xml").getroot().get("errors") == "1"
    assert "Missing argument" in Page((tmp_path / "r.html").read_text()).text


@pytest.mark.parametrize("option", ["--json", "--html", "--junit"])
def test_a_report_replaces_the_previous_one(option: str, traces: list[str], tmp_path: Path) -> None:
    (tmp_path / "report").write_text("old " * 100_000)
    assert run("compare", *traces, option, "report", folder=tmp_path)[0] == 1
    assert "old old" not in (tmp_path / "report").read_text()


@pytest.mark.parametrize("option", ["--json", "--html", "--junit"])
def test_an_unwritable_place_is_noticed_first(option: str, traces: list[str], tmp_path: Path) -> None:
    status, printed, message = run("compare", *traces, option, "nowhere/report", folder=tmp_path)
    assert (status, printed) == (2, "")
    assert f"{option} nowhere/report: nowhere does not exist" in message


def test_two_reports_in_one_file_are_refused(traces: list[str], tmp_path: Path) -> None:
    status, printed, message = run("compare", *traces, "--json", "same", "--junit", "./same", folder=tmp_path)
    assert (status, printed) == (2, "")
    assert "--json and --junit name the same file" in message
    assert not (tmp_path / "same").exists()


def test_a_report_does_not_overwrite_its_source(traces: list[str], tmp_path: Path) -> None:
    run("compare", *traces, "--json", "r.json", folder=tmp_path)
    before = (tmp_path / "r.json").read_bytes()
    status, _, message = run("report", "r.json", "--html", "r.json", folder=tmp_path)
    assert status == 2
    assert "the report and --html name the same file" in message
    assert (tmp_path / "r.json").read_bytes() == before


def test_a_defect_in_one_report_does_not_prevent_the_others(tmp_path: Path) -> None:
    said: list[str] = []
    reports = Reports(tmp_path / "r.json", tmp_path / "r.html", tmp_path / "r.xml")
    assert not reports.write({"verdict": "same"}, said.append)
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
    assert len(said) == 2 and all("This is a bug in determinism" in message for message in said)


def test_several_reports_may_go_to_dev_null(traces: list[str], tmp_path: Path) -> None:
    assert run("compare", *traces, "--json", "/dev/null", "--html", "/dev/null", folder=tmp_path)[0] == 1
    assert Path("/dev/null").is_char_device()


def test_a_file_that_is_not_a_report_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"schema": "determinism.report/1", "verdict": "maybe"}')
    status, _, message = run("report", "r.json", "--html", "r.html", folder=tmp_path)
    assert status == 2
    assert "r.json is not a report: " in message
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize("options", [[], ["-v"]])
def test_a_stored_report_is_printed_as_it_was(options: list[str], traces: list[str], tmp_path: Path) -> None:
    _, printed, _ = run("compare", *traces, "--json", "r.json", *options, folder=tmp_path)
    assert run("report", "r.json", *options, folder=tmp_path) == (0, printed, "")
    assert ("  kind  " in printed) == bool(options)


def test_annotations_follow_the_report_whose_commands_no_runner_obeys(
    traces: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    status, printed, _ = run("compare", *traces, "--annotate", folder=tmp_path)
    assert status == 1
    first, *report, last = printed.splitlines()
    token = re.fullmatch(r"::stop-commands::([0-9a-f]{32})", first)
    assert token
    assert report[-1] == f"::{token[1]}::"
    assert report[0].startswith("Different: ")
    assert last.startswith("::error ") and "title=determinism%3A different::Different: " in last
    assert (tmp_path / "summary.md").read_text().startswith("### Determinism: different\n\n```text\nDifferent: ")


def test_outside_of_github_an_annotation_is_one_short_line_for_editors(
    traces: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    status, printed, _ = run("compare", *traces, "--annotate", folder=tmp_path)
    assert status == 1
    assert "::" not in printed.replace("aten::", "")
    assert re.fullmatch(r"\S+:\d+: error: Different: .* \[\w+\]", printed.splitlines()[-1])


def test_nothing_is_annotated_by_default(traces: list[str], tmp_path: Path) -> None:
    assert "::error" not in run("compare", *traces, folder=tmp_path)[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
