"""Repeats one op on copies of its inputs, and counts the different results that each of its outputs gets."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from determinism.frameworks.torch.edges import written_tensors
from determinism.frameworks.torch.generators import generator_of
from determinism.frameworks.torch.op_traits import OpTraits
from determinism.frameworks.torch.tensor_bytes import digest_tensor
from determinism.frameworks.torch.tensor_copies import copied
from determinism.frameworks.torch.value_difference import difference

_SHIFTS = (0, 1, 2, 3, 5, 8, 12)
"""Elements by which buffers are moved to lie at other alignments."""
_M_PERTURB = -6
"""Of `mallopt` in glibc: memory is handed out filled with a byte."""


@dataclass
class Output:
    """What one output of the op was, over a series of repeats."""

    first: torch.Tensor
    other: torch.Tensor | None = None
    """Of the results that differ from the first, the one in which the most elements do."""
    worst: dict[str, Any] = field(default_factory=dict)
    """The largest differences from the first; where they lie is told of `other`."""
    digests: set[bytes] = field(default_factory=set)

    @property
    def distinct(self) -> int:
        """How many different results there were."""
        return len(self.digests)

    def add(self, result: torch.Tensor) -> None:
        """One more result."""
        digest = digest_tensor(result)
        if digest in self.digests:
            return
        self.digests.add(digest)
        if len(self.digests) == 1:
            return
        found = difference(self.first, result)
        if self.other is None or (found["elements_different"] or 0) > (self.worst["elements_different"] or 0):
            self.other = result.clone()
            self.worst.update({name: found[name] for name in ("elements_different", "examples", "extent")})
        for name in ("max_ulp", "max_abs", "max_relative"):
            known = self.worst.get(name)
            self.worst[name] = found[name] if known is None else max(known, found[name] or 0)


class OpRepeats:
    """One op with its inputs, to be run again and again."""

    def __init__(self, traits: OpTraits, func: Any, args: Any, kwargs: Any) -> None:
        """Take a call; it is not made yet."""
        self._traits = traits
        self._func = func
        self._args = args
        self._kwargs = kwargs
        self._generator = generator_of(args, kwargs) if traits.draws else None
        self._state = self._generator.get_state() if self._generator is not None else None

    def outputs(self, *, shift: int = 0) -> list[torch.Tensor]:
        """Run it once on copies; gives what it wrote and made, and leaves the program's tensors as they are."""
        if self._generator is not None and self._state is not None:
            self._generator.set_state(self._state)
        args, kwargs = copied([self._args, self._kwargs], shift=shift)
        result = self._func(*args, **kwargs)
        return written_tensors(self._traits, args, kwargs, result)

    def put_back(self) -> None:
        """Let the generator be where it was."""
        if self._generator is not None and self._state is not None:
            self._generator.set_state(self._state)

    def series(
        self, *, repeats: int, seconds: float, insists: bool = False, moves: bool = False
    ) -> tuple[int, dict[int, Output]]:
        """Run it at least twice.

        Args:
            repeats: How often.
            seconds: After this time it is left.
            insists: Whether to use all of this time, as long as no output has varied. On a busy machine threads run one
                after the other, and a race shows only after many repeats.
            moves: Whether to let the buffers lie at other alignments in each repeat.

        Returns:
            How often it was run, and each of its outputs by position, without those that are only scratch memory.
        """
        found: dict[int, Output] = {}
        done, until = 0, time.monotonic() + seconds
        while done < 2 or (time.monotonic() < until and (done < repeats or (insists and _are_constant(found)))):
            outputs = self.outputs(shift=_SHIFTS[done % len(_SHIFTS)] if moves else 0)
            for position, output in enumerate(outputs):
                if position not in self._traits.workspaces:
                    found.setdefault(position, Output(output.clone())).add(output)
            done += 1
        return done, found


def _are_constant(outputs: dict[int, Output]) -> bool:
    return all(output.distinct < 2 for output in outputs.values())


@contextmanager
def one_thread() -> Iterator[None]:
    """Let ops run in one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def filled_memory(value: int = 0x55) -> Iterator[bool]:
    """Let memory that the process gets be filled with a byte; gives False where the C library cannot do so."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        yield False
        return
    is_done = bool(set_option(_M_PERTURB, value))
    try:
        yield is_done
    finally:
        set_option(_M_PERTURB, 0)
