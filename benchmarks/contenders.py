"""The tools under which training steps are measured: our recorder, an empty dispatch mode, and comparable tools."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.cpp_extension import include_paths, library_paths

import determinism
from determinism.digest import digest_bytes
from determinism.frameworks.torch import native_library
from determinism.frameworks.torch.tensor_bytes import digest_tensor
from determinism.run_spec import RECORDER_VARIABLE, STATE_EVERY
from gpt import Trainer

_LEFT_OUT = 2
"""Steps at the beginning of each block that do not count: tensors made before the block are unknown to a recorder until a
step has written them, unlike in a program recorded from its start. Every contender gets them."""


class Block(NamedTuple):
    """Steps made under a contender."""

    seconds: list[float]
    """CPU time of each step that counts, over all threads."""
    records: int | None = None
    """Per step, as the contender counts them."""
    disk_bytes: int | None = None
    """Per step; None for contenders that keep their data in memory."""


class Contender(ABC):
    """One way to watch training steps."""

    title: str
    typical: Callable[[list[float]], float] = staticmethod(statistics.median)
    """The statistic that represents the steps of a block."""
    needs: tuple[str, str] = ("torch", "torch")
    """A module, and the package that contains it."""

    def missing(self) -> str | None:
        """What must be installed first, in words."""
        module, package = self.needs
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        return None if found else f"{self.title} needs the module {module}, which the package {package} brings."

    @abstractmethod
    def block(self, trainer: Trainer, steps: int) -> Block:
        """Make some steps."""


def timed(trainer: Trainer, steps: int, around: Callable[[], AbstractContextManager[Any]] | None = None) -> list[float]:
    """CPU seconds of each step, with a context entered around each."""
    seconds = []
    for _ in range(steps):
        start = time.process_time()
        if around is None:
            trainer.step()
        else:
            with around():
                trainer.step()
        seconds.append(time.process_time() - start)
    return seconds


def _without_native(title: str) -> str | None:
    """Why a contender cannot use the native recorder, which is built if it does not exist yet."""
    try:
        native_library.build(lambda line: print(line, file=sys.stderr))
    except native_library.NotNative as reason:
        return f"{title} needs the native recorder: {reason}."
    return None


class Recorded(Contender):
    """This project, streaming to disk."""

    def __init__(self, level: str, recorder: str, state_every: int = STATE_EVERY) -> None:
        by = f", {recorder} recorder" if level == "op" else ""
        state = "" if state_every == STATE_EVERY else f", --state-every {state_every}"
        self.title = f"determinism, level {level}{by}{state}"
        self._state_every = state_every
        self._level = level
        self._recorder = recorder
        if level == "step":
            # One step in eight costs more.
            self.typical = statistics.fmean

    def missing(self) -> str | None:
        return _without_native(self.title) if self._recorder == "native" else None

    def block(self, trainer: Trainer, steps: int) -> Block:
        os.environ[RECORDER_VARIABLE] = self._recorder
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace"
            with determinism.record(trace, level=self._level, state_every=self._state_every) as session:
                assert session.recorder.name == self._recorder
                timed(trainer, _LEFT_OUT)
                before = session.writer.num_records
                seconds = timed(trainer, steps)
                records = (session.writer.num_records - before) // steps
            size = sum(file.stat().st_size for file in trace.rglob("*.arrow"))
            return Block(seconds, records, size // (steps + _LEFT_OUT))


class EmptyMode(Contender):
    """A dispatch mode that only calls the op: the lower bound for any tool that sees every op from Python."""

    title = "empty TorchDispatchMode"

    def mode(self) -> TorchDispatchMode:
        """The dispatch mode."""
        return _Empty()

    def block(self, trainer: Trainer, steps: int) -> Block:
        with self.mode():
            timed(trainer, _LEFT_OUT)
            return Block(timed(trainer, steps))


class _Empty(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        return function(*arguments, **(keywords or {}))


class DigestingMode(EmptyMode):
    """A dispatch mode that digests each op's results and keeps nothing: the lower bound for comparing values from Python."""

    title = "TorchDispatchMode that digests outputs"

    def mode(self) -> TorchDispatchMode:
        """See `EmptyMode`."""
        return _Digesting()


