"""Damages traces at random and reads them: `python -m tests.fuzz --mutations 100000`.

However the files of a trace are damaged, `compare` and `show` exit with 0, 1 or 2 and a message, within 20 seconds of processor time and a gigabyte,
write nothing, and never report "same" if a compared record has different contents.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from click.testing import CliRunner, Result

from determinism.__main__ import command
from determinism.errors import DeterminismError
from determinism.trace import schema
from determinism.trace.opening import open_trace
from determinism.trace.schema import END_OP, STEP_OP, Table
from determinism.types import Phase, Role
from tests.streams import pool, threads, worker
from tests.traces import Ref, TraceBuilder

MOST_SECONDS = 20
"""Seconds of processor time, so that other work on the machine does not count."""
_MOST_WAITING = 300
"""Seconds after which a process that waits for something, such as a FIFO, is killed."""
MOST_BYTES = 1 << 30
ADDRESS_SPACE = 16 << 30
"""Address space that a worker may map; Arrow and NumPy reserve more than they use."""

# The traces to be damaged: one of each kind that a run can leave.


def _training(run: TraceBuilder, steps: int = 3) -> TraceBuilder:
    weight = run.add("aten::uniform_", (), ("weight 0",), generators=("state",), phase=Phase.INIT)
    for step in range(steps):
        batch = run.add(
            "determinism::batch",
            [Ref(-1, digest=f"batch {step}")],
            [f"batch {step}"],
            role=Role.BATCH,
            phase=Phase.DATA,
        )
        made = run.add("aten::mm", (batch, weight), (f"made {step}",), module="layer", arguments="alpha=1")
        run.add("determinism::loss", (made,), (), role=Role.LOSS)
        weight = run.add(
            "aten::add_.Tensor", (weight, made), (f"weight {step + 1}",), phase=Phase.OPTIMIZER, arguments="lr=0.1"
        )
        run.step({"layer.weight": weight})
    run.add("determinism::tolist", (weight,), (f"weight {steps}",), role=Role.ESCAPE)
    return run


def _with_threads(run: TraceBuilder) -> None:
    own = threads(_training(run), "one", "two")
    for thread in (1, 2):
        taken = own.add("aten::mul", [Ref(-1, digest="weight 0")], [f"of thread {thread}"], thread=thread)
        own.add("determinism::tolist", (taken,), (f"of thread {thread}",), role=Role.ESCAPE, thread=thread)


def _with_workers(run: TraceBuilder) -> None:
    for number in range(2):
        one = worker(run, number)
        image = one.add("op::decode", [Ref(-1, digest=f"file {number}")], [f"image {number}"], phase=Phase.DATA)
        one.add("determinism::batch", (image,), (f"batch {number}",), role=Role.BATCH, phase=Phase.DATA)
    _training(run)


def _with_pool(run: TraceBuilder) -> None:
    own = pool(run)
    for task in range(3):
        own.add("aten::exp", [Ref(-1, digest=f"task {task}")], [f"result {task}"])
        run.add("aten::add", [Ref(-1, digest=f"result {task}")], [f"sum {task}"])
    _training(run)


def _with_ranks(run: TraceBuilder) -> None:
    for rank in range(3):
        _training(run.beside(f"main.rank-{rank}"))


def _with_values(run: TraceBuilder) -> None:
    made = run.add("aten::mm", [Ref(-1, digest="x")], ["y"])
    run.values(made, 1.0, 2.0, 3.0, 4.0)
    run.number(schema.Meaning.LOSS, 0.5, made)
    _training(run)


def _long(run: TraceBuilder) -> None:
    _training(run, steps=600)


SORTS: dict[str, Callable[[TraceBuilder], object]] = {
    "training": _training, "threads": _with_threads, "workers": _with_workers, "pool": _with_pool, "ranks": _with_ranks,
    "values": _with_values, "nothing": lambda run: None, "long": _long,
}  # fmt: skip


def make_corpus(folder: Path) -> list[Path]:
    """Write a trace of each kind, including one of a killed run and one in parts; the bytes are the same each time."""
    numbers = count(1)
    with (
        patch("os.urandom", lambda size: next(numbers).to_bytes(size, "big")),
        patch("os.getpid", lambda: 1234),
        patch("time.time", lambda: 1.0),
    ):
        return _written(folder)


def _written(folder: Path) -> list[Path]:
    found = []
    for name, write in SORTS.items():
        run = TraceBuilder(folder / name)
        write(run)
        found.append(run.close())
    live = TraceBuilder(folder / "live")
    _training(live)
    # A killed process would leave the current contents of the disk.
    found.append(Path(shutil.copytree(folder / "live", folder / "killed")))
    shutil.rmtree(live.close())
    parts = folder / "parts"
    for part in ("0", "1"):
        run = TraceBuilder(parts / "parts" / part)
        _training(run)
        run.close()
    return [*found, parts]


# The mutations of a trace.

_ODD_VALUES: list[Any] = [
    None, -1, 0, 1 << 70, 0.5, 1e308, "", "x", "main", "../../elsewhere", "\x1b[31m\n", True, [], {}, [[[]]], {"a": [1]},
    ["main"] * 3, "9" * 400,
]  # fmt: skip


def _files(trace: Path) -> list[Path]:
    found = (path for path in trace.rglob("*") if not path.is_symlink() and path.is_file())
    return sorted(path for path in found if path.stat().st_size < MOST_BYTES)


def _folders(trace: Path) -> list[Path]:
    return sorted(path for path in trace.rglob("*") if not path.is_symlink() and path.is_dir())


def _bytes(chance: random.Random, trace: Path, others: list[Path]) -> None:
    path = chance.choice(_files(trace))
    content = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 2, 8, 64))):
        if not content:
            break
        at = chance.randrange(len(content))
        match chance.randrange(6):
            case 0:
                content[at] ^= 1 << chance.randrange(8)
            case 1:
                content[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del content[at : at + chance.choice((1, 4, 8, 100))]
            case 3:
                content[at:at] = bytes(chance.randrange(256) for _ in range(chance.choice((1, 4, 8, 100))))
            case 4:
                content[at : at + 8] = chance.choice(
                    (b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f\0\0\0\0", b"\0\0\0\x40\0\0\0\0")
                )
            case 5:
                size = chance.choice((8, 64, 512))
                content[at : at + size] = content[:size]
    path.write_bytes(content)


def _cut(chance: random.Random, trace: Path, others: list[Path]) -> None:
    path = chance.choice(_files(trace))
    size = path.stat().st_size
    os.truncate(
        path, chance.choice((0, 1, size // 2, max(0, size - 1), size + 1, size + 4096, chance.randrange(size + 1)))
    )


def _removed(chance: random.Random, trace: Path, others: list[Path]) -> None:
    chosen = chance.choice([*_files(trace), *_folders(trace)])
    shutil.rmtree(chosen) if chosen.is_dir() else chosen.unlink()


def _emptied(chance: random.Random, trace: Path, others: list[Path]) -> None:
    chosen = chance.choice([*_files(trace), *_folders(trace)])
    if chosen.is_dir():
        shutil.rmtree(chosen)
        chosen.mkdir()
    else:
        chosen.write_bytes(b"")


def _taken(chance: random.Random, trace: Path, others: list[Path]) -> None:
    """Replace a file of this trace by one of a different trace."""
    path = chance.choice(_files(trace))
    same = [other for one in others for other in _files(one) if other.name == path.name]
    path.write_bytes(chance.choice(same or [path]).read_bytes())


def _strange(chance: random.Random, trace: Path, others: list[Path]) -> None:
    """Replace a file by something that is not a regular file."""
    path = chance.choice(_files(trace))
    path.unlink()
    match chance.randrange(5):
        case 0:
            os.mkfifo(path)
        case 1:
            path.symlink_to("/dev/zero")
        case 2:
            path.mkdir()
        case 3:
            path.symlink_to(path.name)
        case 4:
            with path.open("wb") as file:
                file.truncate(64 << 30)


def _values(chance: random.Random, trace: Path, others: list[Path]) -> None:
    """Put odd values into a JSON file."""
    paths = [path for path in _files(trace) if path.suffix == ".json"]
    if not paths:
        return
    path = chance.choice(paths)
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        return
    places: list[tuple[Any, Any]] = []

    def collect(value: Any) -> None:
        keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        for key in keys:
            places.append((value, key))
            collect(value[key])

    collect(document)
    for _ in range(chance.choice((1, 1, 2))):
        holder, key = chance.choice(places)
        holder[key] = chance.choice(_ODD_VALUES)
    path.write_text(json.dumps(document), encoding="utf-8")


def _cells(chance: random.Random, trace: Path, others: list[Path]) -> None:
    """Change cells in a file of records or names that stays well-formed."""
    paths = [path for path in _files(trace) if path.suffix == ".arrow"]
    if not paths:
        return
    path = chance.choice(paths)
    try:
        with pa.ipc.open_stream(path.read_bytes()) as stream:
            batches, form = list(stream), stream.schema
        for batch in batches:
            batch.validate(full=True)
    except (pa.ArrowException, OSError):
        return
    if not batches:
        return
    at = chance.randrange(len(batches))
    try:
        columns = {name: batches[at].column(name).to_pylist() for name in form.names}
    except UnicodeDecodeError:
        return
    name = chance.choice(form.names)
    cells = columns[name]
    if not cells:
        return
    row = chance.randrange(len(cells))
    cells[row] = _other_cell(chance, cells[row], cells)
    try:
        batches[at] = pa.record_batch([pa.array(columns[one], form.field(one).type) for one in form.names], schema=form)
    except (pa.ArrowException, TypeError, OverflowError, ValueError):
        return
    with pa.ipc.new_stream(str(path), form) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _other_cell(chance: random.Random, cell: Any, cells: list[Any]) -> Any:
    if isinstance(cell, list):
        if cell and chance.random() < 0.7:
            place = chance.randrange(len(cell))
            return [*cell[:place], _other_cell(chance, cell[place], cell), *cell[place + 1 :]]
        return chance.choice(([], cell * 2, chance.choice(cells)))
    if isinstance(cell, dict):
        key = chance.choice(list(cell))
        return {**cell, key: _other_cell(chance, cell[key], [cell[key]])}
    if isinstance(cell, bytes):
        place = chance.randrange(max(1, len(cell)))
        return cell[:place] + bytes([cell[place] ^ 1 << chance.randrange(8)]) + cell[place + 1 :] if cell else b"x"
    if isinstance(cell, int):
        return chance.choice((cell + 1, cell - 1, 0, -1, 1 << 20, (1 << 31) - 1, -(1 << 31)))
    return chance.choice(_ODD_VALUES) if isinstance(cell, str) else cell


MUTATIONS = (
    _bytes,
    _bytes,
    _bytes,
    _cut,
    _removed,
    _emptied,
    _taken,
    _strange,
    _values,
    _values,
    _cells,
    _cells,
    _cells,
)


# The properties that must hold for each mutation.


def content_of(trace: Path) -> dict[str, Counter[Any]] | None:
    """Return the contents of the records of each process of a trace; None if it cannot be read completely."""
    try:
        opened = open_trace(trace)
        found = {process.key: _records_of(process) for process in opened.processes}
    except DeterminismError:
        return None
    if any(process.truncated for process in opened.processes) or opened.missing_processes:
        return None
    return found


def _records_of(process: Any) -> Counter[bytes]:
    """Count the outputs of the records. Ops, arguments and generators only explain: if only they differ, the runs are bit-identical."""
    ends = [number for number, name in enumerate(process.names.texts(Table.OP)) if name in (STEP_OP, END_OP)]
    found: Counter[bytes] = Counter()
    for chunk in process.chunks():
        made = chunk.children["outputs"]
        for row in np.flatnonzero(~np.isin(chunk.columns["op"], ends)).tolist():
            found[made.columns["digest"][made.starts[row] : made.starts[row + 1]].tobytes()] += 1
    # A record without outputs has no content.
    del found[b""]
    return found


def _signature(folder: Path) -> list[tuple[str, int, int]]:
    return [(str(path), path.lstat().st_size, path.lstat().st_mtime_ns) for path in sorted(folder.rglob("*"))]


@dataclass
class Sandbox:
    """A folder in which one mutation after another is tried."""

    place: Path
    corpus: list[Path]

    def __post_init__(self) -> None:
        self._runner = CliRunner()
        self._contents = [content_of(trace) for trace in self.corpus]
        (self.place / "work").mkdir(parents=True)
        os.chdir(self.place / "work")

    def outcome_of(self, seed: str) -> tuple[str, str | None]:
        """Try a mutation; return the outcome, and the problem with it, if any."""
        chance = random.Random(seed)
        which = chance.randrange(len(self.corpus))
        original, damaged = self.corpus[which], self.place / "damaged"
        if damaged.exists():
            shutil.rmtree(damaged)
        shutil.copytree(original, damaged)
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            if _files(damaged):
                chance.choice(MUTATIONS)(chance, damaged, self.corpus)
        before = _signature(self.place), _signature(original)
        words = chance.choice((("compare", "--strict", "A", "B"), ("compare", "--strict", "B", "A"), ("show", "B")))
        arguments = [{"A": str(original), "B": str(damaged)}.get(word, word) for word in words]
        began = time.process_time()
        result = self._runner.invoke(command(), arguments)
        seconds = time.process_time() - began
        problem = self._problem(result, seconds, is_compare=words[0] == "compare", which=which)
        if problem is None and (_signature(self.place), _signature(original)) != before:
            problem = f"wrote into {self.place} or {original}"
        outcome = f"{words[0]} {result.exit_code}"
        return outcome, None if problem is None else f"{' '.join(words)}: {problem}"

    def _problem(self, result: Result, seconds: float, *, is_compare: bool, which: int) -> str | None:
        said = result.output.strip()
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            return f"raised {result.exception!r}"
        if result.exit_code not in (0, 1, 2) or not said:
            return f"exit status {result.exit_code} with {len(said)} characters"
        if "Traceback" in said or "This is a bug" in said:
            return said[:400]
        if seconds > MOST_SECONDS:
            return f"took {seconds:.0f} s of processor time"
        if is_compare and result.exit_code == 0 and content_of(self.place / "damaged") != self._contents[which]:
            return f"said {said.splitlines()[0]!r} of other content"
        return None


def _most_memory() -> int:
    """Return the peak memory of this process, in bytes.

    `ru_maxrss` does not measure it: it includes the memory of the process that started this one (`man 2 getrusage`: kept over `execve`).
    """
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def _work(connection: Any, place: str, corpus: list[str]) -> None:
    """Try the mutations that arrive until none are left."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    sandbox = Sandbox(Path(place), [Path(trace) for trace in corpus])
    connection.send(None)
    while (seed := connection.recv()) is not None:
        # Processor time is independent of other work on the machine; a signal ends a process that takes more.
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + 2 * MOST_SECONDS, resource.RLIM_INFINITY))
        outcome, problem = sandbox.outcome_of(seed)
        used = _most_memory()
        connection.send((outcome, problem or (f"used {used >> 20} MiB" if used > MOST_BYTES else None)))


