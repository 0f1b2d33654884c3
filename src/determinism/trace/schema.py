"""The columns of a trace and their versions.

Version history:
    1  First format.
    2  `Table.SEMANTICS`: what each op does is in the trace.
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
    """How a tensor views its memory; strides and offset count elements.

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
        """Whether its sizes and strides say where its elements are."""
        return len(self.strides) == len(self.shape)


VERSION = 3
FORMAT = f"determinism.trace/{VERSION}"

RUN_METADATA = "run"
"""Key in the metadata of the columns of records and names: the name of the run, as the manifest has it."""
PROCESS_METADATA = "process"
"""Key in the same metadata: the key of the process."""
FIRST_METADATA = "first"
"""Key in the metadata of a file of records that follows others: the number of its first record."""

MANIFEST_FILE = "manifest.json"
PROCESSES_FOLDER = "processes"
PROCESS_FILE = "process.json"
RECORDS_FILE = "records.arrow"
EARLIER_RECORDS = "records-*.arrow"
"""Files of earlier records, named after the number of their first; only if the newest records are kept, and the oldest removed."""
NAMES_FILE = "names.arrow"
SPOOL_FILE = "records.spool"
PENDING_NAMES_FILE = "names.pending"
NUMBERS_FILE = "numbers.bin"
LEDGER_FILE = "steps.ledger"
"""Digests of each step by group of tensors; only at level `step`, or if a window of steps or the newest records are kept."""
VALUES_FILE = "values.bin"
"""Elements of the outputs of records; only if requested."""
CAPTURE_FILE = "capture.json"
CAPTURED_INPUTS_FILE = "inputs.safetensors"
CAPTURED_OUTPUTS_FILE = "outputs.safetensors"
GENERATORS_FILE = "generators.json"
"""States of the global generators at the end of the last step; only if requested."""
PUT_BACK_FILE = "put-back.json"
"""States that a program set its global generators to; only if requested."""
ROWS_FILE = "rows.arrow"
"""Digests of the rows of batches; only if requested."""

STEP_OP = "determinism::step"
"""Name of the record that ends a step."""
END_OP = "determinism::end"
"""Name of the record that ends a process."""
RESULTS_OP = "determinism::results"
"""Name of the record of values that no op read, so that they may have left the framework."""
LOAD_OP = "determinism::load"
"""Name of the record of tensors that were loaded from a file; its inputs are what they held."""

CHECKPOINTED_OP = "determinism::checkpointed"
"""Name of the record that begins the first forward of an activation checkpoint; this record and those below exist only if
invariants are checked."""
RECOMPUTED_OP = "determinism::recomputed"
"""Name of the record that begins its recomputation; its input is the record of the first forward."""
CALLED_OP = "determinism::called"
"""Name of the record that begins a call of an outermost module: its inputs are the module's arguments and state, its output represents
what else the result may depend on, and its arguments are `grad` or `no_grad` and the class of the module."""
RETURNED_OP = "determinism::returned"
"""Name of the record that ends one of these; its first input is the record that began it."""
GATHERED_OP = "determinism::gathered"
"""Name of the record of a parameter that is kept in shards, as a module computed with it: its inputs are this process's shard, and the
parts that were gathered from all processes, in their order; its arguments are JSON with its name and the ranks."""
SAVED_OP = "determinism::file_saved"
"""Name of the record of what is passed to `torch.save`, when called; its arguments are JSON with the file and the names of its inputs."""
LOADED_OP = "determinism::file_loaded"
"""Name of the record of what `torch.load` returned, with the same arguments."""
REPLICATED_OP = "determinism::replicated"
"""Name of the record that says which parameters are replicated on which ranks, as JSON among its arguments."""
DIVIDED_OP = "determinism::divided"
"""Name of the record that says which ranks hold parts of a model, as JSON among its arguments: `ranks`, and `shared`, whether they
compute parts of the same batches, as with tensor parallelism; else each has batches of its own."""

MOST_BATCH_BYTES = 64 << 20
"""Size limit of a decoded batch of records or names: larger ones are not read. Records of a million tensors fit."""

INPUT_PATHS = " inputs="
"""In the arguments of a compiled program, before a JSON list of where each input is among the program's arguments."""

FIRST_WITH_SEMANTICS = 2
"""The first format in which a trace says what its ops do."""

NONE = -1
"""Means "absent" in every column that holds the number of a name or of a record."""


SHARED = "shared"
"""Marks a layout of memory that processes share."""


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
    """For each row of `OP`, under the same number: what the op does, if it matters to comparing; see `op_semantics.py`."""


MOST_OVERLAPS = 4096
"""How many records of a stream are noted whose data another thread wrote while their op ran."""


class Meaning(IntEnum):
    """What a number in `numbers.bin` is."""

    LOSS = 0
    """A backward was started from a tensor that held it."""
    READ = 1
    """`item()` returned it to the program."""
    UNKNOWN_LOSS = 2
    """A backward was started from a tensor that is not a single number, or is not available."""


class Column(NamedTuple):
    """One column of fixed width."""

    name: str
    code: str
    """`struct` code of one cell, or "digest" for 16 bytes."""
    is_reference: bool = False
    """Whether it refers to another record: by distance in the stream, by that record's number (or -1) in a spool."""


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
"""`forward`: how many records back the forward record of a backward op is; 0 if there is none."""

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
"""Lists within a record. `producer`: how many records back the producer is; 0 if no record produced the input."""

INTERRUPT = "interrupt"
"""The `stopped_by` of a run that the user ended, in its manifest, or of a process that ended with `KeyboardInterrupt`."""
FAIL_FAST = "fail-fast"
"""The `stopped_by`, in the manifest, of a run that was stopped after it had shown a difference."""
TIME_LIMIT = "time-limit"
"""The `stopped_by`, in the manifest, of a run that exceeded its time limit, such as one of an experiment."""
STOPPED_BY_US = (FAIL_FAST, TIME_LIMIT)

_INTERCHANGEABLE = re.compile(r"([A-Za-z]*(?:Process|PoolWorker)-)?\d+(?:-\d+)*")
"""Names of processes that differ only by a number from `multiprocessing` or from their starting order. Ranks are not among them:
the number of a rank decides which part of the work it does."""


def family(key: str) -> str:
    """The key of a process without interchangeable numbers: processes with equal results may swap work in another run."""
    parts = key.split(".")
    return ".".join(re.sub(r"\d+(?:-\d+)*$", "", p) if _INTERCHANGEABLE.fullmatch(p) else p for p in parts)
