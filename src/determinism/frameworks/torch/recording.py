"""Switches recording on in this process, and off again."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from determinism import environment, rng
from determinism.frameworks.torch import data_loading, escapes, modules, optimization, threads
from determinism.frameworks.torch.capture import Capture
from determinism.frameworks.torch.compiler import num_fused_graphs
from determinism.frameworks.torch.generators import state_digest
from determinism.frameworks.torch.held import Held
from determinism.frameworks.torch.recorder import Recorder
from determinism.frameworks.torch.settings import settings
from determinism.frameworks.torch.tensor_bytes import is_plain
from determinism.trace.schema import END_OP, STEP_OP
from determinism.trace.writer import ProcessWriter
from determinism.types import Level, Phase, RecordingOptions, Role

_HELD_OPS = {
    "parameter": "determinism::parameter",
    "gradient": "determinism::gradient",
    "buffer": "determinism::buffer",
    "optimizer state": "determinism::optimizer_state",
}


class Session:
    """One recording of this process, from `start` to `close`."""

    def __init__(self, folder: Path, options: RecordingOptions) -> None:
        self.level = Level(options.level)
        self._steps = options.steps
        self._process = os.getpid()
        self._num_batches = 0
        description = {
            "framework": "torch",
            "level": self.level.value,
            "steps_by": None,
            "argv": sys.argv,
            "started": time.time(),
            "environment": environment.describe(),
            "settings": settings(),
        }
        self.writer = ProcessWriter(folder, description=description, max_bytes=options.max_disk)
        self.recorder = Recorder(self.writer, tracks_ops=self.level is Level.OP, paranoid=options.paranoid)
        self.recorder.step_ended = self._step_ended
        if options.capture is not None and options.capture["process"] == folder.name:
            self.recorder.capture = Capture(options.capture, folder, self.finish_program)
        self._undo: list[Callable[[], None]] = []
        self._install()
        os.register_at_fork(after_in_parent=self._forked_child)

    def _forked_child(self) -> None:
        if self._undo and self._process == os.getpid():
            self.writer.blind_spot(
                "forked-process",
                "forked process",
                "its ops are not recorded; what it sends back is digested where it is read",
            )

    def _install(self) -> None:
        recorder = self.recorder
        self._undo += optimization.install(recorder, self._end_if_asked)
        self._undo.append(data_loading.install(recorder, self._batch_yielded))
        returned = self._module_returned if self.level is Level.MODULE else None
        self._undo.append(modules.install(recorder.modules, self._set_phase, returned))
        if self.level is Level.OP:
            self._undo += escapes.install(recorder)
            self._undo.append(threads.install(self.writer))
            recorder.__enter__()

    def _set_phase(self, phase: Phase) -> None:
        self.recorder.progress.phase = phase

    def begin_at(self, frame: FrameType) -> None:
        """Stacks end with the frame that the recording was begun in, and that frame does not tell records apart."""
        self.recorder.sites.outermost = frame
        self.writer.describe(begun_in=[os.path.abspath(frame.f_code.co_filename), frame.f_code.co_qualname])

    def step(self) -> None:
        """`determinism.step()`: a step ends here."""
        self.recorder.quietly(self.recorder.progress.explicit)
        self._end_if_asked()

    def _batch_yielded(self) -> None:
        self._num_batches += 1
        progress = self.recorder.progress
        if progress.phase in (Phase.INIT, Phase.DATA):
            progress.phase = Phase.FORWARD
        if (
            self._steps is not None
            and progress.steps_by is None
            and self._num_batches > self._steps
            and not any(isinstance(thing, torch.optim.Optimizer) for thing in gc.get_objects())
        ):
            self.finish_program("steps")

    def _step_ended(self, counted_by: str) -> None:
        progress = self.recorder.progress
        if progress.step == 0:
            self.writer.describe(steps_by=counted_by)
        self._record_held(STEP_OP)
        self.writer.boundary()

    def _end_if_asked(self) -> None:
        if self._steps is not None and self.recorder.progress.step >= self._steps:
            self.finish_program("steps")

    def _record_held(self, name: str) -> None:
        """At the end of a step: what the program keeps, and the states of the generators."""
        held = [h for h in self.recorder.held.tensors() if is_plain(h.tensor)]
        states = [state_digest(torch.default_generator), *rng.state_digests().values()]
        if self.level is Level.OP:
            text = json.dumps([[h.kind, h.name] for h in held])
            self.recorder.event(
                Role.STATE, name, [h.tensor for h in held], text=text, generators=states, phase=Phase.OTHER
            )
            return
        for one in held:
            self._record_one(one)
        self.recorder.event(Role.STATE, name, [], generators=states, phase=Phase.OTHER)

    def _record_one(self, held: Held) -> None:
        self.recorder.event(
            Role.HELD, _HELD_OPS[held.kind], [held.tensor], text=held.name, values=True, phase=Phase.OTHER
        )

    def _module_returned(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        given, made = (
            [v for v in data_loading.leaves(values) if isinstance(v, torch.Tensor)] for values in (inputs, output)
        )
        name = f"module::{type(module).__name__}"
        self.recorder.quietly(self.recorder.event, Role.MODULE, name, made, given=given, values=True)

    def returned(self, value: Any) -> None:
        """A checked function returned: its tensors leave the framework."""
        tensors = [v for v in data_loading.leaves(value) if isinstance(v, torch.Tensor)]
        if tensors:
            self.recorder.quietly(self.recorder.event, Role.ESCAPE, "determinism::return", tensors, values=True)

    def finish_program(self, reason: str) -> None:
        """End the trace and the program with it."""
        self.writer.describe(finished=reason)
        self.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def forked(self) -> None:
        """This is a forked child: the files belong to the parent."""
        self.recorder.is_active = False
        self.recorder.capture = None

    def close(self) -> None:
        """Stop recording and finish the files; the second call does nothing."""
        if self._process != os.getpid() or not self._undo:
            return
        self.recorder.quietly(self._record_held, END_OP)
        for _ in range(num_fused_graphs()):
            self.writer.blind_spot(
                "fused-kernels",
                "graph compiled by Inductor",
                "the ops inside its kernels are not recorded, only what other ops read of their results",
            )
        progress = self.recorder.progress
        steps = progress.step if progress.steps_by is not None else self._num_batches
        self.writer.describe(records=self.writer.num_records, steps=steps, steps_by=progress.steps_by)
        self.recorder.is_active = False
        self.recorder.sites.outermost = None
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self.writer.close()

    def leave(self) -> None:
        """Close, and take the mode off this thread's stack of modes."""
        self.close()
        if self.level is Level.OP:
            self.recorder.__exit__(None, None, None)


def start(folder: Path, options: RecordingOptions) -> Session:
    """Begin to record this process.

    Args:
        folder: An existing folder that belongs to this process alone.
        options: What to record.

    Raises:
        OSError: The trace cannot be written.
    """
    return Session(folder, options)
