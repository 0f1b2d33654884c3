"""`determinism doctor`: its findings, its messages, and cases in which it cannot inspect."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.commands import COMMAND, run
from tests.e2e.running import ENVIRONMENT


def test_settings_missing_in_a_fresh_environment_are_listed_with_the_lines_to_add(tmp_path: Path) -> None:
    finished = run(tmp_path, "doctor", "--json", "found.json", environment=ENVIRONMENT)
    document = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    effects = {one["name"]: one["effect"] for one in document["settings"]}

    assert finished.status == 1
    assert "settings are missing: Python" in finished.text
    assert "torch.use_deterministic_algorithms(True)" in finished.text and "export PYTHONHASHSEED=0" in finished.text
    assert document["schema"] == "determinism.doctor/1" and document["frameworks"]["torch"].startswith("2.")
    assert document["missing"] == sum(effect == "missing" for effect in effects.values()) >= 4
    assert effects["torch.use_deterministic_algorithms"] == effects["PYTHONHASHSEED"] == effects["seed"] == "missing"
    assert effects["torch.get_num_threads"] == "left unchanged"


def test_under_run_nothing_is_missing(tmp_path: Path) -> None:
    finished = run(tmp_path, "run", "--seed", "1", "--", *COMMAND, "doctor", environment=ENVIRONMENT)

    assert finished.status == 0, finished.text
    assert "Nothing is missing: Python" in finished.text and "missing " not in finished.text.partition("missing: ")[2]


@pytest.mark.thorough("launching")
def test_under_run_without_a_seed_the_seed_is_missing(tmp_path: Path) -> None:
    finished = run(tmp_path, "run", "--", *COMMAND, "doctor", environment=ENVIRONMENT)

    assert finished.status == 1
    assert "1 setting is missing" in finished.text


@pytest.mark.thorough("launching")
def test_settings_are_checked_against_the_options_given(tmp_path: Path) -> None:
    warned = ("run", "--seed", "1", "--warn-only", "--threads", "1", "--", *COMMAND, "doctor")

    assert run(tmp_path, *warned, environment=ENVIRONMENT).status == 1
    assert run(tmp_path, *warned, "--warn-only", "--threads", "1", environment=ENVIRONMENT).status == 0


def test_the_interpreter_of_a_script_is_inspected_without_running_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text(f"#!{sys.executable}\nraise SystemExit('was run')\n")
    script.chmod(0o755)
    finished = run(tmp_path, "doctor", "--", "./train", environment=ENVIRONMENT)

    assert finished.status == 1
    assert sys.executable in finished.text and "was run" not in finished.text


def test_each_setting_is_explained(tmp_path: Path) -> None:
    finished = run(tmp_path, "doctor", "--explain", environment=ENVIRONMENT)

    assert "By hand: torch.backends.cudnn.deterministic = True" in finished.text
    assert "Source: https://docs.python.org/3/using/cmdline.html#envvar-PYTHONHASHSEED" in finished.text


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("bash", "run.sh"), "Which Python 'bash' starts"),
        (("no-such-command",), "is not on PATH"),
    ],
)
def test_a_command_that_cannot_be_inspected_is_reported(command: tuple[str, ...], said: str, tmp_path: Path) -> None:
    finished = run(tmp_path, "doctor", "--", *command)

    assert finished.status == 2 and said in finished.stderr


def test_findings_that_cannot_be_written_are_refused_before_anything_is_inspected(tmp_path: Path) -> None:
    finished = run(tmp_path, "doctor", "--json", "missing/doctor.json", environment=ENVIRONMENT)

    assert finished.status == 2
    assert finished.stdout == b""
    assert "missing does not exist, so nothing was started" in finished.text


def test_a_framework_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("raise ImportError('libcuda is missing')")
    finished = run(tmp_path, "doctor", environment={**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}:{_own_path()}"})

    assert finished.status == 1
    assert "tensorflow is installed but cannot be imported: ImportError: libcuda is missing" in finished.text


def _own_path() -> str:
    import determinism

    return str(Path(determinism.__file__).parents[1])
