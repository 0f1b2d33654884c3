"""`determinism run` makes nondeterministic programs deterministic, and leaves everything else unchanged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from determinism.frameworks.torch.enable import generator
from determinism.seeds import Streams
from tests.e2e.commands import COMMAND, run
from tests.e2e.running import PROGRAMS, becomes_deterministic, goes_on_from_the_middle, plain, printed


@pytest.mark.parametrize("program", ["classifier.py", pytest.param("gpt.py", marks=pytest.mark.thorough("launching"))])
def test_training_ends_in_the_same_weights(program: str, tmp_path: Path) -> None:
    assert becomes_deterministic(tmp_path, program)


@pytest.mark.thorough("launching")
def test_a_different_seed_gives_different_weights(tmp_path: Path) -> None:
    program = (sys.executable, PROGRAMS / "gpt.py")

    assert printed(tmp_path, *program) != printed(tmp_path, *program, before=("run", "--seed", "2", "--"))


def test_hash_order_and_unseeded_generators_repeat(tmp_path: Path) -> None:
    program = (sys.executable, PROGRAMS / "hash_order.py")

    assert plain(*program) != plain(*program)
    assert printed(tmp_path, *program) == printed(tmp_path, *program)


def test_python_started_by_a_shell_script_is_reached(tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text(f"{sys.executable} {PROGRAMS / 'hash_order.py'}\n")

    assert printed(tmp_path, "bash", script) == printed(tmp_path, sys.executable, PROGRAMS / "hash_order.py")


@pytest.mark.thorough("launching")
def test_without_a_seed_generators_are_left_alone(tmp_path: Path) -> None:
    code = "import random, torch; print(random.random(), torch.get_deterministic_debug_mode(), hash('a'))"
    first, second = (printed(tmp_path, sys.executable, "-c", code, before=("run", "--")).split() for _ in range(2))

    assert first[0] != second[0]
    assert first[1:] == second[1:] and first[1] == "2"


def test_options_reach_the_program(tmp_path: Path) -> None:
    code = "import torch; print(torch.get_deterministic_debug_mode(), torch.get_num_threads(), torch.get_float32_matmul_precision())"
    options = ("run", "--warn-only", "--threads", "1", "--precision", "high", "--")

    assert printed(tmp_path, sys.executable, "-c", code, before=options).split() == ["1", "1", "high"]


def test_a_hash_seed_in_the_environment_is_kept(tmp_path: Path) -> None:
    finished = run(
        tmp_path, "run", "--", sys.executable, "-c", "import os; print(os.environ['PYTHONHASHSEED'])",
        environment={"PYTHONHASHSEED": "7"},
    )  # fmt: skip

    assert finished.stdout == b"7\n"


def test_standard_streams_exit_status_and_arguments_pass_through(tmp_path: Path) -> None:
    code = "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data); print(sys.argv[1:], file=sys.stderr); sys.exit(7)"
    command = [*COMMAND, "run", "--", sys.executable, "-c", code, "--seed", "x"]
    ended = subprocess.run(command, input=bytes(range(256)), capture_output=True, check=False, cwd=tmp_path)

    assert (ended.returncode, ended.stdout, ended.stderr) == (7, bytes(range(256)), b"['--seed', 'x']\n")


def test_a_signal_that_ends_the_program_passes_through(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    ended = subprocess.run([*COMMAND, "run", "--", sys.executable, "-c", code], check=False, cwd=tmp_path)

    assert ended.returncode == -signal.SIGTERM


@pytest.mark.parametrize("option", ["-I", "-S", "-E", "-IB"])
def test_a_python_that_cannot_be_reached_is_not_started(option: str, tmp_path: Path) -> None:
    finished = run(tmp_path, "run", "--", sys.executable, option, "-c", "print('started')")

    assert finished.status == 2 and finished.stdout == b""
    assert "was not started" in finished.stderr


def test_a_missing_command_is_an_error(tmp_path: Path) -> None:
    finished = run(tmp_path, "run", "--", "no-such-command")

    assert finished.status == 2 and "is not on PATH" in finished.stderr


def test_a_seed_that_is_not_a_number_is_an_error(tmp_path: Path) -> None:
    assert run(tmp_path, "run", "--seed", "one", "--", "true").status == 2


@pytest.mark.thorough("launching")
def test_ranks_draw_different_numbers(tmp_path: Path) -> None:
    code = "import torch; print(torch.rand(1).item())"
    drawn = [
        run(tmp_path, "run", "--seed", "1", "--", sys.executable, "-c", code, environment={"RANK": rank}).stdout
        for rank in ("0", "1", "1")
    ]

    assert drawn[0] != drawn[1] == drawn[2]


def test_ranks_of_torchrun_draw_the_numbers_of_their_ranks(tmp_path: Path) -> None:
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    finished = run(tmp_path, "run", "--seed", "1", "--", *launcher, PROGRAMS / "rank_numbers.py")
    states = [generator(Streams(1, rank=rank), "default") for rank in range(2)]

    assert finished.status == 0, finished.stderr
    assert json.loads(finished.stdout) == [torch.rand(1, generator=state).item() for state in states]


def test_an_op_without_a_deterministic_implementation_raises(tmp_path: Path) -> None:
    code = "import torch; torch.zeros(4).put_(torch.tensor([0, 0]), torch.ones(2))"
    strict = run(tmp_path, "run", "--", sys.executable, "-c", code)
    warned = run(tmp_path, "run", "--warn-only", "--", sys.executable, "-c", code)

    assert strict.status == 1 and "put_ does not have a deterministic implementation" in strict.stderr
    assert warned.status == 0 and "put_ does not have a deterministic implementation" in warned.stderr


def test_a_setting_that_cannot_be_applied_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '2.13.0'\n")
    code = (
        "import subprocess, sys, torch; print(torch.__file__); subprocess.run([sys.executable, '-c', 'import torch'])"
    )
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    finished = run(tmp_path, "run", "--seed", "1", "--", sys.executable, "-c", code, environment=environment)

    assert finished.status == 0 and str(tmp_path) in finished.stdout.decode()
    assert finished.stderr.count("seed of torch, on every device: could not be applied. ") == 1
    assert "Traceback" not in finished.stderr


def test_a_setting_that_the_program_reverts_is_reported_at_its_end(tmp_path: Path) -> None:
    code = "import torch; torch.use_deterministic_algorithms({}); print('done')"
    back, kept = (run(tmp_path, "run", "--", sys.executable, "-c", code.format(mode)) for mode in (False, True))

    assert (back.status, back.stdout) == (0, b"done\n")
    said = "torch.use_deterministic_algorithms: changed by the program. It was 'error', and is now 'off'"
    assert back.stderr.count(said) == 1
    assert (kept.status, kept.stdout, kept.stderr) == (0, b"done\n", "")


def test_a_program_started_by_run_is_the_same_in_a_check(tmp_path: Path) -> None:
    program = (sys.executable, PROGRAMS / "classifier.py")
    finished = run(tmp_path, "check", "--no-explain", "--", *COMMAND, "run", "--seed", "1", "--", *program)

    assert finished.status == 0, finished.text
    assert "Same: " in finished.text


@pytest.mark.thorough("launching")
def test_a_resumed_run_ends_in_the_weights_of_the_full_run(tmp_path: Path) -> None:
    program = (sys.executable, PROGRAMS / "resumable.py")
    full = printed(tmp_path, *program, "3", tmp_path / "full.pt", before=("run", "--"))
    first = printed(tmp_path, *program, "2", tmp_path / "half.pt", before=("run", "--"))
    resumed = printed(tmp_path, *program, "3", tmp_path / "half.pt", before=("run", "--"))

    assert full.split()[0] == first.split()[0] == "0" and resumed.split()[0] == "2"
    assert resumed.split()[1] == full.split()[1] != first.split()[1]


@pytest.mark.thorough("launching")
@pytest.mark.parametrize("model", ["classifier", "gpt"])
def test_two_full_runs_and_a_resumed_one_end_in_the_same_weights(model: str, tmp_path: Path) -> None:
    """Dropout, augmentation, two workers, mixed precision, and a stop in the middle of an epoch."""
    assert goes_on_from_the_middle(tmp_path, "middle.py", model)


UNPOOLED = """
import torch
indices = torch.tensor([[[[0, 5], [5, 15]]]])
print(torch.nn.functional.max_unpool2d(torch.ones(1, 1, 2, 2), indices, 2).sum().item())
"""


def test_a_program_whose_op_raises_in_deterministic_mode_runs_with_patch(tmp_path: Path) -> None:
    refused = run(tmp_path, "run", "--", sys.executable, "-c", UNPOOLED)
    assert refused.status != 0
    assert "max_unpooling2d_forward_out does not have a deterministic implementation" in refused.text
    patched = run(tmp_path, "run", "--patch", "--", sys.executable, "-c", UNPOOLED)
    assert (patched.status, patched.stdout) == (0, b"3.0\n")
    assert "--patch" not in patched.text  # every op could be replaced
