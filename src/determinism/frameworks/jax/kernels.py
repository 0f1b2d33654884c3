"""Finds the kernel of a compiled program whose results vary, by reading what each kernel of the program writes.

The output of each kernel is copied right after it, and the program is run repeatedly on the inputs of the record. The first kernel
whose results vary is the place: all kernels before it, and so all its inputs, were the same each time. Loops are searched in the first
iteration that varies, conditions in the branch that was taken. The machine code is the program's own (`serialized.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import compiler
from jax._src.lib import xla_client

from determinism.digest import digest_bytes
from determinism.frameworks.array_capture import Place, fitting_groups, place_at
from determinism.frameworks.jax.serialized import Instruction, Memory, SerializedProgram, Step, Thunk

_REPEATS = 30
_MOST_ITERATIONS = 1000


class NotCut(Exception):
    """The program cannot be examined between its kernels; the text says why, and continues a sentence after "since"."""


class Kernel(NamedTuple):
    """An instruction of the optimised program."""

    place: Place
    instruction: str
    opcode: str
    made_from: tuple[Place, ...]
    """The ops that XLA fused into it, once per line; empty for a single op."""


class Stored(NamedTuple):
    """A compiled program in XLA's stored form, or why that is not available."""

    data: bytes
    problem: str = ""


