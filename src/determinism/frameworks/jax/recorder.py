"""Turns every execution of a compiled program into a record: what went in, what came out, and which program it was.

JAX hands everything to XLA as a compiled program: a function under `jax.jit`, and each op outside of one. Executions go
through `ExecuteReplicated`, unless JAX has found a shorter way in C++, which is taken from it while this records.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from threading import get_ident
from types import FrameType
from typing import Any

from determinism.frameworks.array_capture import Capture
from determinism.frameworks.attention import Attention
from determinism.frameworks.jax.array_bytes import array_of, digest_array, digest_value
from determinism.frameworks.jax.captured_execution import CapturedExecution
from determinism.frameworks.jax.compiled_programs import CompiledPrograms
from determinism.frameworks.jax.values import Values
from determinism.frameworks.made_values import EXTERNAL, Value
from determinism.frameworks.named_stream import Stream
from determinism.frameworks.progress import Progress
from determinism.sites import NO_STACK
from determinism.types import Phase, Role

_NONE = -1
_MOST_UNREAD = 1000
_CALLS_BACK = (
    "it calls back into Python: neither what it was compiled to nor what Python gives it is told from what it computes"
)


class Recorder(Attention):
    """Records the executions of the thread that imported JAX."""

    def __init__(self, *, paranoid: bool) -> None:
        """Make one that sleeps until `begin`.

        Args:
            paranoid: Digest every input of every execution.
        """
        super().__init__()
        self.thread = get_ident()
        self._paranoid = paranoid
        self.step_ended: Callable[[str], None] = lambda counted_by: None
        self.used_elsewhere: Callable[[], None] = lambda: None
        self.capture: Capture | None = None
        """Looks at every record before it is made; set in a further run that looks closely at one."""

    def begin(self, stream: Stream) -> None:
        """Record into a stream from now on."""
        self.stream = stream
        self.writer = stream.writer
        self.values = Values()
        self._programs = CompiledPrograms()
        self.progress = Progress(lambda counted_by: self.step_ended(counted_by))
        self.progress.phase = Phase.OTHER
        self.is_active = True

    def is_own(self) -> bool:
        """Whether what this thread does is recorded, and something is to be recorded now."""
        if get_ident() != self.thread:
            self.used_elsewhere()
            return False
        return self.is_ready()

    def execute(self, original: Callable[..., Any], execution: Any, *args: Any) -> Any:
        """Run a compiled program, and record it."""
        if self._is_busy or not self.is_own():
            return original(execution, *args)
        read = self.quietly(self._read, execution, args)
        call = None if self.capture is None else self.quietly(CapturedExecution, original, execution, args)
        results = original(execution, *args)
        if read is not None:
            self.quietly(self._executed, execution, read, results, call, sys._getframe(2))
        return results

    def _read(self, execution: Any, args: Sequence[Any]) -> list[Value]:
        """What the inputs hold; before the program runs, which may take the memory of those that were donated to it."""
        return [self.value(one) for at, one in enumerate(args) if at in execution.kept_var_idx and not _is_gone(one)]

    def _executed(
        self, execution: Any, read: Sequence[Value], results: Any, call: CapturedExecution | None, frame: FrameType
    ) -> None:
        arrays = [array for one in results if (array := array_of(one)) is not None]
        made = [(self.layout(array), digest_array(array)) for array in arrays]
        name = f"jax::{execution.name}"
        if execution.has_host_callbacks:
            self.writer.blind_spot("host-callback", name, _CALLS_BACK)
        if self.capture is not None:
            if call is not None:
                call.outputs = arrays
            self.capture.look(name, self.progress.step, self.progress.phase, "", None if call is None else lambda: call)
        text = self._programs.text(execution)
        number = self.emit(Role.OP, name, read, made, arguments=text, frame=frame)
        for position, array in enumerate(arrays):
            self.values.made(array, Value(number, position, *made[position]))
        if len(self.values.unread) >= _MOST_UNREAD:
            self.note_unread()

    def note_unread(self) -> None:
        """Record what was not read by anything that is seen, and may have left JAX."""
        if len(self.values.unread):
            self.emit(Role.ESCAPE, "determinism::results", self.values.unread.take())

    def layout(self, array: Any) -> int:
        """The number of an array's layout."""
        devices = sorted({device.platform for device in array.sharding.device_set})
        device = devices[0] if array.sharding.num_devices == 1 else f"{devices[0]} x{array.sharding.num_devices}"
        return self.stream.layout(array.dtype.name, array.shape, device)

    def value(self, thing: Any) -> Value:
        """What an array or a number holds, and who made it; what nobody is known to have made is digested now."""
        array = array_of(thing)
        if array is None:
            return Value(EXTERNAL, 0, self.stream.value_layout, digest_value(thing))
        known = self.values.get(array)
        if known is None:
            known = Value(EXTERNAL, 0, self.layout(array), digest_array(array))
            self.values.made(array, known)
        return known

    def emit(
        self,
        role: Role,
        name: str,
        read: Sequence[Value],
        made: Sequence[tuple[int, bytes]] = (),
        *,
        arguments: str = "",
        drawn: Sequence[bytes] = (),
        frame: FrameType | None = None,
    ) -> int:
        """Add a record of what this thread does now; returns its number.

        Args:
            role: What it stands for.
            name: Of the op.
            read: Its inputs.
            made: Layout and digest of each output.
            arguments: As text.
            drawn: Digests of states of generators.
            frame: Where to look for the line of the program; None for whoever called.
        """
        inputs, digests = self.values.unread.read(read, paranoid=self._paranoid)
        outputs = [part for one in made for part in one]
        stream = self.stream
        stack = stream.sites.stack(frame or sys._getframe(1))
        cells = (
            0, self.progress.step, self.progress.phase, role, stream.op(name), _NONE, stack, _NONE, NO_STACK,
            stream.arguments(arguments),
        )  # fmt: skip
        return self.writer.append(cells, inputs, digests, outputs, drawn)


def _is_gone(thing: Any) -> bool:
    """Whether an array was donated before: JAX itself says so when it is used again."""
    array = array_of(thing)
    return array is not None and array.is_deleted()
