"""The programs whose traces are stored, and how each was recorded."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.e2e.checking import PROGRAMS

OUT = "{out}"
"""Placeholder for the folder of the traces in a command."""
DOCUMENT = "report.json"
"""Name of a report that was made while the program could still be run."""


class Case(NamedTuple):
    """One or more programs that are recorded, and how their runs are compared."""

    name: str
    """Family and name."""
    commands: tuple[tuple[str, ...], ...]
    """Arguments of `determinism`, one command after the other."""
    framework: str = "torch"
    compared: str = "runs"
    """`runs`, `resume` or `batch`; `document` if only the report is stored."""
    verdict: str = "different"
    """The expected verdict; recording is repeated until it is reached, since some programs vary by chance."""
    allow_failure: bool = False
    strict: bool = False
    source: str = ""
    """The case whose traces are used instead of recording."""
    damage: Callable[[Path], None] | None = None
    """Damages the traces."""


def _python(program: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, str(PROGRAMS / f"{program}.py"), *arguments)


def _ranks(program: str, *arguments: str, ranks: int = 2) -> tuple[str, ...]:
    start = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    return (*start, str(PROGRAMS / f"ranks/{program}.py"), *arguments)


_CHECK = ("check", "--no-explain", "--runs", "2", "--keep", "--output", OUT)


def _checked(name: str, program: tuple[str, ...], *options: str, **properties: object) -> Case:
    return Case(name, ((*_CHECK, *options, "--", *program),), **properties)  # type: ignore[arg-type]


def _recorded(name: str, *runs: tuple[tuple[str, ...], tuple[str, ...]], **properties: object) -> Case:
    """Runs that are recorded one by one, each with its own options and program."""
    commands = tuple(
        ("record", "-o", f"{OUT}/run-{number}", *options, "--", *program)
        for number, (options, program) in enumerate(runs, start=1)
    )
    return Case(name, commands, **properties)  # type: ignore[arg-type]


_KINDS = (
    "unseeded_head", "late_dropout", "label_numbers", "numpy_batch", "numpy_buffer", "clock_rate", "random_scale", "task_order",
    "unfilled_batch", "numpy_write", "raw_write", "clock_loop", "clock_branch", "module_order",
)  # fmt: skip
KINDS = [
    *(_checked(f"kinds/{program}", _python(program)) for program in _KINDS),
    _checked("kinds/racing_put", _python("racing_sums", "put")),
    _checked("kinds/racing_backward", _python("racing_sums", "index_backward")),
    _checked("kinds/all_fixed", _python("all_fixed"), verdict="same"),
]

STARTS = [
    _checked("starts/package", (sys.executable, "-m", "starts.perceptron"), verdict="same"),
    _checked(
        "starts/shell", ("env", f"PYTHON={sys.executable}", "bash", str(PROGRAMS / "starts/both.sh")), verdict="same"
    ),
]

THREADS = [
    _checked("threads/clean", _python("threads/branches"), verdict="same"),
    _checked("threads/bit", _python("threads/branches", "bit")),
    _checked("threads/draws", _python("threads/branches", "draws")),
    _checked("threads/order", _python("threads/branches", "order")),
    _checked("threads/lost_update", _python("threads/counting", "lost")),
    _checked("threads/torn_snapshot", _python("threads/snapshots", "torn")),
]

CHILDREN = [
    _checked("children/clean", _python("children/averaging", "fork,spawn"), verdict="same"),
    _checked("children/bit", _python("children/averaging", "fork", "bit")),
    _checked("children/seed", _python("children/averaging", "forkserver", "seed")),
    _checked("children/race", _python("children/hogwild", "race")),
    _checked("children/file", _python("children/prepared_file", "seed")),
    _checked("children/shared_results", _python("children/shared_results", "seed", "told")),
    _checked("children/pool_bit", _python("children/tasks", "pool", "bit")),
    _checked("children/executor_order", _python("children/tasks", "executor", "order")),
]

LOADERS = [
    _checked("loaders/clean", _python("loaders/epochs", "main,fork,unordered"), verdict="same"),
    _checked("loaders/bit", _python("loaders/epochs", "fork", "bit")),
    _checked("loaders/stream_bit", _python("loaders/epochs", "iterable", "bit")),
    _checked("loaders/seed", _python("loaders/epochs", "spawn", "seed")),
    _checked("loaders/order", _python("loaders/epochs", "unordered", "order")),
]

RANKS = [
    _checked("ranks/clean", _ranks("replicas"), verdict="same"),
    _checked("ranks/seed", _ranks("replicas", "seed")),
    _checked("ranks/shards_bit", _ranks("shards", "bit")),
    _checked("ranks/collectives_bit", _ranks("collectives", "bit")),
    _checked("ranks/pipeline_back", _ranks("pipeline", "back")),
]

COMPILERS = [
    _checked("compilers/clean", _python("compilers/compiled", "inductor"), verdict="same"),
    _checked("compilers/bit", _python("compilers/compiled", "inductor", "bit")),
    _checked("compilers/seed", _python("compilers/compiled", "inductor", "seed")),
    _checked("compilers/transformed", _python("compilers/transformed", "bit")),
]

TRAINING = [
    _checked("training/rivals_noise", _python("training/rivals", "noise")),
    _checked("training/closures_rate", _python("training/closures", "rate")),
    _checked("training/mixed_recomputed", _python("training/mixed", "recomputed")),
    _checked("training/copies_average", _python("training/copies", "average")),
    _checked("training/kinds_fill", _python("training/kinds", "fill")),
]

LEVELS = [
    _checked("levels/step", _python("unseeded_head"), "--level", "step"),
    _checked("levels/module", _python("late_dropout"), "--level", "module"),
    _checked("levels/paranoid", _python("raw_write"), "--paranoid"),
    _checked("levels/two_steps", _python("late_dropout"), "--steps", "2", verdict="same"),
    _checked("levels/dead_difference", _python("unseeded_head", "fixed"), verdict="same"),
    _recorded("levels/values", *[(("--values", "64"), _python("late_dropout"))] * 2),
    _recorded(
        "levels/unlike",
        *[(("--level", level), _python("breaking")) for level in ("step", "op")],
        verdict="inconclusive",
    ),
]

_TWO_MACHINES = [("--part", name) for name in ("first", "second")]


def _parts(name: str, second: str, **properties: object) -> Case:
    """Two runs in two parts each."""
    commands = tuple(
        ("record", "-o", f"{OUT}/run-{run}", *part, "--", *_python(second if run == 2 and part[1] == "second" else "breaking"))
        for run in (1, 2)
        for part in _TWO_MACHINES
    )  # fmt: skip
    return Case(name, commands, **properties)  # type: ignore[arg-type]


PARTS = [_parts("parts/clean", "breaking", verdict="same"), _parts("parts/unlike", "unseeded_head")]

BROKEN = [
    _checked("broken/finished", _python("breaking"), verdict="same"),
    _checked("broken/raise", _python("breaking", "raise"), verdict="inconclusive"),
    _checked("broken/raise_allowed", _python("breaking", "raise"), "--allow-failure", verdict="same", allow_failure=True),
    _checked("broken/killed", _python("breaking", "kill"), "--allow-failure", verdict="same", allow_failure=True),
    _checked("broken/sometimes", _python("breaking", "sometimes")),
    _checked("broken/longer", _python("breaking", "longer")),
    _checked("broken/max_disk", _python("breaking", "finish", "2", "200"), "--max-disk", "64k", verdict="inconclusive"),
    _checked("broken/fail_fast", _python("breaking", "unseeded", "9", "6"), "--fail-fast"),
]  # fmt: skip


# Damage to intact traces.


def _cut_records(traces: Path) -> None:
    records = traces / "run-2/processes/main/records.arrow"
    content = records.read_bytes()
    records.write_bytes(content[: len(content) * 3 // 5])


def _cut_names(traces: Path) -> None:
    names = traces / "run-2/processes/main/names.arrow"
    names.write_bytes(names.read_bytes()[:700])


def _overwrite_records(traces: Path) -> None:
    records = traces / "run-1/processes/main/records.arrow"
    content = bytearray(records.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 64] = bytes(64)
    records.write_bytes(content)


def _lose_process(traces: Path) -> None:
    shutil.rmtree(next((traces / "run-2/processes").glob("main.*")))


def _lose_manifest(traces: Path) -> None:
    (traces / "run-2/manifest.json").unlink()


def _change_manifest(traces: Path, **facts: object) -> None:
    manifest = traces / "run-2/manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text(encoding="utf-8")), **facts}), encoding="utf-8")


def _damaged(name: str, damage: Callable[[Path], None], source: str = "broken/finished") -> Case:
    return Case(f"damaged/{name}", (), source=source, damage=damage)


DAMAGED = [
    _damaged("cut_records", _cut_records),
    _damaged("cut_names", _cut_names),
    _damaged("overwritten_records", _overwrite_records),
    _damaged("lost_process", _lose_process, "loaders/clean"),
    _damaged("lost_manifest", _lose_manifest),
    _damaged("newer", lambda traces: _change_manifest(traces, format="determinism.trace/99")),
    _damaged("foreign", lambda traces: _change_manifest(traces, format="another.trace/1")),
    _damaged("unfinished", lambda traces: _change_manifest(traces, complete=False, exit_status=None)),
    _damaged("interrupted", lambda traces: _change_manifest(traces, stopped_by="interrupt", exit_status=130)),
]


# Resumed runs, and batches of different sizes.

_RESUME = ("check-resume", "--no-explain", "--keep", "--output", OUT)
_FILLED_IN = ("--steps", "{steps}", "--save", "{save}", "--load", "{load}")


def _resumed(name: str, program: str, *arguments: str, **properties: object) -> Case:
    command = (*_RESUME, "--steps", "5", "--at", "2", "--", *_python(f"resumed/{program}", *_FILLED_IN, *arguments))
    return Case(f"resume/{name}", (command,), compared="resume", **properties)  # type: ignore[arg-type]


RESUME = [
    _resumed("clean", "checkpoints", verdict="same"),
    _resumed("without_optimizer", "checkpoints", "--without", "optimizer"),
    _resumed("without_rng", "checkpoints", "--without", "rng"),
    _resumed("without_generator", "drawing", "--without", "generator"),
    _resumed("without_buffer", "drawing", "--without", "buffer"),
    _resumed("unseeded", "checkpoints", "--unseeded", verdict="inconclusive"),
]

_BATCH = ("check-batch", "--no-explain", "--keep", "--output", OUT, "--sizes", "1,8,24", "--")


def _batched(name: str, *arguments: str, **properties: object) -> Case:
    command = (*_BATCH, *_python("batches", "--batch", "{batch}", *arguments))
    return Case(f"batch/{name}", (command,), compared="batch", **properties)  # type: ignore[arg-type]


BATCH = [
    _batched("clean", "--order", verdict="same"),
    _batched("products", "--model", "products"),
    _batched("padding", "--model", "mean of texts"),
    _batched("unmatched", "--unseeded", "samples", verdict="inconclusive"),
    _batched("weights", "--unseeded", "weights", "--model", "products", verdict="inconclusive"),
    _batched("same_size", "--always", "8", verdict="inconclusive"),
]


# Other frameworks.


def _tensorflow(name: str, program: str, *arguments: str, **properties: object) -> Case:
    return _checked(
        f"tensorflow/{name}", _python(f"tensorflow/{program}", *arguments), framework="tensorflow", **properties
    )


TENSORFLOW = [
    _tensorflow("missing_seed", "missing_seed"),
    _tensorflow("set_order", "set_order"),
    _tensorflow("batch_of_the_clock", "batch_of_the_clock"),
    _tensorflow("crop", "varying_ops", "crop"),
    _tensorflow("keras_unseeded", "keras_fit"),
    _tensorflow("keras_compiled", "keras_fit", "seeded", "compiled", verdict="same"),
    _tensorflow("custom_loop", "custom_loop", verdict="same"),
    _tensorflow("nested_functions", "nested_functions", verdict="same"),
]


def _jax(name: str, *arguments: str, **properties: object) -> Case:
    return _checked(f"jax/{name}", _python("compiled_by_xla/regression", *arguments), framework="jax", **properties)


JAX = [_jax("clean", verdict="same"), *(_jax(fault, fault) for fault in ("key", "order", "numpy", "rate"))]


# Reports that took further runs of the program.


def _explained(
    name: str, command: str, options: tuple[str, ...], program: tuple[str, ...], **properties: object
) -> Case:
    words = (command, "--json", f"{OUT}/{DOCUMENT}", *options, "--", *program)
    return Case(f"explained/{name}", (words,), compared="document", **properties)  # type: ignore[arg-type]


_SEARCH = ("--budget", "600")
EXPLAINED = [
    _explained("missing_seed", "check", _SEARCH, _python("causes/seeding/missing_torch")),
    _explained("hash_order", "check", _SEARCH, _python("causes/ordering/task_losses")),
    _explained("racing_op", "check", _SEARCH, _python("racing_sums", "put")),
    _explained("write_by_address", "check", _SEARCH, _python("raw_write")),
    _explained("leftovers", "check", _SEARCH, _python("causes/files/last_checkpoint")),
    _explained("resume_rng", "check-resume", ("--steps", "5", "--at", "2"), _python("resumed/checkpoints", *_FILLED_IN, "--without", "rng")),
    _explained("batch_training_mode", "check-batch", ("--sizes", "1,8,24"), _python("batches", "--batch", "{batch}", "--model", "normed", "--train")),
    _explained("tensorflow_missing_seed", "check", _SEARCH, _python("tensorflow/missing_seed"), framework="tensorflow"),
    _explained("jax_key", "check", _SEARCH, _python("compiled_by_xla/regression", "key"), framework="jax"),
]  # fmt: skip

CASES = [
    *KINDS, *STARTS, *THREADS, *CHILDREN, *LOADERS, *RANKS, *COMPILERS, *TRAINING, *LEVELS, *PARTS, *BROKEN, *DAMAGED,
    *RESUME, *BATCH, *TENSORFLOW, *JAX, *EXPLAINED,
]  # fmt: skip
