"""The script that reproduces an op runs by itself, from the call that a capturing run saved."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from determinism.diagnose.reproducer import write_reproducer
from determinism.trace.files import read_tensors
from tests.torch_captures import capture

aten = torch.ops.aten
COUNT = 524_288
PLACES = torch.arange(COUNT) * 7919 % 61
VALUES = torch.linspace(-3.0, 7.0, COUNT).sin()

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: threads cannot race")


class Ended(NamedTuple):
    """How a script ended."""

    status: int
    output: str


def run_script(folder: Path, call: dict[str, Any], *, moves: bool = False, repeats: int = 20) -> Ended:
    """Write the script, and run it where only the standard library and PyTorch can be imported."""
    path = write_reproducer(
        folder / "reproducer",
        folder / "kept" / "inputs.safetensors",
        call,
        origin="",
        seen="",
        repeats=repeats,
        moves=moves,
    )
    text = path.read_text().replace("MORE_SECONDS = 5.0", "MORE_SECONDS = 0.5")
    path.write_text(
        "import sys\nsys.modules['safetensors'] = sys.modules['determinism'] = sys.modules['numpy'] = None\n" + text
    )
    ended = subprocess.run([sys.executable, "-P", str(path)], capture_output=True, text=True, timeout=600, cwd=folder)
    return Ended(ended.returncode, ended.stdout + ended.stderr)


class Loaded(NamedTuple):
    """A script in this process."""

    names: dict[str, Any]

    def run(self, monkeypatch: pytest.MonkeyPatch) -> int:
        """Run the main function of the script; return its exit status."""
        monkeypatch.setattr("sys.argv", ["reproduce.py"])
        self.names["MORE_SECONDS"] = 0.0
        status: int = self.names["main"]()
        return status


def load(folder: Path, call: dict[str, Any], *, moves: bool = False, repeats: int = 12) -> Loaded:
    path = write_reproducer(
        folder, folder / "kept" / "inputs.safetensors", call, origin="", seen="", repeats=repeats, moves=moves
    )
    names: dict[str, Any] = {"__name__": "script", "__file__": str(path)}
    exec(compile(path.read_text(), path, "exec"), names)
    return Loaded(names)


@needs_two_cores
def test_a_race_is_reproduced(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = capture(
            lambda: torch.zeros(61).index_put_((PLACES,), VALUES, accumulate=True),
            "aten::index_put_",
            tmp_path,
            repeats=2,
        )
    finally:
        torch.set_num_threads(before)
    for _ in range(30):  # a busy machine may let two threads take turns for a while
        ended = run_script(tmp_path, found["saved"]["call"], repeats=60)
        if ended.status:
            break
    assert ended.status == 1, ended.output
    assert "output 0 differs in" in ended.output
    assert "distinct results in" in ended.output
    assert "2 threads" in ended.output
    assert f"torch {torch.__version__}" in ended.output


def strided() -> torch.Tensor:
    """Neither contiguous nor at the beginning of its memory, with a dimension that repeats its elements."""
    return torch.arange(60.0).reshape(10, 6)[2:, 1::2].t().unsqueeze(1).expand(3, 4, 8)


STEADY: dict[str, tuple[Callable[[], Any], str]] = {
    "one place each": (lambda: torch.zeros(61).index_put_((torch.arange(61),), VALUES[:61]), "aten::index_put_"),
    "strides": (lambda: strided().mul(VALUES[:8]), "aten::mul.Tensor"),
    "same tensor twice": (lambda: aten.mul.Tensor(VALUES, VALUES), "aten::mul.Tensor"),
    "written and returned": (lambda: torch.ones(5).addcmul_(VALUES[:5], VALUES[3:8]), "aten::addcmul_"),
    "lists that are written": (
        lambda: torch._foreach_add_([torch.ones(3), torch.ones(2, 2)], [torch.ones(3), torch.ones(2, 2)]),
        "aten::_foreach_add_.List",
    ),
    "statistics": (
        lambda: torch.nn.functional.batch_norm(torch.randn(4, 3), torch.zeros(3), torch.ones(3), training=True),
        "aten::native_batch_norm",
    ),
    "global generator": (lambda: torch.empty(9).normal_(), "aten::normal_"),
    "own generator": (lambda: torch.rand(9, generator=torch.Generator().manual_seed(3)), "aten::rand.generator"),
    "text": (lambda: torch.nn.functional.gelu(VALUES[:7], approximate="tanh"), "aten::gelu"),
    "dtypes": (lambda: VALUES[:9].to(torch.bfloat16), "aten::_to_copy"),
    "half": (lambda: VALUES[:9].bfloat16() @ VALUES[:9].bfloat16(), "aten::dot"),
    "complex": (lambda: torch.complex(VALUES[:4], VALUES[4:8]).conj() * 2j, "aten::mul.Tensor"),
    "numbers": (lambda: torch.clamp(VALUES[:9], min=float("-inf"), max=0.1), "aten::clamp"),
    "nothing": (lambda: torch.zeros(0, 3).sum(0), "aten::sum.dim_IntList"),
    "bool": (lambda: (VALUES[:9] > 0) & (VALUES[:9] > 1), "aten::bitwise_and.Tensor"),
    "float8": (lambda: VALUES[:9].to(torch.float8_e5m2fnuz).float(), "aten::_to_copy"),
}


@pytest.mark.parametrize("name", STEADY)
def test_the_script_computes_the_same_results_as_the_program(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Workers of pytest-xdist run a second thread; with several threads, draws from the shared generator are not repeated.
    monkeypatch.setattr("threading.active_count", lambda: 1)
    program, op = STEADY[name]
    found = capture(program, op, tmp_path, repeats=3)
    assert found["saved"]["reason"] is None
    assert [output["distinct"] for output in found["outputs"]] == [1] * len(found["outputs"])
    kept = read_tensors(tmp_path / "kept" / "outputs.safetensors")
    assert kept
    script = load(tmp_path, found["saved"]["call"], moves=True)
    names = script.names
    tensors = {name: names["copy_of"](name, elements, 0) for name, elements in names["read_inputs"]().items()}
    results = names["results_of"](names["call"](tensors), tensors)
    assert [names["bits"](result) for result in results] == [bytes(tensor.elements) for tensor in kept.values()]
    assert script.run(monkeypatch) == 0
    assert "1 distinct results in 12 repeats" in capsys.readouterr().out


def test_an_op_that_reads_uninitialized_memory_varies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, right = torch.randn(30, 20), torch.randn(30, 3)
    found = capture(lambda: torch.linalg.lstsq(matrix, right), "aten::linalg_lstsq", tmp_path, repeats=2)
    assert load(tmp_path, found["saved"]["call"], repeats=100).run(monkeypatch) == 1


@pytest.mark.parametrize(("moves", "results"), [(True, 7), (False, 1)])
def test_a_result_that_depends_on_alignment_varies_only_if_inputs_move(
    moves: bool, results: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = capture(lambda: torch.arange(40.0)[3:].exp(), "aten::exp", tmp_path, repeats=2)
    script = load(tmp_path, found["saved"]["call"], moves=moves)
    # No op of PyTorch is known to depend on alignment on every machine.
    script.names["call"] = lambda tensor: torch.tensor(tensor["self"].data_ptr() % 64)
    assert script.run(monkeypatch) == int(moves)
    output = capsys.readouterr().out
    assert f"{results} distinct results in 12 repeats" in output
    assert ("at a different address in each repeat" in output) is moves


def test_the_script_of_an_op_that_does_not_vary_succeeds(tmp_path: Path) -> None:
    program, op = STEADY["one place each"]
    ended = run_script(tmp_path, capture(program, op, tmp_path, repeats=3)["saved"]["call"])
    assert ended.status == 0, ended.output
    assert "1 distinct results in" in ended.output


def test_a_hostile_argument_is_only_an_argument(tmp_path: Path) -> None:
    found = capture(STEADY["text"][0], "aten::gelu", tmp_path, repeats=2)
    call = found["saved"]["call"]
    call["kwargs"] = {"approximate": "'); open('hacked', 'w') #"}
    ended = run_script(tmp_path, call)
    assert "approximate" in ended.output
    assert ended.status == 1
    assert not (tmp_path / "hacked").exists()


def test_inputs_that_are_too_large_are_not_kept(tmp_path: Path) -> None:
    found = capture(lambda: VALUES * 2, "aten::mul.Tensor", tmp_path, repeats=2, most_bytes=1 << 20)
    assert found["saved"]["call"] is None
    assert found["saved"]["reason"] == "its inputs take 2.0 MiB, and 1.0 MiB may be kept"
    assert found["outputs"][0]["distinct"] == 1
    assert not (tmp_path / "kept" / "inputs.safetensors").exists()


def test_an_op_that_is_not_part_of_pytorch_has_no_script(tmp_path: Path) -> None:
    with torch.library._scoped_library("determinism_test", "DEF") as library:
        library.define("twice(Tensor values) -> Tensor")
        library.impl("twice", lambda values: values * 2, "CPU")
        found = capture(
            lambda: torch.ops.determinism_test.twice(VALUES[:3]), "determinism_test::twice", tmp_path, repeats=2
        )
    assert found["saved"]["call"] is None
    assert "is not part of PyTorch" in found["saved"]["reason"]
    assert list(read_tensors(tmp_path / "kept" / "inputs.safetensors")) == ["values"]
