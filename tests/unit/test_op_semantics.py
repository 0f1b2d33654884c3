"""The semantics of ops, known from their names or from the trace."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from determinism.comparison.records import entry_of
from determinism.errors import TraceError
from determinism.op_semantics import OpSemantics, framework_of, semantics_from, semantics_of, text_of
from determinism.trace.chunks import NAMES_SCHEMA, WRITE_OPTIONS, Names, batch_from_names
from determinism.trace.process import ProcessTrace
from determinism.trace.reader import StoredProcess
from determinism.trace.schema import NAMES_FILE, PROCESS_FILE, Table
from determinism.trace.stream import read_table
from determinism.trace.writer import ProcessWriter
from tests.golden.cases import CASES
from tests.golden.corpus import reports_of


@pytest.mark.parametrize(
    ("op", "meanings"),
    [
        (
            "aten::copy_",
            OpSemantics.COPIES | OpSemantics.COPIES_INTO | OpSemantics.IN_PLACE | OpSemantics.KEEPS_GRADIENT,
        ),
        ("aten::add.Tensor", OpSemantics.NONE),
        ("aten::add_.Tensor", OpSemantics.IN_PLACE | OpSemantics.ADDS_TO_GRADIENT),
        ("aten::add_.Scalar", OpSemantics.IN_PLACE),
        (
            "aten::_foreach_mul_.Scalar",
            OpSemantics.IN_PLACE | OpSemantics.TAKES_EACH_BY_ITSELF | OpSemantics.CLEARS_BY_ZERO,
        ),
        ("aten::empty.memory_format", OpSemantics.LEAVES_UNWRITTEN),
        ("aten::set_.source_Storage", OpSemantics.IN_PLACE | OpSemantics.REBINDS_STORAGE),
        ("aten::masked_fill_.Scalar", OpSemantics.IN_PLACE | OpSemantics.CHOOSES_ELEMENTS),
        ("c10d::allreduce_", OpSemantics.IN_PLACE | OpSemantics.COLLECTIVE | OpSemantics.SENDS),
        ("c10d::barrier", OpSemantics.COLLECTIVE),
        (
            "c10d::recv_any_source_",
            OpSemantics.IN_PLACE | OpSemantics.COLLECTIVE | OpSemantics.ONLY_RECEIVES | OpSemantics.RECEIVES_FROM_ANY,
        ),
        ("tf::IteratorGetNext", OpSemantics.TAKES_ELEMENT),
        ("tf::MatMul+BiasAdd+Relu", OpSemantics.NONE),
        ("jax::jit_step", OpSemantics.COMPILED_PROGRAM),
        ("determinism::batch", OpSemantics.COPIES | OpSemantics.NOT_ONE_OP),
        ("autograd::ProdBackward0", OpSemantics.NOT_ONE_OP),
        ("mine::copy", OpSemantics.NONE),
    ],
)
def test_semantics_follow_from_the_name_of_an_op(op: str, meanings: OpSemantics) -> None:
    assert semantics_of(op) == meanings


def test_the_framework_follows_from_the_name_of_an_op() -> None:
    assert [framework_of(op) for op in ("tf::MatMul", "jax::step", "aten::mm", "mine::op")] == [
        "tensorflow", "jax", "torch", "torch",
    ]  # fmt: skip


@pytest.mark.parametrize("semantics", [OpSemantics.NONE, OpSemantics.COPIES | OpSemantics.IN_PLACE, ~OpSemantics.NONE])
def test_semantics_survive_conversion_to_text(semantics: OpSemantics) -> None:
    assert semantics_from(text_of(semantics)) == semantics


def test_unknown_words_are_refused() -> None:
    with pytest.raises(ValueError, match="turns"):
        semantics_from("copies turns")


# The trace decides, whatever the name of the op.


def process_with(folder: Path, name: str, semantics: OpSemantics) -> ProcessTrace:
    folder.mkdir()
    writer = ProcessWriter(folder, description={"level": "op"})
    writer.append((0, 0, 2, 0, writer.op(name, semantics), -1, -1, -1, -1, -1))
    writer.close()
    return StoredProcess(folder)


@pytest.mark.parametrize("name", ["mine::moves", "aten::clone"])
def test_an_op_has_the_semantics_in_its_trace(name: str, tmp_path: Path) -> None:
    for semantics in (OpSemantics.COPIES, OpSemantics.NONE):
        process = process_with(tmp_path / str(semantics.value), name, semantics)
        (chunk,) = process.chunks()
        record = entry_of(process, chunk, 0)
        assert record.op == name
        assert record.is_copy is (semantics is OpSemantics.COPIES)
        assert process.names.ops_that(OpSemantics.COPIES) == ([0] if record.is_copy else [])


def as_format(folder: Path, version: int) -> None:
    file = folder / PROCESS_FILE
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "format": f"determinism.trace/{version}"}))


def test_in_the_first_format_semantics_follow_from_names(tmp_path: Path) -> None:
    process_with(tmp_path / "main", "aten::clone", OpSemantics.NONE)
    as_format(tmp_path / "main", 1)

    assert StoredProcess(tmp_path / "main").names.ops_that(OpSemantics.COPIES) == [0]


def test_a_trace_without_the_semantics_of_an_op_is_damaged(tmp_path: Path) -> None:
    names = Names(tmp_path, [(Table.OP, 0, "aten::clone")])
    with pytest.raises(TraceError, match="what 'aten::clone' does is missing"):
        names.op(0)


def test_a_trace_with_unknown_words_is_damaged(tmp_path: Path) -> None:
    names = Names(tmp_path, [(Table.SEMANTICS, 0, "turns"), (Table.OP, 0, "aten::clone")])
    with pytest.raises(TraceError, match="cannot be read"):
        names.op(0)


# Stored traces of the first format give the same reports after conversion to the current format.


def written_anew(folder: Path) -> None:
    """Convert a process from the first format to the current one."""
    file = folder / NAMES_FILE
    rows = list(read_table(file, NAMES_SCHEMA)) if file.stat().st_size else []
    said = [
        (int(Table.SEMANTICS), number, text_of(semantics_of(text))) for table, number, text in rows if table == Table.OP
    ]
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, NAMES_SCHEMA, options=WRITE_OPTIONS) as stream:
        stream.write_batch(batch_from_names([*said, *rows]))
    as_format(folder, 2)


FAMILIES = [
    "kinds/unfilled_batch", "kinds/racing_put", "threads/lost_update", "children/race", "loaders/order", "ranks/collectives_bit",
    "resume/without_generator", "batch/padding", "tensorflow/nested_functions", "jax/clean",
]  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_reports_from_both_formats_are_the_same(name: str, tmp_path: Path) -> None:
    (case,) = (case for case in CASES if case.name == name)
    stored = reports_of(case, tmp_path / "stored")
    before: list[Path] = []

    def change(folder: Path) -> None:
        for process in folder.rglob(PROCESS_FILE):
            before.append(process)
            written_anew(process.parent)

    assert reports_of(case, tmp_path / "anew", change) == stored
    assert before
