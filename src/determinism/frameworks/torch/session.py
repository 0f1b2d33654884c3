"""Starts and stops recording PyTorch in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import get_ident
from typing import Any

import torch

from determinism import environment
from determinism.batch.torch import Rows
from determinism.frameworks.progress import UPDATE, note_earlier_threads
from determinism.frameworks.session import AdapterSession
from determinism.frameworks.torch import hooks
from determinism.frameworks.torch.compilers import (
    KernelChoices,
    step_aside_for_tracing,
    watch_compiled_graphs,
    watch_triton_kernels,
)
from determinism.frameworks.torch.device_digests import DeviceDigests
from determinism.frameworks.torch.edges import Stream
from determinism.frameworks.torch.evidence import Capture
from determinism.frameworks.torch.hooks import (
    Entered,
    Part,
    Returned,
    generator_states,
    is_being_made,
    part_of_program,
    record_held,
    watch_captures,
)
from determinism.frameworks.torch.invariants import CallMarks, watch_checkpoints, watch_files
from determinism.frameworks.torch.modules import StepLedger, has_optimizer
from determinism.frameworks.torch.native_recorder import recorder_for
from determinism.frameworks.torch.ops import leave_alone, leave_recorder_alone
from determinism.frameworks.torch.recorder import KeptValues, Recorder, Threads
from determinism.frameworks.torch.settings import gpu_facts, libraries, recorded_settings
from determinism.frameworks.torch.tensor_bytes import leaves
from determinism.frameworks.wrapping import hide_own_frames
from determinism.process_name import world_size
from determinism.resume.torch import KeptGenerators, PutBackGenerators, WatchedGenerators
from determinism.run_spec import RunSpec
from determinism.trace.schema import END_OP, STEP_OP
from determinism.trace.writer import ProcessWriter
from determinism.types import Level, Phase, ProcessFolders, Role

# Requests to a run besides recording: checking batch rows, keeping generator states, restoring them.


class ProcessRequests:
    """The additional requests that one process of a run serves."""

    def __init__(self, options: RunSpec) -> None:
        self._options = options
        self._rows: Rows | None = None
        self._kept: KeptGenerators | None = None
        self._put_back: PutBackGenerators | None = None
        self._watched: WatchedGenerators | None = None
        self._marks = CallMarks() if options.invariants and options.level == Level.OP else None

    @property
    def returned(self) -> Returned | None:
        """The function to call when a module returned; None if there is no need."""
        return self._returned if self._options.rows or self._marks is not None else None

    @property
    def entered(self) -> Entered | None:
        """The function to call before an outermost module is called; None if there is no need."""
        generators = self._options.generators
        puts_back = generators is not None and "from" in generators
        return self._entered if self._options.rows or self._marks is not None or puts_back else None

    def begin(self, recorder: Recorder, folder: Path) -> None:
        """Begin in a process.

        Raises:
            OSError: A file cannot be read or written.
        """
        if self._options.rows is not None:
            self._rows = Rows(self._options.rows, folder)
            self._rows.watch(recorder)
        generators = self._options.generators
        if generators is None:
            return
        if "from" in generators:
            self._put_back = PutBackGenerators(generators, recorder, folder.name)
        elif "watch" in generators:
            self._watched = WatchedGenerators(folder)
        else:
            self._kept = KeptGenerators(folder, recorder, generators.get("steps"))

    def step_ended(self) -> None:
        """Note that a step of the main thread ended."""
        for one in (self._kept, self._put_back, self._watched):
            if one is not None:
                one.step_ended()

    def forked(self) -> Any:
        """Start afresh in a forked child; returns what belongs to the parent and must not be garbage-collected here."""
        parents = self._rows
        self._rows = self._kept = self._put_back = self._watched = None
        return parents

    def close(self) -> None:
        """Finish the files, and undo what was installed.

        Raises:
            OSError: A file cannot be written.
        """
        for setting in (self._put_back, self._watched, self._kept):
            for undo in setting.undo() if setting is not None else ():
                undo()
        for one in (self._rows, self._kept, self._watched, self._marks):
            if one is not None:
                one.close()

    def _entered(self, recorder: Recorder, module: torch.nn.Module, arguments: Any) -> None:
        if self._put_back is not None:
            recorder.run_unrecorded(self._put_back.module_called, module)
        if self._rows is not None:
            self._rows.entered(recorder, module, arguments)
        if self._marks is not None:
            self._marks.entered(recorder, module, arguments)

    def _returned(self, recorder: Recorder, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if self._rows is not None:
            self._rows.returned(recorder, module, inputs, output)
        if self._marks is not None:
            self._marks.returned(recorder, module, output)


_PARTS = ("worker", "pool")
"""Streams of helper processes of another process; their folders are named after its folder."""


class Session(AdapterSession):
    """One recording of this process and of those that it forks, from construction to `close`."""

    framework = "torch"

    def __init__(self, folders: ProcessFolders, spec: RunSpec) -> None:
        super().__init__(folders, spec)
        self._part = Part("process", None)
        self._environment: dict[str, Any] = {}
        """Facts about the environment that the process runs in; empty until its trace is opened."""
        self._besides = ProcessRequests(spec)
        self._devices = DeviceDigests()
        self._choices = KernelChoices()
        self._inherited: list[Any] = []
        """Writers of the parents of this forked process: they must neither write nor be garbage-collected here."""
        main, self._recorder_reason = recorder_for(self.level, paranoid=spec.paranoid)
        main.groups_held = not spec.invariants
        self.threads = Threads(main, self._open_thread_stream)
        self.threads.step_ended = self._step_ended
        main.is_waiting = spec.window is not None and self.level is Level.OP and spec.window > spec.first_step
        if is_being_made():
            main.on_first_op = self._begin_in_child
        else:
            self._begin(main)
        self._show_own_frames = hide_own_frames()
        self._install()

    @property
    def recorder(self) -> Recorder:  # type: ignore[override]
        """The recorder of the main thread; a different one in a forked child."""
        return self.threads.main

    def _install(self) -> None:
        threads = self.threads
        self._undo.append(leave_recorder_alone(self._folders.failed))
        leave_alone(Recorder.run_unrecorded)
        self._undo += hooks.watch_optimizers(threads, self._end_if_asked)
        self._undo += hooks.watch_data_loading(threads, self._batch_yielded)
        returned = self._besides.returned or (hooks.record_call if self.level is Level.MODULE else None)
        self._undo += hooks.watch_module_calls(threads, returned, self._besides.entered)
        self._undo.append(threads.install())
        self._undo += watch_captures(threads, lambda: self._devices)
        self._undo += self._choices.watch(self._folders.failed)
        if self.recorder.is_waiting:
            return
        if self.level is Level.OP:
            self._install_ops()
        elif self.recorder.is_by_thread:
            self._undo.append(self.recorder.install(threads))
        self._undo += step_aside_for_tracing(threads, self._undo)
        if self.recorder.is_by_thread:
            self.recorder.enter_process()

    def _install_ops(self) -> None:
        threads = self.threads
        self._undo += hooks.watch_escapes(threads, self.note_racy)
        self._undo += [*hooks.watch_loading(threads), hooks.watch_safetensors(threads, self._folders.failed)]
        keeps_lines = self._spec.capture is not None and self._spec.capture["op"].startswith("inductor::")
        self._undo += watch_compiled_graphs(threads, self._folders.failed, self.note_racy, keeps_lines=keeps_lines)
        self._undo += watch_triton_kernels(threads, self._folders.failed)
        self._undo += hooks.watch_exchanges(threads)
        self._undo.append(self.recorder.install(threads))
        self._undo.append(hooks.watch_replays(threads))
        if self._spec.invariants:
            self._undo += [*watch_files(threads), watch_checkpoints(threads, self._folders.failed)]

    def _open_window(self) -> None:
        """Start recording ops if the program has reached the first step of the window."""
        recorder = self.recorder
        # A step that ends with the program's own update is over only once the next forward pass has begun.
        first = (self._spec.window or 0) - (recorder.progress.steps_by == UPDATE)
        is_due = recorder.is_waiting and recorder.progress.step >= first
        if not is_due or get_ident() != recorder.thread:
            return
        recorder.is_waiting = False
        self.note_earlier_threads()
        self._install_ops()
        self._undo += step_aside_for_tracing(self.threads, self._undo)
        recorder.enter_process()

    def _end_if_asked(self) -> None:
        super()._end_if_asked()
        self._open_window()

    def _begin(self, recorder: Recorder) -> None:
        """Open the trace of this process."""
        self._part = part_of_program()
        # A forked process describes its environment again.
        self._environment = {**environment.describe(), **libraries()}
        folder = self._folders.claim(self._part.name)
        self.writer = self._open_writer(folder, self._part.stream)
        recorder.step_ended = lambda counted_by: self._step_ended(recorder, counted_by)
        recorder.begin(recorder.stream_of(self.writer, self._devices))
        recorder.progress.step = self._spec.first_step
        if self._part.stream == "process" and self._keeps_ledger:
            # Every step must record everything held where values are kept or replicas are compared.
            needs_all = self._spec.values is not None or self._spec.invariants
            if not needs_all and (self.level is Level.STEP or self._spec.window is not None):
                recorder.state_every = self._spec.state_every
                self.writer.describe(state_every=recorder.state_every)
            recorder.ledger = StepLedger(folder, recorder.state_every)
            if recorder.is_waiting:
                self.writer.describe(from_step=self._spec.window)
        self.writer.describe(recorder=recorder.name, recorder_reason=self._recorder_reason)
        if self._part.stream == "pool":
            self.note_racy("pool")
        elif self._part.stream == "worker":
            recorder.progress.phase = Phase.DATA
        kept = self._spec.values if self._part.stream == "process" else None
        recorder.kept_values = None if kept is None else KeptValues(kept)
        request = self._spec.capture
        if request is not None and request["process"] in (folder.name, f"{folder.name}.threads"):
            recorder.capture = Capture(request, folder.with_name(request["process"]), self._captured)
        if self._part.stream == "process":
            self._besides.begin(recorder, folder)

    def _open_writer(self, folder: Path, stream: str) -> ProcessWriter:
        """Open a trace in an existing folder, which only this trace uses.

        Raises:
            OSError: The trace cannot be written.
        """
        facts: dict[str, Any] = {}
        if stream == "process":
            facts = {"values": self._spec.values, "world_size": world_size()}
        elif stream in _PARTS:
            facts = {"part_of": folder.name.removesuffix(".threads").rpartition(".")[0]}
        elif stream == "threads":
            facts = {"part_of": self.writer.folder.name}
        # Only the main thread's records have steps at which two runs could be cut in the same places.
        return ProcessWriter(
            folder,
            description={**self.describe(stream, self._environment, recorded_settings()), **facts},
            max_bytes=self._spec.max_disk,
            keeps_newest=self._spec.keeps_newest and stream == "process",
        )

    def _open_thread_stream(self) -> Stream | None:
        # Timing also decides which thread of a pool's process gets a task.
        kind = "pool" if self._part.stream == "pool" else "threads"
        stream: Stream | None = self._thread_stream(
            "ops of threads",
            lambda folder: self.recorder.stream_of(self._open_writer(folder, kind), self._devices),
        )
        if stream is not None:
            stream.describe_overlaps(always=True)
        return stream

    def _find_earlier_threads(self) -> list[str]:
        return self.threads.earlier_threads()

    def step(self) -> None:
        """End a step for `determinism.step()`."""
        if (recorder := self.threads.recorder()) is not None:
            recorder.run_unrecorded(recorder.progress.explicit)
            self._end_if_asked()

    def _batch_yielded(self, iterator: Any) -> None:
        if getattr(iterator, "_num_workers", 0) > 1 and not getattr(iterator, "_in_order", True):
            self.note_racy("unordered data loader")
        self._batch_arrived()

    def _has_optimizer(self) -> bool:
        return has_optimizer()

    def _step_ended(self, recorder: Recorder, counted_by: str) -> None:
        if recorder.progress.num_ended == 0:
            # By now the program has made the settings that it computes with.
            recorder.writer.describe(steps_by=counted_by, settings=recorded_settings())
        # How far a thread is when another one draws from a shared generator may vary.
        states = generator_states(recorder) if recorder is self.recorder else ()
        record_held(recorder, STEP_OP, states)
        if recorder is self.recorder:
            if recorder.ledger is not None:
                recorder.ledger.end_step(recorder.progress.step, states)
            self._besides.step_ended()
        self._devices.collect()
        recorder.writer.boundary()

    def _tensors_in(self, value: Any) -> list[Any]:
        return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]

    def _record_returned(self, tensors: Sequence[Any]) -> None:
        self.recorder.event(Role.ESCAPE, "determinism::return", tensors, values=True)

    def forked(self) -> None:
        """Adjust to a forked child: the files belong to the parent, and the child opens its own with its first op."""
        if not self._undo:
            return
        self._inherited.append((getattr(self, "writer", None), self.threads.stream, self._besides.forked()))
        self._process = os.getpid()
        self._num_batches = 0
        self._racy = []
        self._earlier_threads = []
        self._devices = DeviceDigests()
        main = self.threads.forked()
        main.is_active = False
        main.capture = None
        main.ledger = None
        main.on_first_op = self._begin_in_child

    def _begin_in_child(self, recorder: Recorder) -> None:
        if is_being_made():
            return
        recorder.on_first_op = None
        try:
            self._begin(recorder)
        except OSError as error:
            self._folders.failed(f"The trace of process {os.getpid()} cannot be written: {error}")
            return
        note_earlier_threads(self.writer, self._earlier_threads)
        multiprocessing = sys.modules.get("multiprocessing.util")
        if multiprocessing is not None:
            # Processes made by `multiprocessing` end without running `atexit` functions.
            multiprocessing.Finalize(None, self.close, exitpriority=0)

    def _finish_trace(self) -> None:
        recorder = self.recorder
        recorder.run_unrecorded(recorder.progress.process_ends)
        if self._part.stream == "process":
            recorder.run_unrecorded(record_held, recorder, END_OP, generator_states(recorder))
        if self.level is Level.OP:
            recorder.run_unrecorded(self._note_extensions)
        self.writer.describe(
            **self._ending(),
            environment={
                **self._environment,
                **(recorder.run_unrecorded(gpu_facts) or {}),
                **self._choices.facts(),
            },
            **({} if recorder.progress.num_ended else {"settings": recorded_settings()}),
        )
        recorder.run_unrecorded(self._besides.close)
        if recorder.ledger is not None:
            recorder.ledger.close()
        recorder.sites.outermost = None

    def _stop_recorder(self) -> None:
        self.threads.end()

    def _note_extensions(self) -> None:
        for name in hooks.extensions():
            self.writer.blind_spot("extension", f"extension module {name}", hooks.EXTENSION_REASON)

    def leave(self) -> None:
        """Close, and stop recording the main thread's ops."""
        super().leave()
        if self.recorder.is_by_thread and not self.recorder.is_waiting:
            self.recorder.leave_process()
