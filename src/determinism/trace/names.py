"""The tables of names of a process: ops, modules, frames, stacks, arguments, layouts; and what the ops among them do."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator
from enum import Flag, auto
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from determinism.errors import TraceError
from determinism.trace.batches import NAMES_SCHEMA
from determinism.trace.files import read_plain
from determinism.trace.schema import NAMES_FILE, NONE, PENDING_NAMES_FILE, SHARED, Table
from determinism.trace.stream import read_table

_Parsed = TypeVar("_Parsed")
_Row = tuple[Any, ...]
_MOST_PENDING_BYTES = 256 << 20
_TABLES = frozenset(table.value for table in Table)


class Frame(NamedTuple):
    """One frame of user code."""

    file: str
    line: int
    function: str
    code: str


class Layout(NamedTuple):
    """How a tensor looks at its memory; strides and offset count elements."""

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


class Names:
    """All names of one process, by table and number."""

    def __init__(self, folder: Path) -> None:
        """Read them; what a killed process did not get into the stream is taken from its pending file."""
        self.folder = folder
        self._texts: dict[Table, list[str]] = {table: [] for table in Table}
        for rows in (_stream_rows(folder / NAMES_FILE), _pending_rows(folder / PENDING_NAMES_FILE)):
            for table, number, text in rows:
                if not (isinstance(table, int) and table in _TABLES and isinstance(text, str)):
                    # Damaged from here on; records that need what is missing are not read either.
                    break
                texts = self._texts[Table(table)]
                if number == len(texts):
                    texts.append(text)

    def texts(self, table: Table) -> list[str]:
        """Every row of a table, by number."""
        return self._texts[table]

    def text(self, table: Table, number: int) -> str | None:
        """One row; None for `NONE`."""
        texts = self._texts[table]
        return texts[number] if NONE < number < len(texts) else None

    @cached_property
    def frames(self) -> list[Frame]:
        """The frames of user code.

        Raises:
            TraceError: The trace is damaged.
        """
        return [self._parsed(_parse_frame, text) for text in self._texts[Table.FRAME]]

    @cached_property
    def stack_frames(self) -> list[tuple[int, ...]]:
        """Per stack the numbers of its frames, innermost first.

        Raises:
            TraceError: The trace is damaged.
        """
        stacks = [self._parsed(_parse_stack, text) for text in self._texts[Table.STACK]]
        if any(not 0 <= number < len(self.frames) for stack in stacks for number in stack):
            raise _damaged(self.folder, "a stack names a frame that is not there")
        return stacks

    def stack(self, number: int) -> tuple[Frame, ...]:
        """The frames of one stack, innermost first; empty for `NONE`."""
        if not NONE < number < len(self.stack_frames):
            return ()
        return tuple(self.frames[frame] for frame in self.stack_frames[number])

    def frame(self, text: str) -> Frame:
        """A frame that stands elsewhere in the trace, as JSON.

        Raises:
            TraceError: The trace is damaged.
        """
        return self._parsed(_parse_frame, text)

    def layout(self, number: int) -> Layout | None:
        """One layout; None for `NONE` and for values that are no tensors.

        Raises:
            TraceError: The trace is damaged.
        """
        text = self.text(Table.LAYOUT, number)
        return None if text is None else self._parsed(parse_layout, text)

    def _parsed(self, parse: Callable[[str], _Parsed], text: str) -> _Parsed:
        try:
            return parse(text)
        except (ValueError, TypeError, RecursionError):
            raise _damaged(self.folder, f"{text[:60]!r} is no such entry") from None


def _damaged(folder: Path, found: str) -> TraceError:
    return TraceError(
        "trace-damaged",
        f"The names in {folder} cannot be read ({found}), so this trace is damaged. Record the run again.",
    )


def _parse_frame(text: str) -> Frame:
    file, line, function, code = json.loads(text)
    if not (isinstance(line, int) and all(isinstance(part, str) for part in (file, function, code))):
        raise TypeError(text)
    return Frame(file, line, function, code)


def _parse_stack(text: str) -> tuple[int, ...]:
    return tuple(operator.index(number) for number in json.loads(text))


_LARGEST = 1 << 62
"""Of the sizes, strides and places in a layout."""


@lru_cache(maxsize=4096)
def parse_layout(text: str) -> Layout | None:
    """Read the text of a layout.

    Raises:
        ValueError: It is none.
        TypeError: It is none.
    """
    fields: list[Any] = json.loads(text)
    if len(fields) not in (6, 7):
        return None
    dtype, shape, strides, offset, device, storage_bytes, *rest = fields
    if not (isinstance(dtype, str) and isinstance(device, str) and rest in ([], [SHARED])):
        raise TypeError(text)
    sizes = (tuple(map(operator.index, shape)), tuple(map(operator.index, strides)))
    numbers = [*sizes[0], *sizes[1], operator.index(offset), operator.index(storage_bytes)]
    # Danger: views are laid over memory with these numbers, so no other ones may get through.
    if len(sizes[0]) != len(sizes[1]) or any(not 0 <= number <= _LARGEST for number in numbers):
        raise ValueError(text)
    return Layout(dtype, *sizes, operator.index(offset), device, operator.index(storage_bytes), bool(rest))


def _stream_rows(path: Path) -> Iterator[_Row]:
    try:
        yield from read_table(path, NAMES_SCHEMA)
    except (OSError, ValueError):
        # The process was killed while it wrote: the whole batches count, the pending file has the rest.
        return


def _pending_rows(path: Path) -> Iterator[_Row]:
    try:
        lines = read_plain(path, most=_MOST_PENDING_BYTES).split(b"\n")
    except OSError:
        return
    for line in lines[:-1]:
        try:
            table, number, text = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            return
        yield table, number, text


# What the analysis of a trace must know of an op, by its name: the only place above the adapters that names ops.


class OpSemantics(Flag):
    """What an op does, as far as comparing and diagnosing depends on it."""

    NONE = 0
    COPIES = auto()
    """It only moves values, so equal results mean equal inputs."""
    COPIES_INTO = auto()
    """It copies into a tensor that is there."""
    IN_PLACE = auto()
    """It changes one of its arguments."""
    CHOOSES_ELEMENTS = auto()
    """It writes only the elements that its arguments choose, and leaves the others of the view as they are."""
    TAKES_EACH_BY_ITSELF = auto()
    """It does the same to each of several tensors, of which none has a part in what becomes of the others."""
    REBINDS_STORAGE = auto()
    """It lets a tensor look at another storage, and computes nothing."""
    LEAVES_UNWRITTEN = auto()
    """It gives memory that nobody has written."""
    COLLECTIVE = auto()
    """It exchanges tensors with other processes; its outputs may not be there yet when it returns."""
    SENDS = auto()
    """Other processes get what it read."""
    ONLY_RECEIVES = auto()
    """It is given tensors only to fill them."""
    RECEIVES_FROM_ANY = auto()
    """It takes what whichever process sent first."""
    MOVES_ROWS = auto()
    """It may move values from one row of a batch to another, or number rows by where they lie."""
    TAKES_STATISTICS = auto()
    """It normalises with statistics of the whole batch, unless it is told to use kept ones."""
    GATHERS = auto()
    """It takes elements out of a tensor, as samples are out of the data, or puts tensors together."""
    READS_NUMBER = auto()
    """It gives the value of a tensor to the program as a number."""
    ADDS_TO_GRADIENT = auto()
    """It is how backward adds to a gradient that is there."""
    KEEPS_GRADIENT = auto()
    """It may be how backward keeps a gradient that is the first one."""
    CLEARS = auto()
    """It sets all elements to zero."""
    CLEARS_BY_ZERO = auto()
    """It does where its last argument is zero."""
    SCALES_GRADIENTS = auto()
    """A gradient scaler uses it."""
    UPDATES_SCALE = auto()
    """A gradient scaler makes its next scale with it."""
    SEEDS_LOADER = auto()
    """An iterator over a data loader draws its seed with it."""
    TAKES_ELEMENT = auto()
    """It takes an element out of a data pipeline."""
    COMPILED_PROGRAM = auto()
    """It stands for a whole compiled program, not for one op of it."""
    NOT_ONE_OP = auto()
    """It stands for something else than one op, which cannot be run again by itself."""


def _of(namespace: str, names: str) -> frozenset[str]:
    return frozenset(f"{namespace}::{name}" for name in names.split())


_ALL_OVERLOADS = (
    (
        OpSemantics.COPIES,
        _of("aten", "clone _to_copy copy_ contiguous cat stack _foreach_copy_ lift_fresh lift_fresh_copy")
        | {"determinism::batch"},
    ),
    (OpSemantics.COPIES_INTO, _of("aten", "copy_")),
    (
        OpSemantics.CHOOSES_ELEMENTS,
        _of(
            "aten",
            "index_put_ _index_put_impl_ index_copy_ index_fill_ masked_fill_ masked_scatter_ scatter_ put_ "
            "fill_diagonal_ triu_ tril_",
        ),
    ),
    (OpSemantics.REBINDS_STORAGE, _of("aten", "set_")),
    (
        OpSemantics.LEAVES_UNWRITTEN,
        _of("aten", "empty empty_like empty_strided empty_permuted empty_quantized new_empty new_empty_strided"),
    ),
    (
        OpSemantics.MOVES_ROWS,
        _of(
            "aten",
            "index index_select index_put index_put_ _index_put_impl_ index_copy index_copy_ index_fill index_fill_ "
            "index_add index_add_ gather scatter scatter_ scatter_add scatter_add_ scatter_reduce take put put_ "
            "sort argsort topk kthvalue unique_consecutive _unique2 searchsorted bucketize nonzero "
            "masked_select masked_scatter masked_scatter_ cat stack repeat repeat_interleave roll flip rot90 "
            "constant_pad_nd tril triu tril_ triu_ diag_embed cumsum cumsum_ cumprod cummax cummin logcumsumexp "
            "_pack_padded_sequence slice_scatter select_scatter slice_backward im2col col2im",
        ),
    ),
    (
        OpSemantics.TAKES_STATISTICS,
        _of(
            "aten",
            "native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit "
            "_native_batch_norm_legit_functional _batch_norm_with_update _batch_norm_with_update_functional batch_norm",
        ),
    ),
    (OpSemantics.GATHERS, _of("aten", "index index_select gather take stack cat slice_copy")),
    (OpSemantics.READS_NUMBER, _of("aten", "_local_scalar_dense")),
    (
        OpSemantics.KEEPS_GRADIENT,
        _of("aten", "clone copy_ _to_copy detach empty_strided new_empty_strided empty_like contiguous"),
    ),
    (OpSemantics.UPDATES_SCALE, _of("aten", "_amp_update_scale_")),
    (
        OpSemantics.SCALES_GRADIENTS,
        _of("aten", "_amp_update_scale_ _amp_foreach_non_finite_check_and_unscale_"),
    ),
)
"""By the name without its overload."""

_ONE_OVERLOAD = (
    (OpSemantics.ADDS_TO_GRADIENT, _of("aten", "add_.Tensor")),
    (OpSemantics.CLEARS, _of("aten", "zero_ _foreach_zero_")),
    (OpSemantics.CLEARS_BY_ZERO, _of("aten", "fill_.Scalar mul_.Tensor mul_.Scalar _foreach_mul_.Scalar")),
    (OpSemantics.SEEDS_LOADER, _of("aten", "random_")),
)
"""By the whole name."""

_BEGINNINGS = (
    (OpSemantics.TAKES_EACH_BY_ITSELF, ("aten::_foreach_",)),
    (OpSemantics.COLLECTIVE, ("c10d::", "_c10d_functional::")),
    (OpSemantics.TAKES_ELEMENT, ("tf::IteratorGetNext", "tf::OptionalGetValue")),
    (OpSemantics.COMPILED_PROGRAM, ("jax::",)),
    (OpSemantics.NOT_ONE_OP, ("determinism::", "inductor::", "autograd::")),
)

_RECEIVES = frozenset({"recv_", "recv_any_source_", "irecv"})
_SENDS_NOTHING = _RECEIVES | {"wait_tensor", "barrier", "monitored_barrier_"}


@lru_cache(maxsize=4096)
def semantics_of(op: str) -> OpSemantics:
    """What an op does.

    Args:
        op: Its name as records have it, such as `aten::add.Tensor`.
    """
    qualified = op.partition(".")[0]
    base = qualified.partition("::")[2]
    semantics = OpSemantics.NONE
    for meaning, names in _ALL_OVERLOADS:
        if qualified in names:
            semantics |= meaning
    for meaning, names in _ONE_OVERLOAD:
        if op in names:
            semantics |= meaning
    for meaning, beginnings in _BEGINNINGS:
        if op.startswith(beginnings):
            semantics |= meaning
    if qualified.endswith("_"):
        semantics |= OpSemantics.IN_PLACE
    if OpSemantics.COLLECTIVE in semantics:
        if base not in _SENDS_NOTHING:
            semantics |= OpSemantics.SENDS
        if base in _RECEIVES:
            semantics |= OpSemantics.ONLY_RECEIVES
        if base == "recv_any_source_":
            semantics |= OpSemantics.RECEIVES_FROM_ANY
    return semantics


_FRAMEWORKS = {"tf": "tensorflow", "keras": "tensorflow", "jax": "jax"}


def framework_of(op: str) -> str:
    """The framework that an op belongs to, by its namespace.

    Args:
        op: Its name as records have it.
    """
    return _FRAMEWORKS.get(op.partition("::")[0], "torch")
