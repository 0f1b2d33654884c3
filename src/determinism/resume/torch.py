"""The states of the global generators: kept as a checkpoint could have had them, restored in another run as a trial."""

from __future__ import annotations

import base64
import json
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from determinism import rng
from determinism.frameworks.torch.enable import GeneratorStates, capture_generators, restore_generators, undisturbed
from determinism.frameworks.torch.ops import state_digest
from determinism.frameworks.torch.recorder import Recorder
from determinism.frameworks.wrapping import Undo, wrap
from determinism.trace.files import write_json
from determinism.trace.schema import GENERATORS_FILE, PROCESSES_FOLDER, PUT_BACK_FILE


class KeptGenerators:
    """Keeps the states when the program saved after the last step, or after an earlier one, and writes them to the trace.

    What the program draws between a step and saving, such as for an evaluation, a resumed run does not draw again. If nothing is
    saved through PyTorch, the states at the end of the step are kept.
    """

    def __init__(self, folder: Path, recorder: Recorder, steps: int | None) -> None:
        """Start watching `torch.save`.

        Args:
            folder: The folder of the process's trace.
            recorder: The recorder of the main thread.
            steps: The number of steps after which to keep the states; None for all steps.
        """
        self._folder = folder
        self._recorder = recorder
        self._left = sys.maxsize if steps is None else steps
        self._undo = [wrap(torch, "save", self._saving)]
        self._document: dict[str, Any] | None = None

    def step_ended(self) -> None:
        """Copy the states."""
        self._left -= 1
        self._copy()

    def undo(self) -> list[Undo]:
        """Return what removes the wrapper."""
        return self._undo

    def _saving(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._document is not None and threading.current_thread() is threading.main_thread():
            self._recorder.run_unrecorded(self._copy)
        return original(*args, **kwargs)

    def _copy(self) -> None:
        if self._left < 0:
            return
        with undisturbed():
            found = capture_generators()
            devices = {
                name: None if states is None else [_text(state) for state in states]
                for name, states in found.devices.items()
            }
            torch_states = {"cpu": _text(found.cpu), "devices": devices}
        others = rng.capture()
        self._document = {"torch": torch_states, "python": others.python, "numpy": _plain(others.numpy)}

    def close(self) -> None:
        """Write the states into the trace.

        Raises:
            OSError: They cannot be written.
        """
        if self._document is not None:
            write_json(self._folder / GENERATORS_FILE, self._document)


class PutBackGenerators:
    """Puts kept states back before the first step of a run."""

    def __init__(self, request: dict[str, Any], recorder: Recorder, process: str) -> None:
        """Read the states.

        Args:
            request: `from`: the trace that has them; `which`: names of generators; `moment`: `batch` for before each batch
                requested until a module is called to train, `iterator` for before each iterator of a data loader made until
                then, `record` for after the record whose number `after` has for the process.
            recorder: The recorder of the main thread.
            process: Key of the process.

        Raises:
            OSError: The states cannot be read.
        """
        file = Path(request["from"]) / PROCESSES_FOLDER / process / GENERATORS_FILE
        self._document = json.loads(file.read_text(encoding="utf-8"))
        self._which = request["which"]
        self._is_waiting = True
        self._was_put_back = False
        self._after = request.get("after", {}).get(process)
        moments = {
            "batch": lambda: wrap(_BaseDataLoaderIter, "__next__", self._before),
            "iterator": lambda: wrap(DataLoader, "__iter__", self._before),
            "record": lambda: self._watch_records(recorder),
        }
        self._undo = [moments[request["moment"]]()]

    def _watch_records(self, recorder: Recorder) -> Undo:
        recorder.writer.unshare()
        return wrap(recorder.writer, "append", self._appending)

    def _appending(self, original: Callable[..., int], *args: Any, **kwargs: Any) -> int:
        number = original(*args, **kwargs)
        if number == self._after and self._is_waiting:
            self._put_back()
            self._is_waiting = False
        return number

    def _before(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._is_waiting:
            self._put_back()
        return original(*args, **kwargs)

    def module_called(self, module: torch.nn.Module) -> None:
        """Note that the first step has begun, unless the module is called to evaluate: a resumed run may do that first.

        Args:
            module: The outermost module that is about to be called.
        """
        if self._after is not None or not (module.training and torch.is_grad_enabled()):
            return
        if self._is_waiting and not self._was_put_back:
            self._put_back()
        self._is_waiting = False

    def step_ended(self) -> None:
        """Note that the first step is over: a program may train a module that is in evaluation mode."""
        self._is_waiting = False

    def undo(self) -> list[Undo]:
        """The functions that remove the wrappers."""
        return self._undo

    def _put_back(self) -> None:
        self._was_put_back = True
        found = self._document
        if "rng-torch" in self._which:
            with undisturbed():
                devices = {
                    name: states and [_tensor(text) for text in states]
                    for name, states in found["torch"]["devices"].items()
                }
                restore_generators(GeneratorStates(_tensor(found["torch"]["cpu"]), devices))
        if "rng-python" in self._which:
            version, words, gauss = found["python"]
            random.setstate((version, tuple(words), gauss))
        if "rng-numpy" in self._which and found["numpy"] is not None and "numpy.random" in sys.modules:
            np.random.set_state(_with_key(found["numpy"]))


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(bytes(state.tolist())).decode()


def _tensor(text: str) -> torch.Tensor:
    return torch.tensor(list(base64.b64decode(text)), dtype=torch.uint8)


def _plain(state: dict[str, Any] | None) -> dict[str, Any] | None:
    """The state of NumPy's generator in a form for JSON; None if it is not NumPy's default one."""
    if state is None or state["bit_generator"] != "MT19937":
        return None
    return {**state, "state": {"key": state["state"]["key"].tolist(), "pos": int(state["state"]["pos"])}}


def _with_key(state: dict[str, Any]) -> dict[str, Any]:
    key = np.array(state["state"]["key"], dtype=np.uint32)
    return {**state, "state": {"key": key, "pos": state["state"]["pos"]}}


# Notes which states a program puts its global generators into before its first step ends.

_MOST_NOTED = 1000


class WatchedGenerators:
    """Watches the functions that set a state, and writes the states they set to the trace."""

    def __init__(self, folder: Path) -> None:
        """Take the folder of the process."""
        self._folder = folder
        self._noted: dict[str, dict[str, None]] = {"torch": {}, "python": {}, "numpy": {}}
        self._is_on = True
        setters = [
            (random, "setstate", "python"),
            (np.random, "set_state", "numpy"),
            (torch, "set_rng_state", "torch"),
            (torch.random, "set_rng_state", "torch"),
        ]
        self._undo = [wrap(module, name, self._noting(generator)) for module, name, generator in setters]

    def _noting(self, generator: str) -> Callable[..., Any]:
        def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            noted = self._noted[generator]
            if self._is_on and len(noted) < _MOST_NOTED:
                noted[_state(generator).hex()] = None
            return result

        return around

    def step_ended(self) -> None:
        """Stop watching: states put back later have nothing to do with resuming."""
        self._is_on = False

    def close(self) -> None:
        """Write the states into the trace.

        Raises:
            OSError: They cannot be written.
        """
        write_json(self._folder / PUT_BACK_FILE, {name: list(noted) for name, noted in self._noted.items()})

    def undo(self) -> list[Undo]:
        """The functions that remove the wrappers."""
        return self._undo


def _state(generator: str) -> bytes:
    return state_digest(torch.default_generator) if generator == "torch" else rng.state_digests()[generator]
