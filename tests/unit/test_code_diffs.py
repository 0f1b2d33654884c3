"""Fixes as diffs: `git apply` gives the intended program, and added lines are placed where they take effect."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from determinism.diagnose.experiments import Trial
from determinism.diagnose.fixes import fixes_for
from determinism.diagnose.hypotheses import hypotheses
from determinism.diagnose.program_text import lines_at_start, started_program, unified_diff
from determinism.run_spec import ChangedLines, CodeChange
from determinism.trace.schema import Frame
from determinism.types import Kind, Verdict
from tests.builders import make_divergence, make_frame

PROGRAM = '''"""A program."""
from __future__ import annotations

import numpy as np
import torch

torch.manual_seed(0)
model = torch.nn.Linear(2, 2)
print(np.random.rand())
'''


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def diff_of(change: CodeChange | None) -> str:
    assert change is not None
    diff = unified_diff(change)
    assert diff is not None
    return diff


def patched(path: Path, change: CodeChange | None) -> str:
    """The program after `git apply` has applied the diff of a change."""
    diff = diff_of(change)
    subprocess.run(["git", "apply", "-p0", "-"], input=f"{diff}\n", text=True, cwd=path.parent, check=True)
    return path.read_text(encoding="utf-8")


def test_a_changed_line_and_the_import_that_it_needs(program: Path) -> None:
    line = "print(np.random.rand())"
    change = CodeChange(str(program), (ChangedLines(9, 9, line, "print(zlib.crc32(b'x'))"),), ("import zlib",))
    assert unified_diff(change) == (
        "--- train.py\n+++ train.py\n@@ -3,2 +3,3 @@\n \n+import zlib\n import numpy as np\n"
        "@@ -8,2 +9,2 @@\n model = torch.nn.Linear(2, 2)\n-print(np.random.rand())\n+print(zlib.crc32(b'x'))"
    )
    wanted = PROGRAM.replace("import numpy", "import zlib\nimport numpy").replace(line, "print(zlib.crc32(b'x'))")
    assert patched(program, change) == wanted


@pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")
def test_patch_finds_a_file_whose_name_has_spaces(program: Path) -> None:
    named = program.rename(program.with_name("my training run.py"))
    change = lines_at_start(named, "numpy.random.seed(0)")
    text = patched(named, change)
    named.write_text(PROGRAM, encoding="utf-8")
    subprocess.run(["patch", "-p0", "--batch"], input=f"{diff_of(change)}\n", text=True, cwd=named.parent, check=True)
    assert named.read_text(encoding="utf-8") == text != PROGRAM


def test_a_seed_is_placed_next_to_other_seeds_under_the_name_of_the_import(program: Path) -> None:
    change = lines_at_start(program, "numpy.random.seed(0)")
    assert patched(program, change) == PROGRAM.replace("seed(0)\n", "seed(0)\nnp.random.seed(0)\n")


def test_a_module_that_is_not_imported_is_imported(program: Path) -> None:
    text = patched(program, lines_at_start(program, "random.seed(0)"))
    assert "\nimport random\nimport numpy as np\n" in text
    assert "torch.manual_seed(0)\nrandom.seed(0)\n" in text
    compile(text, "train.py", "exec")


def test_without_seeds_lines_follow_the_imports(program: Path) -> None:
    program.write_text("import torch as t\nmodel = t.nn.Linear(2, 2)\n", encoding="utf-8")
    text = patched(program, lines_at_start(program, "torch.manual_seed(0)"))
    assert text == "import torch as t\n\nt.manual_seed(0)\nmodel = t.nn.Linear(2, 2)\n"


SETTING = """import os
import sys

sys.path.insert(0, "models")
os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
import nets

