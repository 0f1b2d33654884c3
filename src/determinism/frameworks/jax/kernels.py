"""Finds the kernel of a compiled program at which its results vary: the program itself, with what its kernels wrote looked at in between.

What the program's kernels write is copied after each of them, and the program is run again and again on the inputs of the record. The first kernel
whose results vary is the place: whatever ran before it, and so all that it reads, held the same each time. Loops are looked into in the first
iteration that varies, conditions in the branch that was taken. The machine code is the program's own (`serialized.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax._src import compiler
from jax._src.lib import xla_client

from determinism.digest import digest_bytes
from determinism.frameworks.jax.inside import Place, place_at
from determinism.frameworks.jax.serialized import Instruction, Memory, SerializedProgram, Step, Thunk

_REPEATS = 30
_MOST_BYTES = 256 << 20
"""Of what is looked at in one form of the program."""
_MOST_ITERATIONS = 1000


class NotCut(Exception):
    """The program cannot be looked at between its kernels; the text says why, and goes on from "since"."""


class Kernel(NamedTuple):
    """An instruction of the optimised program."""

    place: Place
    instruction: str
    opcode: str
    made_from: tuple[Place, ...]
    """The ops that XLA fused into it, once for each line; empty for what is one op."""


class Stored(NamedTuple):
    """A compiled program in the form that XLA stores, or why there is none."""

    data: bytes
    problem: str = ""


def stored_form(execution: Any) -> Stored:
    """What XLA stores of a compiled program, taken before its first run: one with a comparison of its own cannot be stored after it.

    Args:
        execution: An `ExecuteReplicated`.
    """
    executable = execution.xla_executable
    client, devices = executable.client, executable.local_devices()
    if client.platform != "cpu":
        return Stored(b"", f"this is done on a CPU only, and it runs on {client.platform}")
    if len(devices) != 1:
        return Stored(b"", f"it runs on {len(devices)} devices")
    if execution.mut or execution.ordered_effects or execution.has_unordered_effects:
        return Stored(b"", "it has effects, or writes to mutable references")
    try:
        whole = hasattr(executable, "serialize")
        return Stored(bytes(executable.serialize() if whole else client.serialize_executable(executable)))
    except Exception as error:
        return Stored(b"", f"XLA could not store it ({type(error).__name__}: {error})"[:300])


def varying_kernel(
    execution: Any, stored: Stored, arguments: Callable[[], Sequence[Any]], results: Sequence[bytes], seconds: float
) -> Kernel | None:
    """The kernel of a compiled program that varies.

    Args:
        execution: An `ExecuteReplicated`.
        stored: Its `stored_form`.
        arguments: Gives what it was called with, each time in memory of its own, since it may be written to.
        results: Digests of what it gave.
        seconds: For all of it.

    Returns:
        The kernel; None if none varied.

    Raises:
        NotCut: The program is not as it would have to be.
    """
    if stored.problem:
        raise NotCut(stored.problem)
    executable = execution.xla_executable
    try:
        running = _Running(
            executable.client,
            executable.local_devices(),
            lambda: execution.in_handler([one for at, one in enumerate(arguments()) if at in execution.kept_var_idx]),
        )
        search = _Search(SerializedProgram(stored.data), running, time.monotonic() + seconds)
        search.require_results(results)
        return search.kernel(())
    except NotCut:
        raise
    except Exception as error:
        # XLA's form of it is no public interface: it may fail in any way, and the search of equations is still left.
        raise NotCut(f"XLA's stored form of it could not be used ({type(error).__name__}: {error})"[:300]) from error


class _Running:
    """Runs copies of the program that give bytes."""

    def __init__(self, client: Any, devices: Sequence[Any], inputs: Callable[[], Sequence[Any]]) -> None:
        self._client = client
        self._devices = xla_client.DeviceList(tuple(devices))
        self._options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        self._inputs = inputs

    def load(self, data: bytes) -> Callable[[], Any]:
        """Load a copy; gives what runs it once."""
        loaded = self._client.deserialize_executable(data, self._devices, self._options)

        def run() -> Any:
            ((result,),) = loaded.execute_sharded(self._inputs()).disassemble_into_single_device_arrays()
            return np.asarray(result)

        return run


class _Search:
    """One search, until a time."""

    def __init__(self, program: SerializedProgram, running: _Running, until: float) -> None:
        self._program = program
        self._running = running
        self._until = until

    def require_results(self, results: Sequence[bytes]) -> None:
        """See that a copy computes what the program computes.

        Raises:
            NotCut: It gives a result that does not vary and is none of the program's.
        """
        last = len(self._program.thunks()) - 1
        for parts in _groups((last, memory) for memory in self._program.results()):
            for memory, seen in zip(parts[last], self._digests((), parts)[0], strict=True):
                if len(seen) == 1 and not seen <= set(results):
                    raise NotCut(
                        f"a copy of it gave other results ({memory.size} bytes that the program does not give)"
                    )

    def kernel(self, path: tuple[Step, ...]) -> Kernel | None:
        """The kernel that varies in the sequence at the end of a path."""
        thunks = self._program.thunks(path)
        for parts in _groups((at, memory) for at, one in enumerate(thunks) for memory in one.written):
            digests, _ = self._digests(path, parts)
            places = [at for at, memories in parts.items() for _ in memories]
            first = next((at for at, seen in zip(places, digests, strict=True) if len(seen) > 1), None)
            if first is not None:
                return self._within(path, first, thunks[first]) or self._kernel_of(thunks[first])
            if time.monotonic() > self._until:
                return None
        return None

    def _within(self, path: tuple[Step, ...], at: int, thunk: Thunk) -> Kernel | None:
        """The kernel within a loop, a condition or a call; None if it is neither, or nothing there varied by itself."""
        if thunk.is_loop:
            iterations = self._first_iteration(path, at, thunk)
            return None if iterations is None else self.kernel((*path, Step(at, iterations=iterations)))
        if thunk.chooses is not None:
            _, taken = self._digests(path, {at - 1: [thunk.chooses]})
            return self.kernel((*path, Step(at, branch=_branch(taken, thunk.branches))))
        return self.kernel((*path, Step(at))) if thunk.is_call else None

    def _first_iteration(self, path: tuple[Step, ...], at: int, thunk: Thunk) -> int | None:
        """The number of iterations after which something in a loop varies first; None if it never does."""
        most = min(thunk.most_iterations or _MOST_ITERATIONS, _MOST_ITERATIONS)
        equal, different = 0, 1
        while not self._varies((*path, Step(at, iterations=different))):
            if different >= most or time.monotonic() > self._until:
                return None
            equal, different = different, min(2 * different, most)
        while different - equal > 1 and time.monotonic() < self._until:
            middle = (equal + different) // 2
            if self._varies((*path, Step(at, iterations=middle))):
                different = middle
            else:
                equal = middle
        return different

    def _varies(self, path: tuple[Step, ...]) -> bool:
        """Whether anything varies that a sequence writes."""
        thunks = self._program.thunks(path)
        written = ((at, memory) for at, one in enumerate(thunks) for memory in one.written)
        return any(
            len(seen) > 1 for parts in _groups(written) for seen in self._digests(path, parts, is_first_enough=True)[0]
        )

    def _digests(
        self, path: Sequence[Step], parts: Mapping[int, Sequence[Memory]], *, is_first_enough: bool = False
    ) -> tuple[list[set[bytes]], bytes]:
        """Of each part of the memory the digests of what it held, and all that the last run gave.

        Args:
            path: Of the sequence.
            parts: By the number of the thunk that they are looked at after.
            is_first_enough: End as soon as one varies.
        """
        run = self._running.load(self._program.watching(path, parts))
        sizes = [memory.size for memories in parts.values() for memory in memories]
        digests: list[set[bytes]] = [set() for _ in sizes]
        for number in range(_REPEATS):
            given = run()
            offset = 0
            for seen, size in zip(digests, sizes, strict=True):
                seen.add(digest_bytes(given[offset : offset + size]))
                offset += size
            varying = sum(len(seen) > 1 for seen in digests)
            is_known = varying == len(digests) or (varying and is_first_enough)
            if is_known or (number and time.monotonic() > self._until):
                break
        return digests, given.tobytes()

    def _kernel_of(self, thunk: Thunk) -> Kernel:
        about, fused = self._program.instruction(thunk.name), self._program.fused(thunk.name)
        known = {(one.op, one.file, one.line): one for one in map(_place_of, fused) if one.file}
        place = _place_of(about)
        if not place.file and known:
            # What XLA made itself, such as a call of a function, has no line; the last op in it gives the result.
            place = list(known.values())[-1]
        return Kernel(place, about.name, about.opcode, tuple(known.values()))


def _branch(chosen: bytes, branches: int) -> int:
    """Which branch of a condition is taken: the first where the condition holds, or the one with a number, the last for others."""
    if len(chosen) == 1:
        return 0 if chosen[0] else 1
    number = int.from_bytes(chosen, "little", signed=True)
    return number if 0 <= number < branches else branches - 1


def _groups(written: Iterator[tuple[int, Memory]]) -> Iterator[dict[int, list[Memory]]]:
    """Parts of the memory that follow each other, and fit into memory together."""
    group: dict[int, list[Memory]] = {}
    size = 0
    for at, memory in written:
        if group and size + memory.size > _MOST_BYTES:
            yield group
            group, size = {}, 0
        group.setdefault(at, []).append(memory)
        size += memory.size
    if group:
        yield group


def _place_of(instruction: Instruction) -> Place:
    """Where an instruction comes from: the op of JAX and its line, as XLA was told."""
    *functions, op = (instruction.op_name.partition(";")[0] or instruction.name).split("/")
    if instruction.target and op == "ffi_call":
        op = f"{op}[{instruction.target}]"
    return place_at(f"jax::{op}", instruction.frames, tuple(_function(one) for one in functions[1:]))


def _function(name: str) -> str:
    """The name of a function in a path: `inner` for `jit(inner)`."""
    begun, _, rest = name.partition("(")
    return rest.removesuffix(")") if begun in ("jit", "pjit") and rest else name
