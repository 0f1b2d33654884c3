"""Options from pyproject.toml: which file is used, what takes precedence, what is shown, and how mistakes are reported."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from determinism.__main__ import command
from determinism.cli.configuration import subcommands
from tests.unit.test_trace_damage import write

COMMAND = [sys.executable, "-m", "determinism"]


def run(folder: Path, *arguments: str | Path) -> tuple[int, str, str]:
    ended = subprocess.run([*COMMAND, *map(str, arguments)], cwd=folder, capture_output=True, check=False, text=True)
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stdout, " ".join(ended.stderr.split())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(tmp_path / "one")
    write(tmp_path / "two", records=30)
    (tmp_path / "deep" / "down").mkdir(parents=True)
    return tmp_path


def configure(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")


def test_options_in_the_file_apply_and_paths_are_relative_to_it(project: Path) -> None:
    configure(project, '[tool.determinism.compare]\njson = "found.json"\n')
    assert run(project / "deep" / "down", "compare", project / "one", project / "two")[0] == 1
    assert (project / "found.json").exists()


def test_the_command_line_wins(project: Path) -> None:
    configure(project, '[tool.determinism.compare]\njson = "found.json"\n')
    run(project, "compare", "--json", "given.json", "one", "two")
    assert (project / "given.json").exists()
    assert not (project / "found.json").exists()


def test_the_nearest_file_with_a_determinism_table_is_used(project: Path) -> None:
    configure(project, "[tool.determinism.check]\nsteps = 3\n")
    configure(project / "deep", "[tool.other]\nsteps = [\n")
    assert "steps = 3" in run(project / "deep" / "down", "check", "--show-config")[1]
    configure(project / "deep", "[tool.determinism.check]\nsteps = 4\n")
    assert "steps = 4" in run(project / "deep" / "down", "check", "--show-config")[1]


def test_a_common_option_applies_to_each_subcommand_that_has_it(project: Path) -> None:
    configure(
        project, '[tool.determinism]\nlevel = "step"\njson = "r.json"\n[tool.determinism.record]\nlevel = "module"\n'
    )
    assert 'level = "step"' in run(project, "check", "--show-config")[1]
    assert 'level = "module"' in run(project, "record", "--show-config")[1]
    # The --json of `status` is a switch, so the file name does not apply to it.
    assert "json = false" in run(project, "status", "--show-config")[1]


def test_shown_settings_are_toml_and_name_the_source_of_each_value(project: Path) -> None:
    configure(project, '[tool.determinism.check]\nvary = ["hash-seed", "memory"]\nkeep = true\nexplain = false\n')
    status, shown, message = run(project, "check", "--runs", "4", "--show-config")
    assert (status, message) == (0, "")
    lines = {line.split(" = ")[0]: line for line in shown.splitlines()}
    assert lines["runs"].endswith("# command line")
    assert lines["keep"].endswith("# [tool.determinism.check]")
    assert lines["fix"].endswith("# default")
    read = tomllib.loads(shown)["tool"]["determinism"]["check"]
    assert (read["runs"], read["vary"], read["keep"], read["explain"]) == (4, ["hash-seed", "memory"], True, False)
    configure(project, shown)
    again = tomllib.loads(run(project, "check", "--show-config")[1])["tool"]["determinism"]["check"]
    assert again == read


def test_subcommands_of_a_group_have_their_own_tables(project: Path) -> None:
    configure(project, "[tool.determinism]\nsteps = 5\n[tool.determinism.golden.create]\nupdate = true\nsteps = 7\n")
    shown = run(project, "golden", "create", "--show-config")[1]
    assert "[tool.determinism.golden.create]\nsteps = 7" in shown
    assert "update = true" in shown
    assert "steps = 5 " in run(project, "golden", "check", "--show-config")[1]
    configure(project, "[tool.determinism.golden]\nupdate = true\n")
    assert "[tool.determinism.golden] is not a subcommand. Did you mean golden.check?" in run(project, "check", "x")[2]


def test_per_file_ignores_may_be_a_table(project: Path) -> None:
    configure(
        project, '[tool.determinism.lint.per-file-ignores]\n"*bad.py" = ["hash-order", "clock"]\n"x.py" = "clock"\n'
    )
    (project / "bad.py").write_text("x = list({'a', 'b'})[0]\n")
    assert run(project, "lint", "bad.py") == (0, "Nothing found in 1 file.\n", "")
    (project / "good.py").write_text("x = list({'a', 'b'})[0]\n")
    assert run(project, "lint", "good.py")[0] == 1
    shown = run(project, "lint", "--show-config")[1]
    assert 'per-file-ignores = ["*bad.py:hash-order,clock", "x.py:clock"]' in shown
    configure(project, '[tool.determinism.lint.per-file-ignores]\n"*.py" = 3\n')
    status, _, message = run(project, "lint", "bad.py")
    assert status == 2 and 'per-file-ignores = {"*.py": 3} is not valid for this option.' in message


def test_every_subcommand_shows_its_settings(project: Path) -> None:
    for path in subcommands(command().commands):
        status, shown, message = run(project, *path.split("."), "--show-config")
        assert (status, message) == (0, ""), path
        assert f"[tool.determinism.{path}]" in shown


def test_without_a_file_the_defaults_are_shown(project: Path) -> None:
    shown = run(project, "compare", "--show-config")[1]
    assert shown.startswith(
        "# No pyproject.toml here or above has a table [tool.determinism].\n[tool.determinism.compare]\n"
    )
    assert "strict = false" in shown


def test_arguments_after_the_program_belong_to_the_program(project: Path) -> None:
    status, shown, _ = run(project, "check", "--show-config", "--", "python", "x.py", "--show-config")
    assert status == 0
    assert "runs is not set" in shown


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.determinism.check]\nstepz = 3\n", "[tool.determinism.check]: stepz is not an option of `determinism check`. Did you mean steps?"),
        ("[tool.determinism.chek]\nsteps = 3\n", "[tool.determinism.chek] is not a subcommand. Did you mean check?"),
        ("[tool.determinism]\nlevl = 3\n", "[tool.determinism]: levl is not an option of a subcommand. Did you mean level?"),
        ('[tool.determinism.check]\nsteps = "many"\n', '[tool.determinism.check]: steps = "many" is not valid for this option'),
        ("[tool.determinism.check]\nsteps = 0\n", "[tool.determinism.check]: steps = 0 is not valid for this option"),
        ("[tool.determinism.check]\nkeep = 1\n", "keep = 1 is neither true nor false. Write keep = true or keep = false."),
        ("[tool.determinism.check]\nsteps = true\n", "steps = true is not valid for this option. Give what --steps "
            "takes on the command line."),
        ("[tool.determinism]\nsteps = true\n", "steps = true is not valid: --steps takes a value, not true or false."),
        ('[tool.determinism.check]\nvary = ["x"]\n', "x cannot be perturbed."),
        ("[tool.determinism.check]\nsteps = \n", "is not valid TOML"),
        ("[tool.determinism.check.steps]\nfirst = 3\n", '[tool.determinism.check]: steps = {"first": 3} is not valid for this option. Give what --steps takes'),
        ('[tool.determinism.per-file-ignores]\n"*.py" = "clock"\n', "Write [tool.determinism.lint.per-file-ignores]."),
        ('tool.determinism = "op"\n', 'tool.determinism = "op" is not a table. Write [tool.determinism]'),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_place_and_nothing_runs(project: Path, text: str, said: str) -> None:
    configure(project, text)
    status, shown, message = run(project, "check", "--", "touch", "ran")
    assert (status, shown) == (2, "")
    assert said in message
    assert str(project / "pyproject.toml") in message
    assert not (project / "ran").exists()