print(nets.train())
"""


def test_lines_and_their_imports_follow_settings_that_affect_imports(program: Path) -> None:
    program.write_text(SETTING, encoding="utf-8")
    text = patched(program, lines_at_start(program, "tf.keras.utils.set_random_seed(0)"))
    set_last = 'os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")\n'
    added = f"{set_last}import tensorflow as tf\nimport nets\n\ntf.keras.utils.set_random_seed(0)\n"
    assert text == SETTING.replace(f"{set_last}import nets\n", added)


def test_an_import_still_precedes_a_change_among_such_settings(program: Path) -> None:
    program.write_text(SETTING, encoding="utf-8")
    line = 'os.environ["KERAS_BACKEND"] = "jax"'
    change = CodeChange(str(program), (ChangedLines(5, 5, line, "zlib.crc32(b'x')"),), ("import zlib",))
    text = patched(program, change)
    assert text.index("import zlib") < text.index("zlib.crc32")


def test_settings_after_the_imports_do_not_move_the_lines(program: Path) -> None:
    program.write_text("import os\nimport torch\nos.environ['A'] = 'b'\nprint(torch.rand(1))\n", encoding="utf-8")
    text = patched(program, lines_at_start(program, "torch.manual_seed(0)"))
    assert text.startswith("import os\nimport torch\n\ntorch.manual_seed(0)\nos.environ")


@pytest.mark.parametrize("text", ["print(1)\n", "def f(:\n", ""])
def test_a_program_without_imports_has_no_place_for_added_lines(text: str, program: Path) -> None:
    program.write_text(text, encoding="utf-8")
    assert lines_at_start(program, "torch.manual_seed(0)") is None


def test_a_file_that_has_changed_since_gives_no_diff(program: Path) -> None:
    change = CodeChange(str(program), (ChangedLines(9, 9, "print(0)", "print(1)"),))
    assert unified_diff(change) is None
    program.unlink()
    assert unified_diff(change) is None
    assert lines_at_start(program, "torch.manual_seed(0)") is None


def test_the_program_is_the_script_of_the_command_or_else_the_outermost_frame(program: Path) -> None:
    assert started_program(["python", "train.py", "other.py"], None) == program
    assert started_program(["python", "-m", "train"], str(program)) == program
    assert started_program(["python", "gone.py"], None) is None


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("python -m nets.train --config setup.py", "nets/train.py"),
        ("python -m nets", "nets/__main__.py"),
        ("torchrun --nproc_per_node 2 -m nets.train 3", "nets/train.py"),
        ("python -m torch.distributed.run --standalone --module nets.train", "nets/train.py"),
        ("python -m torch.distributed.run --nproc_per_node=2 train.py 3 -m nets", "train.py"),
        ("accelerate launch --num_processes 2 train.py", "train.py"),
        ("python -m gone.train", None),
        ("python -m gone.train gone.py", None),
        ("python -m -c nets", None),
    ],
)
def test_the_program_is_the_module_of_the_command_or_the_script_of_a_launcher(
    command: str, file: str | None, program: Path
) -> None:
    package = program.parent / "nets"
    package.mkdir()
    for name in ("train.py", "__main__.py"):
        (package / name).write_text(PROGRAM, encoding="utf-8")
    assert started_program(command.split(), None) == (None if file is None else program.parent / file)


def test_code_in_another_file_runs_later_if_the_program_calls_it_after_its_imports(program: Path) -> None:
    elsewhere = Frame("/data/loader.py", 90, "load", "")
    early, late = (Frame(str(program), line, "<module>", "") for line in (4, 9))
    assert lines_at_start(program, "numpy.random.seed(0)", before=[elsewhere, late]) is not None
    assert lines_at_start(program, "numpy.random.seed(0)", before=[elsewhere, early]) is None
    assert lines_at_start(program, "numpy.random.seed(0)", before=[elsewhere, late, early]) is None
    assert lines_at_start(program, "numpy.random.seed(0)", before=[elsewhere, elsewhere]) is None


def test_lines_are_not_added_after_code_that_they_must_precede(program: Path) -> None:
    early, late = (Frame(str(program), line, "<module>", "") for line in (4, 9))
    elsewhere = Frame("/data/loader.py", 90, "load", "")
    assert lines_at_start(program, "numpy.random.seed(0)", before=[late]) is not None
    assert lines_at_start(program, "numpy.random.seed(0)", before=[early]) is None
    assert lines_at_start(program, "numpy.random.seed(0)", before=[elsewhere]) is None


@pytest.mark.parametrize("code", ["DataLoader(..., num_workers=0)", "setarch --addr-no-randomize COMMAND"])
def test_code_that_is_not_a_complete_line_is_not_added(code: str, program: Path) -> None:
    assert lines_at_start(program, code) is None


def test_a_seed_at_the_start_of_the_program_does_not_reach_a_process_that_is_sent_functions(program: Path) -> None:
    drawn = make_frame(7)
    called = make_divergence(kind=Kind.RNG, site=drawn, forward_site=None, stack=(drawn,))
    [seed] = [one for one in hypotheses(called, (), leftovers=()) if one.cause == "seed-missing-torch"]
    trial = Trial(seed.intervention, 3, Verdict.SAME, None)
    [own] = fixes_for([seed], trial, None, None, program)
    assert own.verified and own.title == "Seed PyTorch at the start of the program"
    [sent] = fixes_for([seed], trial, None, None, program, is_in_task=True)
    assert not sent.verified and sent.patch is None
    assert sent.title.startswith("Seed PyTorch at the start of each task") and sent.code == own.code


@pytest.mark.parametrize(("line", "is_found"), [(9, True), (4, False)])
def test_the_fix_has_a_diff_if_the_calls_show_that_its_lines_come_first(
    line: int, is_found: bool, program: Path
) -> None:
    drawn = make_frame(7)
    stack = (drawn, Frame(str(program), line, "<module>", ""))
    called = make_divergence(kind=Kind.RNG, site=drawn, forward_site=None, stack=stack)
    seeds = [one for one in hypotheses(called, (), leftovers=()) if one.cause == "seed-missing-torch"]
    (fix,) = fixes_for(seeds, None, None, None, program)
    assert (fix.patch is not None) == is_found
    apart = replace(called, stack=called.stack[1:])
    (seed,) = [one for one in hypotheses(apart, (), leftovers=()) if one.cause == "seed-missing-torch"]
    assert seed.calls == ()
