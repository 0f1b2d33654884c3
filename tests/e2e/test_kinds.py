"""Each kind of divergence is produced by a real program and reported correctly, with its location."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import determinism
from determinism.types import Kind
from tests.e2e.checking import check, check_command, line, site_of
from tests.thorough import is_turn

TRIES = 20
"""Maximum number of checks of a program that varies only with some probability."""

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: threads cannot race")


class Expected(NamedTuple):
    """What a report must state."""

    program: str
    kind: str
    step: int
    phase: str
    op: str
    module: str | None
    inputs_equal: bool | None


EXPECTED = [
    Expected("unseeded_head", "rng", 0, "init", "aten::uniform_", None, True),
    Expected("late_dropout", "rng", 2, "forward", "aten::bernoulli_.float", "regular.dropout", True),
    Expected("label_numbers", "data", 0, "init", "aten::lift_fresh", None, False),
    Expected("numpy_batch", "data", 1, "other", "aten::lift_fresh", None, False),
    Expected("numpy_buffer", "data", 1, "forward", "aten::addmm", "0", False),
    Expected("clock_rate", "argument", 0, "optimizer", "aten::add_.Tensor", None, None),
    Expected("random_scale", "argument", 1, "forward", "aten::mul.Tensor", "augment", None),
    Expected("task_order", "order", 0, "forward", "aten::add.Tensor", None, False),
    Expected("unfilled_batch", "uninitialized", 1, "forward", "aten::addmm", "0", False),
    Expected("numpy_write", "mutation", 1, "forward", "aten::addmm", "2", False),
]

ALWAYS = {"unseeded_head", "numpy_batch", "clock_rate", "task_order", "unfilled_batch", "numpy_write"}
"""One program of each kind. These take turns from commit to commit; `make test` runs only these."""

DEAD = {"unseeded_head": 2, "unfilled_batch": 2 * 64}
"""Differences that nothing reads: weights that are overwritten before use, and old contents of memory."""


def test_one_program_of_each_kind_is_always_checked() -> None:
    assert {expected.kind for expected in EXPECTED if expected.program in ALWAYS} == {one.kind for one in EXPECTED}


def assert_named(report: dict[str, Any], expected: Expected) -> None:
    assert report["verdict"] == "different"
    first = report["first_divergence"]
    assert Expected(expected.program, *(first[name] for name in Expected._fields[1:])) == expected
    assert site_of(report) == (expected.program, line(expected.program))
    assert first["stack"][0] == first["site"]
    assert first["outputs"] != []
    assert report["absorbed"] is False


@pytest.mark.parametrize(
    "expected",
    [
        pytest.param(
            expected,
            id=expected.program,
            marks=() if expected.program in ALWAYS and is_turn(number, 3) else pytest.mark.thorough("kinds"),
        )
        for number, expected in enumerate(EXPECTED)
    ],
)
def test_kind_and_location_are_reported(expected: Expected, tmp_path: Path) -> None:
    report = check(tmp_path, expected.program, options=("--no-explain",))
    assert_named(report, expected)
    assert report["first_divergence"]["forward_site"] is None
    assert report["evidence"] is report["reproducer"] is None
    assert report["first_visible"]["step"] == expected.step
    assert report["dead_differences"]["count"] == DEAD.get(expected.program, 0)


def test_input_that_differs_is_named(tmp_path: Path) -> None:
    report = check(tmp_path, "numpy_buffer", options=("--explain", "--budget", "1"))
    (named,) = report["first_divergence"]["inputs"]
    assert named["path"] == "mat1"
    assert named["elements_different"] > 0
    labels = [one["label"] for one in report["story"]]
    assert labels.index(f"input {named['position']}") < labels.index("output")


def test_a_size_that_differs_is_reported_where_the_memory_is_allocated(tmp_path: Path) -> None:
    program = tmp_path / "width.py"
    program.write_text(
        "import numpy, torch\n"
        "width = int(numpy.random.RandomState().randint(4, 2**20))\n"
        "layer = torch.nn.Linear(2, width)\n"
        "print(layer(torch.ones(1, 2)).sum().item())\n"
    )
    report = check_command(tmp_path, [sys.executable, str(program)], options=("--no-explain",)).report
    first = report["first_divergence"]
    assert (first["kind"], first["op"], first["site"]["line"]) == ("argument", "aten::empty.memory_format", 3)
    assert first["inputs_equal"] is None
    assert "size=[" in next(entry["text"] for entry in report["story"] if entry["label"] == "detail")
    assert not any("equal" in entry["text"] for entry in report["story"] if entry["label"] == "inputs")


def test_a_time_that_is_only_logged_does_not_reach_trained_parameters(tmp_path: Path) -> None:
    program = tmp_path / "speed.py"
    program.write_text(
        textwrap.dedent("""
            import sys, time, torch

            torch.manual_seed(0)
            layer = torch.nn.Linear(2, 2)
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
            for step in range(2):
                started = time.perf_counter()
                loss = layer(torch.ones(1, 2)).square().sum()
                loss.backward()
                optimizer.step()
                taken = torch.tensor(time.perf_counter() - started)
                if "trains" in sys.argv:
                    loss = loss + taken
                    layer.bias.data += taken
                print(taken.item())
        """)
    )

    def reached(*arguments: str) -> str:
        command = [sys.executable, str(program), *arguments]
        report = check_command(tmp_path, command, options=("--no-explain",)).report
        return next(one["text"] for one in report["story"] if one["label"] == "reached" and not one["is_detail"])

    assert reached() == "value read by item() at step 1; nothing that was trained and no saved tensor differs"
    trained = reached("trains")
    assert "parameters" in trained and "nothing" not in trained


EVALUATED = """
    import sys, torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.seed()
    if "noise" in sys.argv:
        model.eval()
    with torch.set_grad_enabled("trains" in sys.argv):
        total = model(torch.randn(32, 2) if "noise" in sys.argv else torch.ones(32, 2)).sum()
    if "trains" in sys.argv:
        total.backward()
        optimizer.step()
    print(total.item())
