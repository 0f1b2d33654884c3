"""The composite action: its script runs as on the runner, with inputs in the environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ACTION = Path(__file__).parents[2] / ".github" / "actions" / "determinism"
SEEDED = "import torch\ntorch.manual_seed(0)\nprint(torch.rand(3).sum().item())\n"
UNSEEDED = "import torch\nprint(torch.rand(3).sum().item())\n"


def act(folder: Path, **inputs: str) -> tuple[int, str, dict[str, str]]:
    """Run the script, and return its exit status, standard output, and step outputs."""
    output, summary = folder / "output.txt", folder / "summary.md"
    given = {f"INPUT_{name.upper()}": value for name, value in inputs.items()}
    runner = {"GITHUB_ACTIONS": "true", "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary)}
    ended = subprocess.run(
        ["bash", str(ACTION / "check.sh")],
        cwd=folder,
        env={**os.environ, "INPUT_PYTHON": sys.executable, "INPUT_INSTALL": "false", "ACTION_FOLDER": str(ACTION)}
        | {"GITHUB_WORKSPACE": str(folder)}
        | runner
        | given,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert "Traceback" not in ended.stderr
    lines = output.read_text().splitlines() if output.exists() else []
    return ended.returncode, ended.stdout, dict(line.split("=", 1) for line in lines)


def test_a_program_that_is_the_same_passes_with_its_reports(tmp_path: Path) -> None:
    (tmp_path / "train it.py").write_text(SEEDED)
    status, printed, outputs = act(tmp_path, command=f"{sys.executable} 'train it.py'", options="--level 'op' --keep")
    assert status == 0
    assert outputs == {"verdict": "same", "reports": "determinism-reports"}
    assert "::notice title=determinism%3A same::" in printed
    reports = tmp_path / "determinism-reports"
    assert {path.name for path in reports.iterdir()} == {"report.json", "report.html", "report.sarif", "junit.xml"}
    assert json.loads((reports / "report.sarif").read_text())["runs"][0]["results"] == []


def test_a_difference_fails_the_step_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UNSEEDED)
    status, printed, outputs = act(tmp_path, command=f"{sys.executable} train.py", options="--no-explain")
    assert (status, outputs["verdict"]) == (1, "different")
    assert re.search(r"^::error file=train\.py,line=2,title=", printed, re.MULTILINE)
    assert "torch.rand(3)" in (tmp_path / "summary.md").read_text()
    [result] = json.loads((tmp_path / "determinism-reports" / "report.sarif").read_text())["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "train.py"


@pytest.mark.parametrize(("fail_on", "expected"), [("different", 2), ("inconclusive", 2), ("never", 0)])
def test_an_inconclusive_check_fails_the_step_unless_fail_on_is_never(
    tmp_path: Path, fail_on: str, expected: int
) -> None:
    status, _, outputs = act(tmp_path, command="no-such-program", fail_on=fail_on)
    assert (status, outputs["verdict"]) == (expected, "inconclusive")


def test_a_difference_may_be_only_reported(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UNSEEDED)
    status, _, outputs = act(
        tmp_path, command=f"{sys.executable} train.py", options="--no-explain", fail_on="inconclusive"
    )
    assert (status, outputs["verdict"]) == (0, "different")


@pytest.mark.parametrize(
    "inputs", [{"command": ""}, {"command": "true", "fail_on": "sometimes"}], ids=["no command", "unknown fail-on"]
)
def test_invalid_inputs_are_reported_and_run_nothing(tmp_path: Path, inputs: dict[str, str]) -> None:
    status, printed, outputs = act(tmp_path, **inputs)
    assert (status, outputs) == (2, {})
    assert printed.startswith("::error title=determinism::")
    assert "nothing was run" in printed


def test_inputs_are_not_evaluated_as_code(tmp_path: Path) -> None:
    act(tmp_path, command="echo $(touch ran-command) `touch ran-too`", options="--budget $(touch ran-option)")
    assert not list(tmp_path.glob("ran*"))


def test_every_input_of_the_action_reaches_its_script() -> None:
    action, script = (ACTION / "action.yml").read_text(), (ACTION / "check.sh").read_text()
    passed = set(re.findall(r"^        (INPUT_\w+): \$\{\{ inputs\.([\w-]+) \}\}$", action, re.MULTILINE))
    declared = set(
        re.findall(r"^  ([\w-]+):$", action.partition("inputs:")[2].partition("\noutputs:")[0], re.MULTILINE)
    )
    assert {name for _, name in passed} | {"working-directory"} == declared
    assert all(variable in script for variable, _ in passed)
    assert "${{ inputs." not in action.partition("      run:")[2]