def stored_form(execution: Any) -> Stored:
    """XLA's stored form of a compiled program, taken before its first run: one with a custom comparison cannot be stored later.

    Args:
        execution: An `ExecuteReplicated`.
    """
    executable = execution.xla_executable
    client = executable.client
    if client.platform != "cpu":
        return Stored(b"", f"this works only on CPUs, and it runs on {client.platform}")
    if jax.process_count() > 1:
        return Stored(b"", f"it runs in {jax.process_count()} processes")
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
        arguments: Returns its arguments, each time in new memory, since they may be written to.
        results: Digests of its results on each device.
        seconds: Time limit of the search.

    Returns:
        The kernel; None if none varied.

    Raises:
        NotCut: The program does not have the expected form.
    """
    if stored.problem:
        raise NotCut(stored.problem)
    executable = execution.xla_executable
    try:
        program = SerializedProgram(stored.data)
        running = _Running(
            executable.client,
            executable.local_devices(),
            program.devices(),
            lambda: execution.in_handler([one for at, one in enumerate(arguments()) if at in execution.kept_var_idx]),
        )
        search = _Search(program, running, time.monotonic() + seconds)
        search.require_results(results)
        return search.kernel(())
    except NotCut:
        raise
    except Exception as error:
        # XLA's stored form is not a public interface: it may fail in any way, and the search of equations is the fallback.
        raise NotCut(f"XLA's stored form of it could not be used ({type(error).__name__}: {error})"[:300]) from error


class _Running:
    """Runs copies of the program that return bytes."""

    def __init__(
        self, client: Any, devices: Sequence[Any], shape: tuple[int, int], inputs: Callable[[], Sequence[Any]]
    ) -> None:
        self._client = client
        self._devices = xla_client.DeviceList(tuple(devices))
        assignment = np.array([one.id for one in devices]).reshape(shape)
        self._options = compiler.get_compile_options(*shape, device_assignment=assignment)
        self._inputs = inputs

    def load(self, data: bytes) -> Callable[[], list[Any]]:
        """Load a copy; return a function that runs it once and returns the bytes of each device."""
        try:
            loaded = self._client.deserialize_executable(data, self._devices, self._options)
        except TypeError:
            # Older versions take the devices from the options.
            loaded = self._client.deserialize_executable(data, self._options)

        def run() -> list[Any]:
            (result,) = loaded.execute_sharded(self._inputs()).disassemble_into_single_device_arrays()
            return [np.asarray(one) for one in result]

        return run


class _Search:
    """One search, with a deadline."""

    def __init__(self, program: SerializedProgram, running: _Running, until: float) -> None:
        self._program = program
        self._running = running
        self._until = until

    def require_results(self, results: Sequence[bytes]) -> None:
        """Check that a copy computes what the program computes.

        Raises:
            NotCut: It has a result that does not vary and that the program does not have.
        """
        last, known = len(self._program.thunks()) - 1, set(results)
        for parts in _groups((last, memory) for memory in self._program.results()):
            for memory, devices in zip(parts[last], self._digests((), parts)[0], strict=True):
                if any(len(seen) == 1 and not seen <= known for seen in devices):
                    raise NotCut(
                        f"a copy of it gave different results ({memory.size} bytes that the program does not return)"
                    )

    def kernel(self, path: tuple[Step, ...]) -> Kernel | None:
        """The kernel that varies in the sequence at the end of a path."""
        thunks = self._program.thunks(path)
        for parts in _groups((at, memory) for at, one in enumerate(thunks) for memory in one.written):
            digests, _ = self._digests(path, parts)
            places = [at for at, memories in parts.items() for _ in memories]
            first = next((at for at, devices in zip(places, digests, strict=True) if _vary(devices)), None)
            if first is not None:
                return self._within(path, first, thunks[first]) or self._kernel_of(thunks[first])
            if time.monotonic() > self._until:
                return None
        return None

    def _within(self, path: tuple[Step, ...], at: int, thunk: Thunk) -> Kernel | None:
        """The kernel within a loop, a condition or a call; None for other thunks, or if nothing within varied by itself."""
        if thunk.is_loop:
            iterations = self._first_iteration(path, at, thunk)
            return None if iterations is None else self.kernel((*path, Step(at, iterations=iterations)))
        if thunk.chooses is not None:
            _, chosen = self._digests(path, {at - 1: [thunk.chooses]})
            taken = dict.fromkeys(_branch(one, thunk.branches) for one in chosen)
            # Devices that take different branches do not write the same memory.
            return self.kernel((*path, Step(at, branch=next(iter(taken))))) if len(taken) == 1 else None
        return self.kernel((*path, Step(at))) if thunk.is_call else None

    def _first_iteration(self, path: tuple[Step, ...], at: int, thunk: Thunk) -> int | None:
        """The number of iterations after which something in a loop first varies; None if it never does."""
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
        """Whether anything that a sequence writes varies."""
        thunks = self._program.thunks(path)
        written = ((at, memory) for at, one in enumerate(thunks) for memory in one.written)
        return any(
            _vary(devices)
            for parts in _groups(written)
            for devices in self._digests(path, parts, is_first_enough=True)[0]
        )

    def _digests(
        self, path: Sequence[Step], parts: Mapping[int, Sequence[Memory]], *, is_first_enough: bool = False
    ) -> tuple[list[list[set[bytes]]], list[bytes]]:
        """Digests of the content of each part of the memory, for each device; and all bytes of the last run on each device.

        Args:
            path: Path of the sequence.
            parts: By the number of the thunk after which they are read.
            is_first_enough: Whether to end as soon as one varies.
        """
        run = self._running.load(self._program.watching(path, parts))
        sizes = [memory.size for memories in parts.values() for memory in memories]
        digests: list[list[set[bytes]]] = []
        for number in range(_REPEATS):
            given = run()
            digests = digests or [[set() for _ in given] for _ in sizes]
            offset = 0
            for devices, size in zip(digests, sizes, strict=True):
                for seen, held in zip(devices, given, strict=True):
                    seen.add(digest_bytes(held[offset : offset + size]))
                offset += size
            varying = sum(map(_vary, digests))
            is_known = varying == len(digests) or (varying and is_first_enough)
            if is_known or (number and time.monotonic() > self._until):
                break
        return digests, [one.tobytes() for one in given]

    def _kernel_of(self, thunk: Thunk) -> Kernel:
        about, fused = self._program.instruction(thunk.name), self._program.fused(thunk.name)
        known = {(one.op, one.file, one.line): one for one in map(_place_of, fused) if one.file}
        place = _place_of(about)
        if not place.file and known:
            # Instructions that XLA creates, such as function calls, have no line; the last op within gives the result.
            place = list(known.values())[-1]
        return Kernel(place, about.name, about.opcode, tuple(known.values()))


def _vary(devices: Sequence[set[bytes]]) -> bool:
    """Whether a part of the memory varied on any device."""
    return any(len(seen) > 1 for seen in devices)


def _branch(chosen: bytes, branches: int) -> int:
    """The branch that a condition takes: the first if a predicate holds; or the one with the index, or the last if that is out of range."""
    if len(chosen) == 1:
        return 0 if chosen[0] else 1
    number = int.from_bytes(chosen, "little", signed=True)
    return number if 0 <= number < branches else branches - 1


def _groups(written: Iterator[tuple[int, Memory]]) -> Iterator[dict[int, list[Memory]]]:
    """Group parts of the program's memory whose copies fit into memory together, by the number of the thunk that writes them."""
    for parts in fitting_groups(written, lambda one: one[1].size):
        group: dict[int, list[Memory]] = {}
        for at, memory in parts:
            group.setdefault(at, []).append(memory)
        yield group


def _place_of(instruction: Instruction) -> Place:
    """Where an instruction comes from: the JAX op and its line, from XLA's metadata."""
    *functions, op = (instruction.op_name.partition(";")[0] or instruction.name).split("/")
    if instruction.target and op == "ffi_call":
        op = f"{op}[{instruction.target}]"
    return place_at(f"jax::{op}", instruction.frames, tuple(_function(one) for one in functions[1:]))


def _function(name: str) -> str:
    """The name of a function in a path: `inner` for `jit(inner)`."""
    begun, _, rest = name.partition("(")
    return rest.removesuffix(")") if begun in ("jit", "pjit") and rest else name
