"""The columns of a trace and their versions.

Version history:
    1  First format.
    2  `Table.SEMANTICS`: what each op does stands in the trace.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple


class Frame(NamedTuple):
    """One frame of user code."""

    file: str
    line: int
    function: str
    code: str


class Layout(NamedTuple):
    """How a tensor looks at its memory; strides and offset count elements.

    A sparse or nested tensor has no memory of its own, and so no strides.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    device: str
    storage_bytes: int
    is_shared: bool = False
    """Whether other processes may write the memory."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def is_view(self) -> bool:
        """Whether its sizes and strides tell where its elements lie."""
        return len(self.strides) == len(self.shape)


VERSION = 3
FORMAT = f"determinism.trace/{VERSION}"

RUN_METADATA = "run"
"""Key in the metadata of the columns of records and names: the name of the run, as the manifest has it."""
PROCESS_METADATA = "process"
"""Beside it, the key of the process."""
FIRST_METADATA = "first"
"""Beside these, of a file of records that follows others: the number of its first record."""

MANIFEST_FILE = "manifest.json"
PROCESSES_FOLDER = "processes"
PROCESS_FILE = "process.json"
RECORDS_FILE = "records.arrow"
EARLIER_RECORDS = "records-*.arrow"
"""Files of the records before those, named after the number of their first; only where the newest records are kept. The oldest are removed."""
NAMES_FILE = "names.arrow"
SPOOL_FILE = "records.spool"
PENDING_NAMES_FILE = "names.pending"
NUMBERS_FILE = "numbers.bin"
LEDGER_FILE = "steps.ledger"
"""Digests of each step by group of tensors; only at level `step`, and where a window of steps is recorded."""
VALUES_FILE = "values.bin"
"""Elements of what records gave; only where they were asked for."""
CAPTURE_FILE = "capture.json"
CAPTURED_INPUTS_FILE = "inputs.safetensors"
CAPTURED_OUTPUTS_FILE = "outputs.safetensors"
GENERATORS_FILE = "generators.json"
"""States of the global generators at the end of the last step; only where they were to be kept."""
PUT_BACK_FILE = "put-back.json"
"""States that a program put its global generators into; only where they were to be watched."""
ROWS_FILE = "rows.arrow"
"""Digests of the rows of batches; only where rows were asked for."""

STEP_OP = "determinism::step"
"""Name of the record that ends a step."""
END_OP = "determinism::end"
"""Name of the record that ends a process."""
RESULTS_OP = "determinism::results"
"""Name of the record of values that no op read, so that they may have left the framework."""
LOAD_OP = "determinism::load"
"""Name of the record of tensors that were loaded from a file; its inputs are what they held."""

CHECKPOINTED_OP = "determinism::checkpointed"
"""Name of the record with which the first forward of an activation checkpoint begins; this and those below are only there where
invariants are checked."""
RECOMPUTED_OP = "determinism::recomputed"
"""Name of the record with which its recomputation begins; its input is the record of the first forward."""
CALLED_OP = "determinism::called"
"""Name of the record with which a call of an outermost module begins: its inputs are what the module got and holds, its output stands for
what else the result may depend on, and its arguments are `grad` or `no_grad` and the class of the module."""
RETURNED_OP = "determinism::returned"
"""Name of the record with which one of these ends; its first input is the record with which it began."""
GATHERED_OP = "determinism::gathered"
"""Name of the record of a parameter that is kept in shards, as a module computed with it: its inputs are the shard that this process keeps,
and the parts of what was gathered from all processes, in their order; its arguments are JSON with its name and the ranks."""
SAVED_OP = "determinism::file_saved"
"""Name of the record of what `torch.save` is given, as it is called; its arguments are JSON with the file and the names of its inputs."""
LOADED_OP = "determinism::file_loaded"
"""Name of the record of what `torch.load` gave, with the same arguments."""
REPLICATED_OP = "determinism::replicated"
"""Name of the record that says which parameters are replicated on which ranks, as JSON among its arguments."""
DIVIDED_OP = "determinism::divided"
"""Name of the record that says which ranks hold parts of a model, as JSON among its arguments: `ranks`, and `shared`, whether they
compute parts of the same batches, as with tensor parallelism; else each has batches of its own."""

MOST_BATCH_BYTES = 64 << 20
"""That a batch of records or names may take when it is decoded: none is read that is larger. Records of a million tensors fit."""

INPUT_PATHS = " inputs="
"""In the arguments of a compiled program, before a JSON list of where each input is among the program's arguments."""

