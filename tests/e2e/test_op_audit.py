"""`determinism audit` finds ops that really vary on this machine's CPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from determinism.audit import launch
from determinism.audit.launch import OpAuditRequest
from determinism.errors import UsageError
from determinism.knowledge.entries import read_audit
from tests.e2e.commands import COMMAND, run

SEVERAL = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ops race only where two threads run at a time")


@SEVERAL
def test_an_op_that_races_varies_only_without_deterministic_mode(tmp_path: Path) -> None:
    for number in range(10):  # on a busy machine threads may not run at the same time for a while
        out = tmp_path / f"out-{number}.json"
        options = ("--runs", "60", "--seconds", "20", "-o", out)
        ops = "torch.take,torch.Tensor.put_,torch.Tensor.scatter_add_"
        finished = run(tmp_path, "audit", "--ops", ops, *options)
        assert finished.status == 0, finished.text
        found = read_audit(out).measurements
        backward = [one for one in found if one.op == "torch.take" and one.direction == "backward"]
        varied = {(one.threads > 1, one.deterministic_mode): one.varies for one in backward}
        if any(varied.values()):
            break

    assert varied == {(True, False): True, (False, False): False, (True, True): False, (False, True): False}
    raised = [one for one in found if one.raised is not None]
    assert {(one.op, one.deterministic_mode) for one in raised} == {("torch.Tensor.put_", True)}
    assert "no result contradicts the declared facts" in finished.text

    # An op that is declared deterministic but varies is reported.
    document = json.loads(out.read_text(encoding="utf-8"))
    for measurement in document["measurements"]:
        if measurement["op"] == "torch.Tensor.scatter_add_":
            measurement["distinct"] = 2
    out.write_text(json.dumps(document), encoding="utf-8")
    finished = run(tmp_path, "audit", "--diff", out)
    assert finished.status == 1
    assert "it gave 2 results in 60 runs, declared deterministic" in " ".join(finished.text.split())


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "audit", "--ops", "torch.take", "--runs", "1000000", "--seconds", "2", "-o", "out.json"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        # When the second message appears, the measurement announced by the first is complete.
        assert process.stderr is not None
        assert [process.stderr.readline()[:13] for _ in range(2)] == ["determinism: "] * 2
        os.killpg(process.pid, signal.SIGINT)
        said, errors = process.communicate(timeout=600)
    finally:
        process.kill()

    assert process.returncode == 128 + signal.SIGINT, errors
    assert "Traceback" not in errors
    assert "Not everything was measured: It was interrupted by Ctrl-C." in said
    audit = read_audit(tmp_path / "out.json")
    assert audit.measurements
    assert (audit.stopped, audit.runs_asked) == ("It was interrupted by Ctrl-C.", 1_000_000)


@pytest.mark.thorough("resume-and-batch")
def test_ops_of_pytorchs_samples_are_measured(tmp_path: Path) -> None:
    finished = run(
        tmp_path, "audit", "--database", "--ops", "torch.nn.functional.max_unpool2d,torch.jiterator_unary", "--runs", "2",
        "-o", "out.json",
    )  # fmt: skip

    assert finished.status == 0, finished.text
    audit = read_audit(tmp_path / "out.json")
    # One raises only in deterministic mode; the other needs a GPU in either mode.
    assert {one.op for one in audit.refused} == {"torch.nn.functional.max_unpool2d"}
    assert {one.op for one in audit.measurements if one.raised} == {one.op for one in audit.measurements}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--ops", "torch.nosuch"), "no case for torch.nosuch"),
        (("--framework", "nosuch"), "no cases for nosuch"),
        (("--device", "nosuch"), "no device 'nosuch'"),
        (("--output", "missing/out.json"), "cannot be written, so nothing was measured"),
        (("--diff", "missing.json"), "missing.json cannot be read (No such file or directory). Give a file that"),
        (("--diff", "pyproject.toml"), "pyproject.toml is not a result of `determinism audit`"),
        (("results.json",), "Add --diff"),
    ],
)
def test_a_request_that_cannot_be_measured_is_refused(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.determinism]\nruns = 3\n")
    finished = run(tmp_path, "audit", *arguments)
    assert finished.status == 2
    assert said in " ".join(finished.text.split())


def test_samples_without_the_package_that_they_need_are_refused_before_a_process_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "find_spec", lambda name: None if name == "expecttest" else object())
    monkeypatch.setattr(launch, "_lines", lambda request, way: pytest.fail("a process started"))
    with pytest.raises(UsageError, match="Install it with: pip install expecttest"):
        launch.audit(OpAuditRequest(database=True))
