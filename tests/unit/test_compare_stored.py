"""What comparing stored runs reports beyond the comparison: a likely cause, and the command to search for it."""

from __future__ import annotations

from pathlib import Path

import determinism
from tests.rendered import lines_of
from tests.traces import Ref, TraceBuilder

PROGRAM = "import numpy as np\nnoise = np.random.normal(size=3)\nx = torch.from_numpy(noise)\n"


def stored(folder: Path, name: str, digest: str, *, command: list[str]) -> Path:
    program = folder / "train.py"
    program.write_text(PROGRAM, encoding="utf-8")
    builder = TraceBuilder(folder / name, command=command)
    made = builder.add("aten::neg", [Ref(-1, digest=digest)], [f"negative {digest}"], site=(str(program), 3))
    builder.step({"weight": made})
    return builder.close()


def test_the_likely_cause_and_the_command_to_confirm_it_are_shown(tmp_path: Path) -> None:
    command = ["python", "train.py", "--name", "a b"]
    runs = [stored(tmp_path, name, name, command=command) for name in ("first", "second")]
    found = determinism.compare(*runs)
    assert [(cause.identifier, str(cause.status)) for cause in found.causes] == [("seed-missing-numpy", "likely")]
    lines = [line.strip() for line in lines_of(found)]
    assert lines[0] == "Different: NumPy's random numbers are drawn without a seed (likely)"
    assert "not searched      Comparing stored runs starts no program. To search:" in lines
    assert "determinism check -- python train.py --name 'a b'" in lines


def test_for_runs_of_two_commands_no_command_is_shown(tmp_path: Path) -> None:
    runs = [stored(tmp_path, name, name, command=["python", name]) for name in ("first", "second")]
    text = "\n".join(lines_of(determinism.compare(*runs)))
    assert "Comparing stored runs starts no program." in text and "determinism check" not in text


def test_equal_runs_have_no_cause(tmp_path: Path) -> None:
    runs = [stored(tmp_path, name, "same", command=["python", "train.py"]) for name in ("first", "second")]
    assert lines_of(determinism.compare(*runs)) == ["Same: 2 runs, 1 step, 3 records, every tensor bit-identical"]