class _Worker:
    """A separate process, since damage may crash it."""

    def __init__(self, folder: Path, corpus: list[Path]) -> None:
        self._folder, self._corpus, self._count = folder, corpus, 0
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._count += 1
        place = str(self._folder / f"sandbox-{os.getpid()}-{id(self)}-{self._count}")
        self._process = context.Process(
            target=_work, args=(theirs, place, [str(one) for one in self._corpus]), daemon=True
        )
        self._process.start()
        theirs.close()
        self._connection.recv()

    def begin(self, seed: str) -> None:
        """Send it a mutation."""
        self.seed, self._until = seed, time.monotonic() + _MOST_WAITING
        self._connection.send(seed)

    def answer(self) -> tuple[str, str | None] | None:
        """Return the outcome and the problem with it, if any; None until these are known."""
        try:
            if self._connection.poll(0.002):
                outcome, problem = self._connection.recv()
                if problem is not None and problem.startswith("used "):
                    self.end()
                    self._start()
                return outcome, problem
            if time.monotonic() < self._until:
                return None
            problem = f"did not end within {_MOST_WAITING} s"
        except EOFError:
            self._process.join()
            status = self._process.exitcode
            problem = (
                f"did not end within {2 * MOST_SECONDS} s of processor time"
                if status == -signal.SIGXCPU
                else f"the process ended with {status}"
            )
        self.end()
        self._start()
        return "broken off", problem

    def end(self) -> None:
        """Stop the process."""
        self._process.kill()
        self._process.join()


