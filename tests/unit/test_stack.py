"""What two runs ran on: which part decides most, and what a report says of it."""

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


def test_what_is_recorded_of_this_machine() -> None:
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


def test_the_stack_is_told_before_the_divergence() -> None:
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


def test_only_the_instruction_sets_that_one_lacks_are_told() -> None:
    text = text_of(make_comparison(environment=[("instruction sets", "avx avx2 avx512f", "avx avx2")]))
    assert "instruction sets: only run 1 has avx512f" in text
    assert "run 2 has" not in text


def test_which_run_differs() -> None:
    text = text_of(make_different(environment=[("package torch", "2.12.0", "2.13.0")], environment_run=3))
    assert "package torch was 2.12.0 in run 1, 2.13.0 in run 3" in text


def test_no_stack_is_told_where_it_is_the_same() -> None:
    assert "stack" not in text_of(make_different(environment=[("working directory", "/a", "/b")]))
    assert stack_differences([("executable", "a", "b"), ("variable PYTHONHASHSEED", "0", "1")]) == []
