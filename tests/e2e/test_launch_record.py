"""A recorded run leaves a complete trace, no matter how it ends."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from determinism import compare
from determinism.errors import LaunchError, TraceError
from determinism.launch.record import record_program, unrecorded_reason
from determinism.run_spec import RunSpec
from determinism.trace.schema import TIME_LIMIT
from tests.e2e.commands import tiny_code

CLAIMING = """
    import json, os, pathlib, sys
    trace = pathlib.Path(json.loads(os.environ["DETERMINISM_RUN"])["recording"]["trace_folder"])
    (trace / "processes" / "main").mkdir()
    def describe(**facts): (trace / "processes" / "main" / "process.json").write_text(json.dumps(facts))
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(CLAIMING) + textwrap.dedent(code)]


def manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def test_manifest_says_what_was_run_and_how_it_ended(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "trace"
    command = python("describe(environment={'torch': '2.13.0'}); sys.exit(3)")
    result = record_program(command, RunSpec(folder, level="module", steps=4), log=tmp_path / "log")
    assert (result.exit_status, result.stopped_by, result.folder) == (3, None, folder)
    found = manifest(folder)
    assert found["format"] == "determinism.trace/3"
    assert found["command"] == command
    assert found["cwd"] == os.getcwd()
    assert (found["exit_status"], found["stopped_by"], found["complete"]) == (3, None, True)
    assert found["seconds"] == result.seconds
    assert found["environment"] == {"main": {"torch": "2.13.0"}}
    assert (found["level"], found["steps"]) == ("module", 4)
    assert found["created"] < time.time()
    assert unrecorded_reason(folder) is None


def test_program_that_was_killed_is_recorded_with_the_signal(tmp_path: Path) -> None:
    result = record_program(python("describe(); os.kill(os.getpid(), 9)"), RunSpec(tmp_path / "trace"))
    assert (result.exit_status, result.stopped_by) == (-9, "SIGKILL")
    assert manifest(tmp_path / "trace")["stopped_by"] == "SIGKILL"


def test_program_that_finished_its_steps_is_recorded_as_stopped_by_them(tmp_path: Path) -> None:
    command = python("describe(finished='steps'); os.kill(os.getpid(), 15)")
    result = record_program(command, RunSpec(tmp_path / "trace", steps=1))
    assert (result.exit_status, result.stopped_by) == (-15, "steps")


def test_truncated_description_is_ignored(tmp_path: Path) -> None:
    command = python("(trace / 'processes' / 'main' / 'process.json').write_text('{\"envi')")
    assert record_program(command, RunSpec(tmp_path / "trace")).exit_status == 0
    assert manifest(tmp_path / "trace")["environment"] == {}


def test_existing_output_is_an_error_before_anything_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("determinism.launch.record._build_native_recorder", lambda *_: pytest.fail("built"))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(TraceError, match="already exists and is not empty") as caught:
        record_program(["true"], RunSpec(tmp_path))
    assert caught.value.identifier == "output-exists"
    assert (tmp_path / "file").read_text() == "mine"


def test_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file or directory"):
        record_program(["true"], RunSpec(tmp_path / "trace"), log=tmp_path / "nowhere" / "log")


def test_trace_that_vanished_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="could not be finished: the folder was removed while the program ran"):
        record_program(["rm", "-r", str(tmp_path / "trace")], RunSpec(tmp_path / "trace"))


def test_command_that_cannot_be_started_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="could not be started"):
        record_program(["no-such-command"], RunSpec(tmp_path / "trace"))
    assert not (tmp_path / "trace").exists()


def test_reason_is_given_if_nothing_was_recorded(tmp_path: Path) -> None:
    record_program([sys.executable, "-c", "import json"], RunSpec(tmp_path / "trace"))
    reason = unrecorded_reason(tmp_path / "trace")
    assert reason is not None
    assert reason.startswith("No process of the program recorded anything")


def test_interrupted_run_leaves_a_complete_trace(tmp_path: Path) -> None:
    driver = f"""
        import sys
        from pathlib import Path
        from determinism.launch.program import Interrupted
        from determinism.launch.record import record_program
        from determinism.run_spec import RunSpec
        try:
            record_program(["sh", "-c", "echo ready; exec sleep 30"], RunSpec(Path({str(tmp_path / "trace")!r})))
        except Interrupted as interrupted:
            print(interrupted.message)
    """
    command = [sys.executable, "-c", textwrap.dedent(driver)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=20)[0].startswith("The program was stopped by SIGINT")
    found = manifest(tmp_path / "trace")
    assert (found["exit_status"], found["stopped_by"], found["complete"]) == (-2, "interrupt", True)


def test_recording_imports_neither_pandas_nor_modules_for_comparison(tmp_path: Path) -> None:
    """PyArrow imports pandas to inspect its arguments, which would take time and reset the program's warnings."""
    (tmp_path / "pandas.py").write_text("open('pandas-imported', 'w').close()\n")
    loop = "import torch\nx = torch.ones(2)\nfor _ in range(9000):\n    x = x + 1"
    # Registered first, it is called last, after the trace is finished.
    loaded = f"open({str(tmp_path / 'loaded')!r}, 'w').write(' '.join(sys.modules))"
    code = f"import atexit, sys; sys.path.insert(0, {str(tmp_path)!r}); atexit.register(lambda: {loaded})\n{loop}"
    result = record_program([sys.executable, "-c", code], RunSpec(tmp_path / "trace"), log=tmp_path / "log")
    assert result.exit_status == 0, (tmp_path / "log").read_text()
    modules = set((tmp_path / "loaded").read_text().split())
    assert {"pyarrow", "determinism.trace.writer"} <= modules
    assert modules.isdisjoint({"pandas", "pyarrow.compute", "determinism.comparison.result"})


def test_program_that_took_too_long_is_not_reported_as_different(tmp_path: Path) -> None:
    code = tiny_code("import pathlib, time; frame.full(2, 1.0); pathlib.Path(sys.argv[1]).touch(); time.sleep(100)")
    for name in ("first", "second"):
        marker = tmp_path / f"{name}.computed"
        result = record_program(
            [*code, str(marker)],
            RunSpec(tmp_path / name),
            why_stop=lambda marker=marker: TIME_LIMIT if marker.exists() else None,
        )
        assert result.stopped_by == "time-limit"
        assert manifest(tmp_path / name)["stopped_by"] == "time-limit"
    comparison = compare(tmp_path / "first", tmp_path / "second")
    assert comparison.verdict == "inconclusive"
    assert [trouble.identifier for trouble in comparison.trouble] == ["time-limit"]
