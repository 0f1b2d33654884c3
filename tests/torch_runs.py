"""Runs small PyTorch programs in this process, with and without recording, and compares the results."""

from __future__ import annotations

import hashlib
import inspect
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import determinism
from determinism.comparison.result import Comparison
from determinism.trace.chunks import join
from determinism.trace.opening import open_trace
from determinism.trace.process import ProcessTrace
from determinism.trace.schema import Frame, Table
from determinism.types import Phase, Role

Program = Callable[[], Any]

_SIZES = [*range(64, 2048, 64), *(1 << power for power in range(11, 21))]


def perturb_memory() -> None:
    """Fill memory that `empty` will later return with bytes unique to this run, and free it."""
    noise = os.urandom(_SIZES[-1])
    blocks = [torch.frombuffer(bytearray(noise[:size]), dtype=torch.uint8).clone() for size in _SIZES for _ in range(6)]
    del blocks


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in nested lists, tuples and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def bits(tensor: torch.Tensor) -> bytes:
    """Return all bits of the elements of a tensor."""
    tensor = tensor.detach()
    if tensor.is_meta or (tensor.layout is torch.strided and not tensor.numel()):
        return repr(tuple(tensor.shape)).encode()
    if tensor.is_nested:
        return b"".join(bits(part) for part in tensor.unbind())
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    return tensor.clone().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _fingerprint(result: Any) -> str:
    """Return a hash of all bits of a result and of the current generator states."""
    parts = [bits(tensor) for tensor in tensors_in(result)]
    states = [torch.get_rng_state().numpy().tobytes(), repr(random.getstate()).encode()]
    return hashlib.sha256(b"|".join(parts + states)).hexdigest()


def plain(program: Program) -> str:
    """Run a program without recording it."""
    perturb_memory()
    return _fingerprint(program())


def recorded(program: Program, folder: Path, **options: Any) -> str:
    """Run a program while recording it; its return value counts as read."""
    perturb_memory()
    with determinism.record(folder, **options) as session:
        result = program()
        session.returned(result)
    return _fingerprint(result)


def compare_program(program: Program, folder: Path, *, strict: bool = False) -> Comparison:
    """Record a program twice and compare the runs."""
    traces = [folder / "first", folder / "second"]
    for trace in traces:
        recorded(program, trace)
    return determinism.compare(*traces, strict=strict)


def check_deterministic(program: Program, folder: Path) -> Comparison:
    """Compare two recorded runs of a program, after checking that it is deterministic and that recording does not change its results."""
    results = [plain(program) for _ in range(2)]
    assert results[0] == results[1], "the program itself is not deterministic"
    traces = [folder / "first", folder / "second"]
    results += [recorded(program, trace) for trace in traces]
    assert set(results) == {results[0]}, "recording changed the result"
    comparison = determinism.compare(*traces)
    assert [spot for spot in comparison.recorded.blind_spots if spot.identifier == "handler-failed"] == []
    # A comparison reads the layouts of tensors only if the runs differ.
    for process in open_trace(traces[0]).processes:
        for number in range(len(process.names.texts(Table.LAYOUT))):
            process.names.layout(number)
    return comparison


class Row:
    """One record, with its cells as attributes."""

    def __init__(self, process: ProcessTrace, chunk: Any, at: int) -> None:
        names = process.names
        cells = {name: int(column[at]) for name, column in chunk.columns.items()}
        self.number = chunk.first + at
        self.op = (names.text(Table.OP, cells["op"]) or "").removeprefix("aten::").removesuffix(".default")
        self.module = names.text(Table.MODULE, cells["module"])
        self.arguments = names.text(Table.ARGUMENTS, cells["arguments"]) or ""
        self.role = Role(cells["role"])
        self.phase = Phase(cells["phase"])
        self.step = cells["step"]
        self.thread = cells["thread"]
        self.stack: tuple[Frame, ...] = names.stack(cells["stack"])
        self.forward_stack: tuple[Frame, ...] = names.stack(cells["forward_stack"])
        self.forward = self.number - cells["forward"] if cells["forward"] else None
        inputs = chunk.children["inputs"]
        first, last = int(inputs.starts[at]), int(inputs.starts[at + 1])
        distances = inputs.columns["producer"][first:last]
        self.producers = [self.number - int(distance) if distance else None for distance in distances]
        self.accesses = [int(access) for access in inputs.columns["access"][first:last]]
        outputs = chunk.children["outputs"]
        self.digests = [
            outputs.columns["digest"][i].tobytes() for i in range(outputs.starts[at], outputs.starts[at + 1])
        ]


def rows(folder: Path) -> list[Row]:
    """Return every record of the only process of a trace, except those of its threads."""
    return _rows_of(open_trace(folder).processes[0])


def rows_of_all(folder: Path) -> list[Row]:
    """Return every record of a trace, including those of threads."""
    return [row for process in open_trace(folder).processes for row in _rows_of(process)]


def _rows_of(process: ProcessTrace) -> list[Row]:
    chunk = join(list(process.chunks()))
    return [Row(process, chunk, at) for at in range(chunk.rows)]


def record_rows(program: Program, folder: Path) -> list[Row]:
    """Record a program once and return its records."""
    recorded(program, folder)
    return rows(folder)


def line_of(function: Callable[..., Any], text: str) -> int:
    """Return the number of the line of a function's source that contains a text."""
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def named(records: list[Row], op: str) -> list[Row]:
    return [record for record in records if record.op == op or record.op.partition(".")[0] == op]


def only(records: list[Row], op: str) -> Row:
    (found,) = named(records, op)
    return found