class _Digesting(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = function(*arguments, **(keywords or {}))
        if not function.is_view:
            for made in result if isinstance(result, (list, tuple)) else (result,):
                if isinstance(made, torch.Tensor):
                    digest_tensor(made)
        return result


class EmptyObserver(Contender):
    """An observer of PyTorch that keeps nothing: the lower bound for any tool that records ops below Python."""

    def __init__(self, *, digests: bool) -> None:
        """Make one.

        Args:
            digests: Whether it digests each op's results, with the digest of the native recorder.
        """
        self.title = (
            "observer of PyTorch that digests outputs"
            if digests
            else "empty observer of PyTorch, told inputs and outputs"
        )
        self._digests = digests
        self._scratch = tempfile.TemporaryDirectory()
        self._library: Any = None

    def missing(self) -> str | None:
        if self._digests and (reason := _without_native(self.title)):
            return reason
        compiler = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++") or shutil.which("clang++")
        return (
            None
            if compiler
            else f"{self.title} needs a C++ compiler (g++, c++ or clang++; the variable CXX names another one)."
        )

    def block(self, trainer: Trainer, steps: int) -> Block:
        library = self._library = self._library or self._built()
        library.install(self._address() if self._digests else 0)
        try:
            timed(trainer, _LEFT_OUT)
            return Block(timed(trainer, steps))
        finally:
            library.uninstall()

    def _address(self) -> int:
        native = native_library.load()
        function = getattr(ctypes.CDLL(native.__file__), f"determinism_digest_{native.instructions}")
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    def _built(self) -> Any:
        source = Path(__file__).with_name("empty_observer.cpp")
        made = Path(self._scratch.name) / "empty_observer.so"
        compiler = shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++") or shutil.which("clang++")
        folders = [*include_paths(), sysconfig.get_path("include")]
        abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
        libraries = [f"-L{folder}" for folder in library_paths()]
        command = [
            str(compiler), "-O2", "-std=c++20", "-shared", "-fPIC", "-DNDEBUG", f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
            *(f"-I{folder}" for folder in folders), str(source), "-o", str(made), *libraries, "-ltorch_python", "-ltorch_cpu", "-lc10",
        ]  # fmt: skip
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(f"{done.stdout}\n{source.name} cannot be compiled, so nothing was measured.")
        spec = importlib.util.spec_from_file_location("empty_observer", made)
        assert spec is not None and spec.loader is not None
        library = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(library)
        return library


class HeldDigests(Contender):
    """Digests gradients after each step, the state after some, and keeps nothing: the lower bound for a ledger."""

    typical = staticmethod(statistics.fmean)

    def __init__(self, state_every: int) -> None:
        every = "each" if state_every == 1 else f"every {state_every}th"
        self.title = f"digests of gradients after each step, of the state after {every}"
        self._state_every = state_every
        self._steps = 0

    def block(self, trainer: Trainer, steps: int) -> Block:
        return Block(timed(trainer, steps, lambda: self._digested(trainer)))

    @contextmanager
    def _digested(self, trainer: Trainer) -> Iterator[None]:
        yield
        parameters = list(trainer.model.parameters())
        digested = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self._steps += 1
        if self._steps % self._state_every == 0:
            digested += parameters
            digested += [value for state in trainer.optimizer.state.values() for value in state.values()]
        for tensor in digested:
            _read(tensor)


def _read(tensor: torch.Tensor) -> None:
    digest_bytes((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()))


class ModuleDigests(HeldDigests):
    """Also digests the inputs and outputs of modules: the lower bound for level `module`."""

    typical = staticmethod(statistics.median)

    def __init__(self) -> None:
        super().__init__(1)
        self.title = "digests of what modules read and give, of gradients and the state after each step"

    def block(self, trainer: Trainer, steps: int) -> Block:
        hook = register_module_forward_hook(self._returned)
        try:
            return super().block(trainer, steps)
        finally:
            hook.remove()

    @staticmethod
    def _returned(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        for tensor in (*inputs, *(output if isinstance(output, tuple) else (output,))):
            if isinstance(tensor, torch.Tensor):
                _read(tensor.detach().contiguous())


class DebugMode(Contender):
    """PyTorch's own mode; a new one for each step, since its records stay in memory."""

    needs = ("torch.utils._debug_mode", "torch of version 2.10 or newer")

    def __init__(self, *, inputs: bool) -> None:
        what = "inputs and outputs" if inputs else "outputs"
        self.title = f"DebugMode, {what} hashed, stacks, modules"
        self._hash_inputs = inputs
        self._records = 0

    @contextmanager
    def _entered(self) -> Iterator[None]:
        from torch.utils._debug_mode import DebugMode as Mode

        with (
            Mode(record_nn_module=True, record_stack_trace=True, record_ids=True) as mode,
            Mode.log_tensor_hashes("hash_tensor", hash_inputs=self._hash_inputs),
        ):
            yield
        self._records = len(mode.logs)

    def block(self, trainer: Trainer, steps: int) -> Block:
        timed(trainer, _LEFT_OUT, self._entered)
        return Block(timed(trainer, steps, self._entered), self._records)


class Msprobe(Contender):
    """Huawei's `mindstudio-probe`, which writes JSON files for each step."""

    needs = ("msprobe", "mindstudio-probe")

    def __init__(self, level: str, summary: str) -> None:
        self.title = f"msprobe, level {level}, {summary}, every API"
        self._kept = tempfile.TemporaryDirectory()
        self._folder = Path(self._kept.name)
        self._settings = self._folder / "settings.json"
        common = {"task": "statistics", "dump_path": str(self._folder / "dump"), "level": level, "risk_level": "ALL"}
        statistics = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": summary}
        self._settings.write_text(json.dumps({**common, "rank": [], "step": [], "statistics": statistics}))

    @contextmanager
    def _entered(self, trainer: Trainer) -> Iterator[None]:
        from msprobe.pytorch import PrecisionDebugger

        # It is one object for the whole process, however often it is constructed.
        debugger = PrecisionDebugger(config_path=str(self._settings))
        debugger.start(model=trainer.model)
        yield
        debugger.stop()
        debugger.step()

    def block(self, trainer: Trainer, steps: int) -> Block:
        timed(trainer, _LEFT_OUT, lambda: self._entered(trainer))
        seconds = timed(trainer, steps, lambda: self._entered(trainer))
        dumps = sorted(self._folder.rglob("dump.json"), key=lambda path: path.stat().st_mtime_ns)
        records = len(json.loads(dumps[-1].read_text())["data"])
        size = sum(file.stat().st_size for file in dumps[-1].parent.iterdir())
        shutil.rmtree(self._folder / "dump")
        return Block(seconds, records, size)


OURS: dict[str, Callable[[], Contender]] = {
    "op": partial(Recorded, "op", "native"),
    "op-python": partial(Recorded, "op", "python"),
    "module": partial(Recorded, "module", "native"),
    "step": partial(Recorded, "step", "native"),
    "step-whole": partial(Recorded, "step", "native", 1),
}
"""The values of `--level`."""
PEERS: dict[str, dict[str, Callable[[], Contender]]] = {
    "empty": {"empty": EmptyMode, "digesting": DigestingMode},
    "observer": {
        "observer": partial(EmptyObserver, digests=False),
        "observer-digesting": partial(EmptyObserver, digests=True),
    },
    "modules": {"modules": ModuleDigests},
    "held": {"held": partial(HeldDigests, STATE_EVERY), "held-whole": partial(HeldDigests, 1)},
    "debugmode": {
        "debugmode-outputs": partial(DebugMode, inputs=False),
        "debugmode-inputs": partial(DebugMode, inputs=True),
    },
    "msprobe": {
        "msprobe-statistics": partial(Msprobe, "L1", "statistics"),
        "msprobe-md5": partial(Msprobe, "mix", "md5"),
    },
}
"""The values of `--peers`, with the contenders that each represents."""
CONTENDERS = {**OURS, **{name: make for peer in PEERS.values() for name, make in peer.items()}}
