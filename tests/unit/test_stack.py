"""The hardware and software that two runs ran on: which part matters most, and what a report says about it."""

from __future__ import annotations

import pytest

from determinism import environment
from determinism.environment import Part, part_of, stack_differences
from tests.builders import make_comparison, make_different
from tests.rendered import lines_of, text_of


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("processor", Part.HARDWARE),
        ("gpu 0", Part.HARDWARE),
        ("gpus", Part.HARDWARE),
        ("variable CUDA_VISIBLE_DEVICES", Part.HARDWARE),
        ("processors", Part.THREADS),
        ("torch.get_num_threads()", Part.THREADS),
        ("variable MKL_NUM_THREADS", Part.THREADS),
        ("tf.config.threading.get_intra_op_parallelism_threads()", Part.THREADS),
        ("package torch", Part.LIBRARIES),
        ("library oneDNN", Part.LIBRARIES),
        ("driver of gpus", Part.LIBRARIES),
        ("torch.get_float32_matmul_precision()", Part.SETTINGS),
        ("variable ONEDNN_MAX_CPU_ISA", Part.SETTINGS),
        ("variable TF_DETERMINISTIC_OPS", Part.SETTINGS),
        ("platform", Part.SYSTEM),
        ("variable PYTHONHASHSEED", Part.OTHER),
        ("variable TF_CLI_CONFIG_FILE", Part.OTHER),
        ("working directory", Part.OTHER),
    ],
)
def test_each_fact_belongs_to_a_part(name: str, part: Part) -> None:
    assert part_of(name) is part


def test_the_description_of_this_machine_is_complete() -> None:
    found = environment.describe()
    assert {
        "processor",
        "instruction sets",
        "processors",
        "gpus",
        "driver of gpus",
        "platform",
        "python",
    } <= found.keys()
    assert all(found.values())


def test_the_stack_is_reported_before_the_divergence() -> None:
    differences = [
        ("processor", "A", "B"),
        ("variable OMP_NUM_THREADS", "not set", "2"),
        ("working directory", "/a", "/b"),
    ]
    lines = lines_of(make_different(environment=differences), verbose=True)
    told = [next(at for at, line in enumerate(lines) if text in line) for text in (
        "processor was A in run 1, B in run 2", "variable OMP_NUM_THREADS was not set in run 1, 2 in run 2",
        "kind              op:", "working directory was /a in run 1",
    )]  # fmt: skip
    assert told == sorted(told)
    assert lines[told[0]].split()[0] == "stack"


def test_only_instruction_sets_missing_in_one_run_are_reported() -> None:
    text = text_of(make_comparison(environment=[("instruction sets", "avx avx2 avx512f", "avx avx2")]))
    assert "instruction sets: only run 1 has avx512f" in text
    assert "run 2 has" not in text


def test_the_run_that_differs_is_named() -> None:
    text = text_of(make_different(environment=[("package torch", "2.12.0", "2.13.0")], environment_run=3))
    assert "package torch was 2.12.0 in run 1, 2.13.0 in run 3" in text


def test_an_equal_stack_is_not_reported() -> None:
    assert "stack" not in text_of(make_different(environment=[("working directory", "/a", "/b")]))
    assert stack_differences([("executable", "a", "b"), ("variable PYTHONHASHSEED", "0", "1")]) == []
