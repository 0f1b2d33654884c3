"""Calls of functions from eager code: the second version runs in place of the function, and then its records are made."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorflow.python.eager import record

from determinism.digest import digest_many, digest_text
from determinism.frameworks.made_values import Value
from determinism.frameworks.tensorflow.function_probes import Library, Probe
from determinism.frameworks.tensorflow.function_replay import Replay
from determinism.frameworks.tensorflow.graph_places import Place
from determinism.frameworks.tensorflow.pending_records import PendingRecords
from determinism.frameworks.tensorflow.tensor_bytes import digest_tensor, has_value
from determinism.frameworks.tensorflow.values import Resource
from determinism.types import Phase, Role

if TYPE_CHECKING:
    from determinism.frameworks.tensorflow.recorder import Recorder

_COUNTED = re.compile(r"^__(inference|forward|backward)_|_\d+$")
_COMPILED = "XLA compiles it: what went in and what came out is recorded, the ops within are not"
_UNKNOWN = "its graph is not known: what went in and what came out is recorded, the ops within are not"


class FunctionCalls:
    """Knows the second version of every function that was called."""

    def __init__(self, recorder: Recorder) -> None:
        """Take what makes the records."""
        self._recorder = recorder
        self.library = Library(lambda name, error: recorder.failed(_plain_name(name), error))
        self._probes: dict[str, Probe | None] = {}
        self._told: set[str] = set()
        self.returned: Callable[[Any], None] = lambda graph: None
        """Called with the graph of a function, after its records were made."""

    def call(self, original: Callable[..., Any], context: Any, name: bytes, inputs: list[Any], num_outputs: int) -> Any:
        """Run a function, and record what it did.

        Args:
            original: What runs it.
            context: TensorFlow's eager context.
            name: Of the function.
            inputs: Eager tensors.
            num_outputs: How many it returns.
        """
        recorder = self._recorder
        text = name.decode()
        with recorder.suspended(), record.stop_recording():
            probe, held = self._before(context, text, inputs)
        run = name if probe is None else probe.clone.encode()
        try:
            with recorder.suspended():
                outputs = original(context, run, inputs, num_outputs)
        except Exception as error:
            if probe is not None:
                probe.forget()
                _rename(error, probe.clone, text)
            raise
        if held is not None:
            with recorder.suspended(), record.stop_recording():
                self._after(text, probe, inputs, held, outputs or [])
        self.returned(self.library.graphs.get(text))
        return outputs

    def _before(self, context: Any, name: str, inputs: list[Any]) -> tuple[Probe | None, list[Any] | None]:
        """The second version, and what the arguments hold; None where something went wrong."""
        recorder = self._recorder
        if name not in self._probes:
            self._probes[name] = None
            try:
                self._probes[name] = self.library.probe(context, name)
            except Exception as error:
                recorder.failed(_plain_name(name), error)
        try:
            return self._probes[name], [recorder.held_by(tensor) for tensor in inputs]
        except Exception as error:
            recorder.failed(_plain_name(name), error)
            return None, None

    def _after(self, name: str, probe: Probe | None, inputs: list[Any], held: list[Any], outputs: list[Any]) -> None:
        recorder = self._recorder
        try:
            records = PendingRecords(recorder)
            if probe is None:
                self._opaque(records, name, held, outputs)
            else:
                if records.keeps:
                    self._keep(records, inputs, held)
                replay = Replay(records, is_backward=name.startswith("__backward"))
                made = replay.run(probe, held)
                records.finish()
                for tensor, value in zip(outputs, made, strict=False):
                    if isinstance(value, Value):
                        recorder.values.made(tensor, value)
                if replay.arrived:
                    recorder.arrived()
            self._note_compiled()
        except Exception as error:
            recorder.failed(_plain_name(name), error)
        finally:
            if probe is not None:
                probe.forget()

    def _keep(self, records: PendingRecords, inputs: list[Any], held: list[Any]) -> None:
        """Keep what a function was given."""
        for tensor, one in zip(inputs, held, strict=True):
            if isinstance(one, Value) and has_value(tensor.dtype):
                records.kept[one.digest, one.layout] = tensor

    def _opaque(self, records: PendingRecords, name: str, held: list[Any], outputs: list[Any]) -> None:
        """A function that cannot be looked into: what went in, what came out, and what it may have written."""
        recorder = self._recorder
        if name not in self.library.compiled:
            recorder.writer.blind_spot("function", _plain_name(name), _UNKNOWN)
        resources = [one for one in held if isinstance(one, Resource) and records.is_variable(one)]
        read = [one for one in held if isinstance(one, Value)] + [records.content(one) for one in resources]
        valued = [tensor for tensor in outputs if has_value(tensor.dtype)]
        made = [(recorder.layout(tensor), digest_tensor(tensor)) for tensor in valued]
        parts = digest_many([digest_text(_plain_name(name)), *(value.digest for value in read)])
        left = [(records.content(one).layout, parts) for one in resources]
        place = Place(recorder.phase, "", ())
        phase = Phase.BACKWARD if name.startswith("__backward") else recorder.phase
        number = records.append(Role.OP, phase, f"tf::{_plain_name(name)}", place, "", read, [*made, *left], ())
        for position, one in enumerate(resources, len(made)):
            records.wrote(one, Value(number, position, records.content(one).layout, parts), is_known=False)
        records.finish()
        for position, tensor in enumerate(valued):
            recorder.values.made(tensor, Value(number, position, *made[position]))

    def _note_compiled(self) -> None:
        for name in sorted(self.library.compiled - self._told):
            self._told.add(name)
            self._recorder.writer.blind_spot("xla", _plain_name(name), _COMPILED)


def _plain_name(name: str) -> str:
    """The name that the program gave a function, without what TensorFlow counts."""
    return _COUNTED.sub("", name)


def _rename(error: Exception, clone: str, name: str) -> None:
    """Errors name the function as the program knows it."""
    message = getattr(error, "_message", None)
    if isinstance(message, str):
        error._message = message.replace(clone, name)  # type: ignore[attr-defined]
    if error.args:
        error.args = tuple(one.replace(clone, name) if isinstance(one, str) else one for one in error.args)