FIRST_WITH_SEMANTICS = 2
"""The first format in which a trace says what its ops do."""

NONE = -1
"""Stands for "absent" in every column that holds the number of a name or of a record."""


SHARED = "shared"
"""Stands in a layout of memory that processes share."""


class Table(IntEnum):
    """The tables of names; records refer to their rows by number."""

    OP = 0
    MODULE = 1
    FRAME = 2
    """JSON list: absolute file, line, function, source line."""
    STACK = 3
    """JSON list of numbers of frames, innermost first."""
    ARGUMENTS = 4
    LAYOUT = 5
    """JSON list: dtype, shape, strides (elements), storage offset (elements), device, storage size (bytes), and
    `SHARED` if processes share the memory."""
    SEMANTICS = 6
    """Per row of `OP`, under the same number: what the op does, as far as comparing depends on it; see `op_semantics.py`."""


MOST_OVERLAPS = 4096
"""Records of a stream of which it is noted that another thread wrote what they used while their op ran."""


class Meaning(IntEnum):
    """What a number in `numbers.bin` is."""

    LOSS = 0
    """A backward was started from a tensor that held it."""
    READ = 1
    """`item()` gave it to the program."""
    UNKNOWN_LOSS = 2
    """A backward was started from a tensor that held something else than one number, or is not at hand."""


class Column(NamedTuple):
    """One column of fixed width."""

    name: str
    code: str
    """`struct` code of one cell, or "digest" for 16 bytes."""
    is_reference: bool = False
    """Whether it leads to another record: by a distance in the stream, by that record's number (or -1) in a spool."""


RECORD_COLUMNS = (
    Column("thread", "i"),
    Column("step", "i"),
    Column("phase", "b"),
    Column("role", "b"),
    Column("op", "i"),
    Column("module", "i"),
    Column("stack", "i"),
    Column("forward", "i", is_reference=True),
    Column("forward_stack", "i"),
    Column("arguments", "i"),
)
"""`forward`: how many records back the forward record of a backward op lies; 0 where there is none."""

CHILD_COLUMNS = {
    "inputs": (
        Column("producer", "i", is_reference=True),
        Column("output", "i"),
        Column("access", "b"),
        Column("layout", "i"),
    ),
    "input_digests": (Column("position", "i"), Column("digest", "digest")),
    "outputs": (Column("layout", "i"), Column("digest", "digest")),
    "generators": (Column("digest", "digest"),),
}
"""Lists within a record. `producer`: how many records back the producer lies; 0 where nobody recorded produced it."""

INTERRUPT = "interrupt"
"""What has stopped a run that the user ended, as its manifest says, or a process that ended with `KeyboardInterrupt`."""
FAIL_FAST = "fail-fast"
"""What a manifest says has stopped a run that had shown a difference."""
TIME_LIMIT = "time-limit"
"""What a manifest says has stopped a run, such as one of an experiment, that took longer than it was given."""
STOPPED_BY_US = (FAIL_FAST, TIME_LIMIT)

_INTERCHANGEABLE = re.compile(r"([A-Za-z]*(?:Process|PoolWorker)-)?\d+(?:-\d+)*")
"""Names of processes that differ only by a number which `multiprocessing` or their order of starting gave them. Ranks are not among them:
the number of a rank decides which part of the work it does."""


def family(key: str) -> str:
    """The key of a process without such numbers: processes with the same one may do each other's work in another run.

    Args:
        key: Key of the process.
    """
    parts = key.split(".")
    return ".".join(re.sub(r"\d+(?:-\d+)*$", "", p) if _INTERCHANGEABLE.fullmatch(p) else p for p in parts)