def outcomes(seeds: Iterator[str], folder: Path, workers: int) -> Iterator[tuple[str, str, str | None]]:
    """Try mutations; for each, yield the seed, the outcome, and the problem with it, if any."""
    corpus = make_corpus(folder / "corpus")
    idle = [_Worker(folder, corpus) for _ in range(workers)]
    busy: list[_Worker] = []
    try:
        while True:
            while idle and (seed := next(seeds, None)) is not None:
                idle[-1].begin(seed)
                busy.append(idle.pop())
            if not busy:
                return
            for one in list(busy):
                answer = one.answer()
                if answer is not None:
                    busy.remove(one)
                    idle.append(one)
                    yield one.seed, *answer
    finally:
        for one in (*idle, *busy):
            one.end()


def main() -> None:
    """Try many mutations; the exit status is 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=1000)
    parser.add_argument("--seed", default="0", help="another one makes other mutations")
    parser.add_argument("--only", help="the seed of one mutation, as it was printed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    seeds = [asked.only] if asked.only else [f"{asked.seed}:{number}" for number in range(asked.mutations)]
    found, began, counts = 0, time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="determinism-fuzz-") as folder:
        for seed, outcome, problem in outcomes(iter(seeds), Path(folder), 1 if asked.only else asked.workers):
            counts[outcome] += 1
            if problem is not None:
                found += 1
                print(f"--only {seed}: {problem}", flush=True)
    print(f"{len(seeds):,} mutations in {time.monotonic() - began:.0f} s: {found} with a problem")
    print(
        ", ".join(f"{outcome}: {count:,}" for outcome, count in sorted(counts.items())),
        "(0 same, 1 different, 2 trouble or inconclusive)",
    )
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