"""


@pytest.mark.parametrize(("argument", "is_hinted"), [("evaluates", True), ("trains", False), ("noise", False)])
def test_a_dropout_without_a_backward_pass_is_reported_to_be_in_training_mode(
    argument: str, is_hinted: bool, tmp_path: Path
) -> None:
    program = tmp_path / "model.py"
    program.write_text(textwrap.dedent(EVALUATED))
    report = check_command(tmp_path, [sys.executable, str(program), argument], options=("--no-explain",)).report
    assert report["first_divergence"]["kind"] == "rng"
    hints = [one["text"] for one in report["story"] if one["label"] == "hint"]
    assert any("Call model.eval()" in hint for hint in hints) is is_hinted
    assert bool(report["first_divergence"]["hint"]) is is_hinted


def test_order_of_modules_is_reported(tmp_path: Path) -> None:
    report = check(tmp_path, "module_order", options=("--no-explain",))
    orders = [text.split() for text in (tmp_path / "order.txt").read_text().splitlines()]
    parted = next(mine for mine, other in zip(*orders, strict=True) if mine != other)
    module = f"1.branches.{parted}"
    assert_named(report, Expected("module_order", "order", 0, "forward", "aten::addmm", module, False))


def test_the_confirming_run_distinguishes_a_write_by_address_from_the_op(tmp_path: Path) -> None:
    report = check(tmp_path, "raw_write", options=("--explain", "--output", "traces"))
    assert_named(report, Expected("raw_write", "mutation", 2, "forward", "aten::addmm", "2", False))
    unconfirmed = determinism.compare(tmp_path / "traces" / "run-1", tmp_path / "traces" / "run-2").first_divergence
    assert unconfirmed is not None
    assert (unconfirmed.kind, unconfirmed.inputs_equal) == (Kind.OP, None)


def test_a_loop_ended_by_the_clock_is_a_structural_difference(tmp_path: Path) -> None:
    report, steps = check_until_parted(
        tmp_path, "clock_loop", lambda: (tmp_path / "steps.txt").read_text().split()[-2:]
    )
    step = min(int(number) for number in steps)
    assert_named(report, Expected("clock_loop", "structure", step, "forward", "aten::addmm", "0", None))


def test_a_branch_chosen_by_the_clock_is_a_structural_difference(tmp_path: Path) -> None:
    report, chosen = check_until_parted(
        tmp_path, "clock_branch", lambda: (tmp_path / "chosen.txt").read_text().split()[-2:]
    )
    step = next(number for number, (mine, other) in enumerate(zip(*chosen, strict=True)) if mine != other)
    assert_named(report, Expected("clock_branch", "structure", step, "forward", "aten::sigmoid", None, None))


WITHOUT_A_MODE = {"aten::index_put": "aten::_index_put_impl_", "aten::put": "aten::put_"}
"""Ops of the backward pass with the native recorder, which is not a mode and so changes no derivative formulas."""


@needs_two_cores
@pytest.mark.parametrize(
    ("program", "op", "phase", "site", "forward_site"),
    [
        pytest.param(
            "index_put", "aten::index_put_", "forward", "SITE index_put", None, marks=pytest.mark.thorough("kinds")
        ),
        pytest.param("put", "aten::put_", "forward", "SITE put", None, marks=pytest.mark.thorough("kinds")),
        ("index_backward", "aten::index_put", "backward", "SITE backward", "SITE index_backward"),
        pytest.param(
            "take_backward",
            "aten::put",
            "backward",
            "SITE backward",
            "SITE take_backward",
            marks=pytest.mark.thorough("kinds"),
        ),
    ],
)
def test_an_op_that_varies_with_two_threads_is_reported(
    program: str, op: str, phase: str, site: str, forward_site: str | None, tmp_path: Path
) -> None:
    def sums() -> list[list[str]]:
        logs = sorted(tmp_path.glob("sums-*.txt"), key=lambda log: log.stat().st_ctime_ns)
        found = [log.read_text().split() for log in logs[:2]]
        for log in logs:
            log.unlink()
        return found

    def varies_again(report: dict[str, Any]) -> bool:
        return all((output["distinct"] or 0) > 1 for output in report["first_divergence"]["outputs"])

    report, found = check_until_parted(
        tmp_path, "racing_sums", sums, program, options=("--explain",), is_enough=varies_again
    )
    step = next(number for number, (mine, other) in enumerate(zip(*found, strict=True)) if mine != other)
    first = report["first_divergence"]
    if report["recorded"]["recorders"][0]["name"] == "native":
        op = WITHOUT_A_MODE.get(op, op)
    assert (first["kind"], first["step"], first["phase"], first["op"]) == ("op", step, phase, op)
    assert first["module"] == "layers.sums"
    assert site_of(report) == ("racing_sums", line("racing_sums", site))
    expected_forward = None if forward_site is None else ("racing_sums", line("racing_sums", forward_site))
    assert site_of(report, "forward_site") == expected_forward
    assert first["inputs_equal"] is True
    (output,) = first["outputs"]
    assert (output["dtype"], output["shape"], output["elements"]) == ("float32", [61], 61)
    assert output["repeats"] > 1
    assert output["distinct"] > 1
    assert 1 <= output["elements_different"] <= 61
    assert output["max_ulp"] >= 1
    assert output["max_abs"] > 0
    assert output["distinct_one_thread"] == output["distinct_alignments"] == 1
    assert output["examples"][0]["first"] != output["examples"][0]["second"]
    assert sorted(os.listdir(report["evidence"]["folder"])) == ["inputs.safetensors", "outputs.safetensors"]
    assert sorted(os.listdir(Path(report["reproducer"]).parent)) == ["inputs.safetensors", "reproduce.py"]


def check_until_parted(
    folder: Path,
    program: str,
    log: Callable[[], list[Any]],
    *arguments: str,
    options: tuple[str, ...] = ("--no-explain",),
    is_enough: Callable[[dict[str, Any]], bool] = lambda report: True,
) -> tuple[dict[str, Any], list[Any]]:
    """Check until two runs differ according to their own logs; the verdict must agree with the logs each time.

    On a busy machine, two threads may not overlap while an op is repeated; such a report is not yet enough.
    """
    for _ in range(TRIES):
        report = check(folder, program, *arguments, options=options)
        mine, other = log()
        assert report["verdict"] == ("same" if mine == other else "different")
        if mine != other and is_enough(report):
            return report, [mine, other]
    pytest.fail(f"{program} did not vary in {TRIES} checks")


def test_deterministic_versions_are_the_same(tmp_path: Path) -> None:
    report = check(tmp_path, "all_fixed")
    assert report["first_divergence"] is None
    assert report["verdict"] == "same"
    assert report["recorded"]["records"] > 1000


def test_unwritten_memory_is_attributed_to_its_allocation_without_experiments(tmp_path: Path) -> None:
    report = check(tmp_path, "unfilled_batch", options=("--no-explain",))
    (cause,) = report["causes"]
    assert (cause["id"], cause["status"]) == ("uninitialized-memory", "likely")
    assert "torch.empty(32, 32)" in cause["sites"][0]["code"]


RECEIVING = """
    import os, random, sys, time, torch, torch.distributed as dist

    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    if rank == 0:
        total = torch.zeros(4)
        for _ in range(4):
            part = torch.empty(4)
            dist.recv(part{source})  # RECEIVED
            total = 0.5 * total + part
        print(total.sum().item())
    else:
        first = int(os.path.exists("second run")) + 1
        for number in range(2):
            time.sleep(0.05 if rank == first else 1.5)
            dist.send(torch.full((4,), float(10 * rank + number)), 0)
    dist.barrier()
    if rank == 0:
        open("second run", "w").close()
    dist.destroy_process_group()
"""


def receiving(folder: Path, source: str) -> dict[str, Any]:
    (folder / "receiving.py").write_text(textwrap.dedent(RECEIVING).replace("{source}", source))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "receiving.py"]
    return check_command(folder, launcher, options=("--no-explain",)).report


def test_receiving_from_whichever_rank_sends_first_is_reported_with_its_line(tmp_path: Path) -> None:
    report = receiving(tmp_path, "")
    assert report["verdict"] == "different"
    assert report["first_divergence"]["kind"] == "order"
    (cause,) = report["causes"]
    assert (cause["id"], cause["status"]) == ("arrival-order", "likely")
    assert "# RECEIVED" in cause["sites"][0]["code"]


def test_receiving_from_each_rank_in_turn_is_the_same(tmp_path: Path) -> None:
    assert receiving(tmp_path, ", src=_ % 2 + 1")["verdict"] == "same"
