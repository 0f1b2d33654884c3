"""PyTorch's compilers: records calls of Inductor's kernels and graphs, notes kernels chosen by timing, steps aside for `torch.jit.trace`.

Inductor writes a Python module for a graph, which allocates memory, calls PyTorch ops, and calls kernels that were compiled from C++ that
Inductor wrote. The ops are seen like all others. The kernels are wrapped in the globals of that module; they take tensors, and their
signature says which of them are only read (torch 2.13: `torch/_inductor/codegen/cpp.py`, `cpp_wrapper_cpu.py`). If a graph has other
kernels, each call of the whole graph is a record.

Inductor chooses among kernels for the ops of a graph by timing them; Triton does so for functions under `autotune`. A choice is a fact of the
run. It determines in which order a kernel adds, so runs with different choices can give different bits; where the bits are the same, the
choice does not matter, so it has no record of its own.
"""

from __future__ import annotations

import functools
import json
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import torch
from torch.utils._python_dispatch import _pop_mode, _push_mode

from determinism.digest import digest_text
from determinism.environment import CHOICE_OF_KERNEL
from determinism.frameworks.torch.edges import InputEdges, StorageState
from determinism.frameworks.torch.ops import OPAQUE, OpTraits, generator_of, state_digest
from determinism.frameworks.torch.recorder import Recorder, Threads
from determinism.frameworks.torch.tensor_bytes import is_plain
from determinism.frameworks.wrapping import Replaced, Undo, when_imported, wrap
from determinism.sites import place_text
from determinism.source_files import Owner, owner_of_file

# Graphs.


MODULE = "torch._inductor.output_code"
COMPILER = "torch._inductor.compile_fx"
GENERATOR = "torch._inductor.codegen.cpp"
BACKWARDS = "torch._functorch._aot_autograd.runtime_wrappers"
"""Where backward graphs are copied and compiled when first needed, inside its context manager `tracing`."""
_COMPILING = ("compile_fx", "_compile_fx_inner")
"""Functions that trace and compile graphs: forward graphs at once, backward graphs when first needed."""
_TRACING = "tracing"
_storage_of = torch._C.TensorBase.untyped_storage
_WHOLE_GRAPH = replace(OPAQUE, name="inductor::graph")
_REASON = "the ops inside its kernels are not recorded one by one, only the graph's inputs and outputs"


def watch_compiled_graphs(
    threads: Threads, failed: Callable[[str], None], note_racy: Callable[[str], None], *, keeps_lines: bool = False
) -> list[Undo]:
    """Record what compiled graphs do from now on, whenever Inductor is imported.

    Args:
        threads: The threads whose recorders record it.
        failed: Called with the reason if Inductor cannot be watched.
        note_racy: Called with what may differ in the next run because of a race.
        keeps_lines: Whether to recompile everything, bypassing caches, so that the lines of the program from which
            a kernel was made are known.

    Returns:
        Functions that end this.
    """
    fused = _FusedOps() if keeps_lines else None
    kernels = _Kernels(threads, fused, note_racy)

    def around(original: Callable[..., Any], graph: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = threads.recorder()
        if recorder is None:
            return original(graph, inputs, *args, **kwargs)
        if not recorder.run_unrecorded(kernels.are_wrapped, graph):
            return _recorded_whole(recorder, original, graph, inputs, *args, **kwargs)
        # Any other tensor that a kernel gets is then memory that the graph allocated.
        recorder.run_unrecorded(_make_known, recorder, _graph_tensors(inputs))
        return _within_graph(recorder, original, graph, inputs, *args, **kwargs)

    return [
        when_imported(MODULE, _wrapping("CompiledFxGraph", "__call__", around), failed),
        *_suspend_while_compiling(threads, failed, fused),
        kernels.unwrap,
    ]


def _suspend_while_compiling(
    threads: Threads, failed: Callable[[str], None], fused: _FusedOps | None
) -> Iterator[Undo]:
    """Do not record what compilers do: with a warm cache they do other things, or nothing; yields functions that end this."""

    def compiling(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # A backward is compiled where the recorder is suspended already.
        recorder = threads.recorder()
        with (
            ExitStack() if recorder is None else recorder.suspended(),
            ExitStack() if fused is None else fused.compiled_anew(),
        ):
            return original(*args, **kwargs)

    def compiler_found(module: Any) -> Iterator[Undo]:
        yield from (wrap(module, name, compiling) for name in _COMPILING if hasattr(module, name))
        if fused is not None and hasattr(module, _COMPILING[-1]):
            yield wrap(module, _COMPILING[-1], fused.compiled)

    @contextmanager
    def tracing(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
        recorder = threads.recorder()
        with ExitStack() if recorder is None else recorder.suspended(), original(*args, **kwargs) as context:
            yield context

    def backwards_found(module: Any) -> list[Undo]:
        return [wrap(module, _TRACING, tracing)] if hasattr(module, _TRACING) else []

    yield when_imported(COMPILER, compiler_found, failed)
    yield when_imported(BACKWARDS, backwards_found, failed)
    if fused is not None:
        yield when_imported(GENERATOR, lambda module: [fused.watch(module)], failed)


def _wrapping(owner: str, name: str, around: Callable[..., Any]) -> Callable[[Any], list[Undo]]:
    """Make the function that wraps a method of a class, given the module of the class."""
    return lambda module: [wrap(getattr(module, owner), name, around)]


def _graph_tensors(values: Any) -> list[torch.Tensor]:
    """Return the plain tensors among the values, which have memory of their own."""
    found = values if isinstance(values, (list, tuple)) else ()
    return [value for value in found if isinstance(value, torch.Tensor) and is_plain(value)]


def _make_known(recorder: Recorder, tensors: Iterable[torch.Tensor]) -> None:
    for tensor in tensors:
        recorder.edges.storages.state(tensor)


def _within_graph(recorder: Recorder, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    recorder.graph_depth += 1
    try:
        return original(*args, **kwargs)
    finally:
        recorder.graph_depth -= 1


# A graph whose kernels cannot be wrapped, such as Triton kernels: only its inputs and outputs are seen.


def _recorded_whole(
    recorder: Recorder, original: Callable[..., Any], graph: Any, inputs: Any, *args: Any, **kwargs: Any
) -> Any:
    # The graph frees its inputs while it runs, so only those that it writes may be kept alive.
    given = recorder.run_unrecorded(recorder.look, tensors := _graph_tensors(inputs))
    generator = generator_of(tuple(tensors), {})
    state = None if generator is None else recorder.run_unrecorded(state_digest, generator)
    # Its outputs may reuse the inputs' addresses, but not the state kept for a storage.
    passed = [recorder.edges.storages.known(tensor) for tensor in tensors]
    del tensors
    written = [inputs[index] for index in getattr(graph, "mutated_input_idxs", ())]
    result = _within_graph(recorder, original, graph, inputs, *args, **kwargs)
    if given is not None:
        # A tensor that it saves for the backward may be an unwritten input, or a view of one.
        drawn = (state,) if state is not None and recorder.run_unrecorded(state_digest, generator) != state else ()
        recorder.run_unrecorded(_record_graph, recorder, graph, given, written, _graph_tensors(result), passed, drawn)
    return result


def _record_graph(
    recorder: Recorder,
    graph: Any,
    given: Any,
    written: list[torch.Tensor],
    results: list[torch.Tensor],
    passed: list[StorageState | None],
    drawn: Sequence[bytes],
) -> None:
    known = {id(state) for state in passed if state is not None}
    storages = recorder.edges.storages
    made = [*written, *(tensor for tensor in results if id(storages.known(tensor)) not in known)]
    text = digest_text(str(getattr(graph, "source_code", ""))).hex()
    recorder.made(given, made, traits=_WHOLE_GRAPH, text=text, generators=drawn)
    recorder.writer.blind_spot("fused-kernels", "graph compiled by Inductor", _REASON)


# The C++ kernels of a graph.

_MADE = re.compile(r"^\w+ = async_compile\.(?!wait\b)\w+\(", re.MULTILINE)
"""Every kernel, in any language."""
_KERNEL = re.compile(
    r"^(?P<name>\w+) = async_compile\.cpp_pybinding\(\[(?P<types>[^\]]*)\], r?'''(?P<code>.*?)'''\)",
    re.MULTILINE | re.DOTALL,
)
_SIGNATURE = re.compile(r"\bkernel\((?P<parameters>[^)]*)\)")
_ADDS_IN_ANY_ORDER = "atomic_add"
"""Written by Inductor only if several threads compute."""
_ADDING = ("scatter", "index_add", "index_put", "embedding")
"""Parts of the names of ops for which Inductor writes additions that threads make in any order."""
_UNINITIALIZED = replace(OPAQUE, name="aten::empty_strided", is_uninitialized=True)


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel of a compiled graph, called with its tensors and numbers."""

    traits: OpTraits
    function: Callable[..., None]
    code: str
    """Its C++ source."""
    digest: str
    """Digest of the code."""
    fused: Sequence[FusedOp] = ()
    """The ops that were fused into it, if known."""

    def __call__(self, *args: Any, code: str) -> None:
        """Run it; `code` exists only to appear among the arguments of its record."""
        self.function(*args)

    def varying_place(self) -> dict[str, Any] | None:
        """Return the one line of the program that can make the kernel vary, with its op; None if not unique or known.

        If threads add to the same elements, only these additions can vary; if none do, every fused op can.
        """
        able = self.fused
        if _ADDS_IN_ANY_ORDER in self.code:
            able = [one for one in able if any(name in one.op for name in _ADDING)] or able
        if len({(one.file, one.line) for one in able}) != 1:
            return None
        # If a line has several ops, it is unknown which of them varies.
        names = list(dict.fromkeys(one.op for one in able))
        first, *others = names
        op = " and ".join([first, *(name.rpartition("::")[2] for name in others)])
        return {**vars(able[0]), "op": op, "inside": []}


@dataclass(frozen=True)
class FusedOp:
    """An op that was fused into a kernel, and the line of the program that called it."""

    op: str
    file: str
    line: int
    function: str
    code: str


class _Kernels:
    """Wraps the kernels of graphs when the graphs are called for the first time."""

    def __init__(self, threads: Threads, fused: _FusedOps | None, note_racy: Callable[[str], None]) -> None:
        self._threads = threads
        self._fused = fused
        self._note_racy = note_racy
        self._graphs: dict[int, tuple[weakref.ref[Any], bool]] = {}
        """By the id of a graph: the graph, and whether each of its kernels makes records."""
        self._wrapped: list[tuple[dict[str, Any], str, Any, Any]] = []
        """The globals of a module, a name in them, the original kernel, and its wrapper."""

    def are_wrapped(self, graph: Any) -> bool:
        """Whether every kernel of a graph makes records, so that everything the graph does is seen."""
        known = self._graphs.get(id(graph))
        if known is None or known[0]() is not graph:
            known = self._graphs[id(graph)] = weakref.ref(graph), self._wrap(graph)
        return known[1]

    def _wrap(self, graph: Any) -> bool:
        source = getattr(graph, "source_code", None)
        if not isinstance(source, str) or not source:
            return False
        if _ADDS_IN_ANY_ORDER in source:
            self._note_racy("compiled kernels that add in any order")
        kernels = list(_KERNEL.finditer(source))
        if len(kernels) != len(_MADE.findall(source)):
            return False
        namespace = _namespace_with(graph.current_callable, {"call", *(kernel["name"] for kernel in kernels)})
        if namespace is None:
            return False
        fused = {} if self._fused is None else self._fused.of(source)
        constants = [value for value in namespace.values() if isinstance(value, torch.Tensor) and is_plain(value)]
        for kernel in kernels:
            name = kernel["name"]
            before = namespace[name]
            if any(after is before for *_, after in self._wrapped):
                # Graphs with the same code share one module.
                continue
            made = _kernel_of(kernel, before, fused.get(name, ()))
            namespace[name] = after = _recording(self._threads, made, constants)
            self._wrapped.append((namespace, name, before, after))
        return True

    def unwrap(self) -> None:
        """Put the original kernels back."""
        for namespace, name, before, after in self._wrapped:
            if namespace.get(name) is after:
                namespace[name] = before
        self._wrapped.clear()
        self._graphs.clear()


def _namespace_with(called: Any, names: set[str]) -> dict[str, Any] | None:
    """Find the globals of the module that Inductor wrote, whose function `called` may wrap and hold in a closure."""
    waiting, passed = [called], set[int]()
    while waiting:
        function = getattr(waiting[-1], "__func__", waiting[-1])
        waiting.pop()
        if not isinstance(function, FunctionType) or id(function) in passed:
            continue
        passed.add(id(function))
        if names <= function.__globals__.keys():
            return function.__globals__
        waiting += [cell.cell_contents for cell in function.__closure__ or ()]
    return None


def _kernel_of(found: re.Match[str], function: Callable[..., None], fused: Sequence[FusedOp]) -> CompiledKernel:
    types = [one.strip(" '\"") for one in found["types"].split(",")]
    signature = _SIGNATURE.search(found["code"])
    parameters = [one.split()[-1] for one in signature["parameters"].split(",")] if signature is not None else []
    traits = replace(
        OPAQUE,
        name=f"inductor::{found['name']}",
        written=tuple(at for at, one in enumerate(types) if one.endswith("*") and not one.startswith("const ")),
        reads_written=True,
        argument_names=tuple(parameters) if len(parameters) == len(types) else (),
    )
    return CompiledKernel(traits, function, found["code"], digest_text(found["code"]).hex(), fused)


def _recording(threads: Threads, kernel: CompiledKernel, constants: Sequence[torch.Tensor]) -> Callable[..., None]:
    """Make the function that is called in place of a kernel."""
    given = {"code": kernel.digest}

    def call(*args: Any) -> None:
        recorder = threads.recorder()
        looked = (
            None if recorder is None else recorder.run_unrecorded(_before, recorder, kernel, args, given, constants)
        )
        kernel.function(*args)
        if recorder is not None and looked is not None:
            recorder.run_unrecorded(recorder.kernel_ran, kernel.traits, args, given, looked)

    return call


def _before(
    recorder: Recorder, kernel: CompiledKernel, args: Any, given: dict[str, Any], constants: Sequence[torch.Tensor]
) -> InputEdges:
    looked = InputEdges()
    for position, tensor in enumerate(args):
        if not isinstance(tensor, torch.Tensor):
            continue
        if recorder.edges.storages.known(tensor) is None:
            if position in kernel.traits.written:
                # Just allocated, and about to be written.
                continue
            if not any(_storage_of(tensor)._cdata == _storage_of(constant)._cdata for constant in constants):
                recorder.made(InputEdges(), [tensor], traits=_UNINITIALIZED)
        recorder.edges.look_at(tensor, looked)
    if recorder.capture is not None:
        recorder.capture(recorder, kernel.traits, kernel, args, given)
    return looked


# The ops fused into a kernel, for a run that examines one of its calls: a graph from a cache no longer knows them.


class _FusedOps:
    """Notes which ops are fused into each kernel while graphs are compiled."""

    def __init__(self) -> None:
        self._noted: dict[str, list[FusedOp]] = {}
        """By the names of the kernels of the graph that is being compiled."""
        self._by_source: dict[str, dict[str, list[FusedOp]]] = {}

    @contextmanager
    def compiled_anew(self) -> Iterator[None]:
        """Compile without caches."""
        from torch._functorch import config as functorch
        from torch._inductor import config as inductor

        with inductor.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):
            yield

    def watch(self, module: Any) -> Undo:
        """Watch Inductor's module that writes C++; returns a function that ends this."""

        def around(
            original: Callable[..., Any], scheduling: Any, source: Any, nodes: Any, *args: Any, **kwargs: Any
        ) -> Any:
            name = original(scheduling, source, nodes, *args, **kwargs)
            noted = self._noted.setdefault(str(name), [])
            noted += [one for one in _fused_in(nodes) if one not in noted]
            return name

        return wrap(module.CppScheduling, "define_kernel", around)

    def compiled(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Compile a graph, and keep what was noted during the compilation."""
        made = original(*args, **kwargs)
        source = getattr(made, "source_code", None)
        if isinstance(source, str):
            self._by_source[source], self._noted = self._noted, {}
        return made

    def of(self, source: str) -> dict[str, list[FusedOp]]:
        """Return the ops fused into the kernels of a graph, by kernel name."""
        return self._by_source.get(source, {})


_FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)')


def _fused_in(nodes: Iterable[Any]) -> Iterator[FusedOp]:
    origins = {origin for node in nodes for origin in getattr(getattr(node, "node", None), "origins", ())}
    for graph in {origin.graph for origin in origins}:
        for origin in graph.nodes:
            if origin in origins and (place := _place_of(origin.stack_trace or "")):
                op = origin.meta.get("original_aten") or origin.target
                yield FusedOp(op.name().partition(".")[0] if hasattr(op, "name") else str(op), *place)


def _place_of(stack_trace: str) -> tuple[str, int, str, str] | None:
    """Find the innermost line of the program in a node's stack trace."""
    frames = list(_FRAME.finditer(stack_trace))
    own = [frame for frame in frames if owner_of_file(frame["file"]) is Owner.USER] or frames
    if not own:
        return None
    innermost = own[-1]
    file, line, function, code = json.loads(
        place_text(innermost["file"], int(innermost["line"]), innermost["function"], None)
    )
    return file, line, function, code


# The program's own Triton kernels: each launch is a record.

LAUNCHES = (("triton.runtime.jit", "JITFunction"), ("triton.runtime.interpreter", "InterpretedFunction"))
"""Classes that launch them on a device, and in Triton's interpreter (triton 3: `KernelInterface.run`)."""
_TIMING = ("_bench", "check_disk_cache")
"""Methods in which the autotuner runs configurations: one, or all if no result is known from an earlier run."""


def watch_triton_kernels(threads: Threads, failed: Callable[[str], None]) -> list[Undo]:
    """Record each kernel launch from now on: what its tensors hold before and after.

    Only its code shows which tensors a kernel writes, so all count as written. Launches for timing are not recorded.

    Args:
        threads: The threads whose recorders record it.
        failed: Called with the reason if Triton cannot be watched.

    Returns:
        Functions that end this.
    """

    def around(original: Callable[..., Any], kernel: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = None if kwargs.get("warmup") else threads.recorder()
        if recorder is None or recorder.graph_depth:
            return original(kernel, *args, **kwargs)
        launch = recorder.run_unrecorded(TritonLaunch, original, kernel, args, kwargs)
        looked = None if launch is None else recorder.run_unrecorded(launch.look, recorder)
        with recorder.suspended():
            result = original(kernel, *args, **kwargs)
        if looked is not None and launch.tensors:
            recorder.run_unrecorded(launch.record, recorder, looked)
        return result

    def timing(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        recorder = threads.recorder()
        with ExitStack() if recorder is None else recorder.suspended():
            return original(*args, **kwargs)

    def autotuner_found(module: Any) -> Iterator[Undo]:
        return (wrap(module.Autotuner, name, timing) for name in _TIMING if hasattr(module.Autotuner, name))

    launchers = [when_imported(module, _wrapping(name, "run", around), failed) for module, name in LAUNCHES]
    return [*launchers, when_imported(AUTOTUNER, autotuner_found, failed)]


class TritonLaunch:
    """One kernel launch, which can be repeated with other tensors."""

    def __init__(self, run: Callable[..., Any], kernel: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Take the function that launches the kernel, the kernel, and the arguments."""
        self._run = run
        self._kernel = kernel
        self._args = args
        self._kwargs = kwargs
        self._named = [*zip(getattr(kernel, "arg_names", ()), args, strict=False), *kwargs.items()]
        self.tensors = _graph_tensors([value for _, value in self._named])
        name = f"triton::{getattr(kernel, '__name__', 'kernel')}"
        names = tuple(name for name, value in self._named if any(value is one for one in self.tensors))
        self._traits = replace(OPAQUE, name=name, written=tuple(range(len(names))), argument_names=names)
        self._unwritten: set[int] = set()

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Launch the kernel with other tensors in place of its own."""
        others = dict(zip(map(id, self.tensors), tensors, strict=True))
        args = [others.get(id(value), value) for value in self._args]
        self._run(self._kernel, *args, **{name: others.get(id(value), value) for name, value in self._kwargs.items()})

    def look(self, recorder: Recorder) -> InputEdges:
        """Look at what the tensors hold, except those whose memory has not been written yet: they are outputs."""
        if recorder.capture is not None:
            recorder.capture(recorder, self._traits, self, self.tensors, {})
        known = [recorder.edges.storages.known(tensor) for tensor in self.tensors]
        self._unwritten = {at for at, state in enumerate(known) if state is not None and state.is_unwritten}
        return recorder.look([tensor for at, tensor in enumerate(self.tensors) if at not in self._unwritten])

    def record(self, recorder: Recorder, looked: InputEdges) -> None:
        """Record what a launched kernel left."""
        # Compile-time constants are left out, as they may have been chosen by timing.
        given = {one.name for one in getattr(self._kernel, "params", ()) if not one.is_constexpr}
        numbers = [one for one in self._named if one[0] in given and isinstance(one[1], (bool, int, float))]
        text = ", ".join(f"{name}={value!r}" for name, value in numbers)
        # The kernel may leave parts of unwritten memory as they were: such memory counts only where it is read later.
        traits = replace(self._traits, workspaces=frozenset(self._unwritten))
        recorder.made(looked, self.tensors, traits=traits, text=text)
        states = [recorder.edges.storages.known(self.tensors[at]) for at in self._unwritten]
        recorder.edges.in_flight(states)


# Kernels chosen by timing.


SELECTION = "torch._inductor.select_algorithm"
"""Where Inductor chooses between ATen, and its templates in C++ and Triton (torch 2.13: `AlgorithmSelectorCache.__call__`)."""
HEURISTICS = "torch._inductor.runtime.triton_heuristics"
"""Where Inductor times the configurations of its own Triton kernels (`CachingAutotuner.autotune_to_one_config`)."""
AUTOTUNER = "triton.runtime.autotuner"
"""Where Triton times the configurations of a user's function (triton 3: `Autotuner`)."""
_NUMBER_AT_END = re.compile(r"_\d+$")
_MOST_CHOICES = 200


class KernelChoices:
    """The choices made in this process."""

    def __init__(self) -> None:
        """Start without any choice."""
        self._chosen: dict[str, str] = {}
        self._tuned: list[weakref.ref[Any]] = []
        """The functions that Triton tunes; its choices for them are looked up at the end."""

    def watch(self, failed: Callable[[str], None]) -> list[Undo]:
        """Note what is chosen from now on.

        Args:
            failed: Called with the reason if a compiler cannot be watched.

        Returns:
            Functions that end this.
        """
        configured = _wrapping("CachingAutotuner", "autotune_to_one_config", self._configured)
        return [
            when_imported(SELECTION, _wrapping("AlgorithmSelectorCache", "__call__", self._selected), failed),
            when_imported(HEURISTICS, configured, failed),
            when_imported(AUTOTUNER, _wrapping("Autotuner", "__init__", self._made), failed),
        ]

    def facts(self) -> dict[str, str]:
        """Return the chosen kernels, by the name of the fact, which describes the work."""
        found = dict(self._chosen)
        for reference in self._tuned:
            if (tuner := reference()) is not None:
                found.update(_tuned(tuner))
        return {CHOICE_OF_KERNEL + work: kernel for work, kernel in sorted(found.items())[:_MOST_CHOICES]}

    def _selected(
        self, original: Callable[..., Any], cache: Any, name: Any, choices: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        result = original(cache, name, choices, inputs, *args, **kwargs)
        # This fails only if another version of Inductor names things differently; the program has its kernel.
        with suppress(Exception):
            chosen = result[1] if isinstance(result, tuple) else None
            if chosen is not None:
                work = f"{name} of {', '.join(map(_shape, inputs))} by Inductor"
                self._chosen.setdefault(work, _kernel(chosen))
        return result

    def _configured(self, original: Callable[..., Any], tuner: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(tuner, *args, **kwargs)
        with suppress(Exception):
            work = f"{tuner.fn.__name__} by Inductor"
            self._chosen.setdefault(work, str(tuner.launchers[0].config))
        return result

    def _made(self, original: Callable[..., Any], tuner: Any, *args: Any, **kwargs: Any) -> Any:
        original(tuner, *args, **kwargs)
        self._tuned.append(weakref.ref(tuner))


def _shape(node: Any) -> str:
    """Format an input's sizes as Inductor has them: numbers, or names of dynamic sizes."""
    sizes: Sequence[Any] = node.get_size()
    return "x".join(map(str, sizes)) or "1"


def _kernel(choice: Any) -> str:
    """Format the name of a choice without its candidate number, plus details that distinguish choices of that name."""
    name = _NUMBER_AT_END.sub("", str(choice.name))
    backend = "ATen" if type(choice).__name__ == "ExternKernelCaller" else ""
    detail = " ".join(str(getattr(choice, "description", "") or "").split())
    more = ", ".join(part for part in (backend, detail) if part)
    return f"{name} ({more})" if more else name


def _tuned(tuner: Any) -> Iterator[tuple[str, str]]:
    try:
        name, cache = tuner.base_fn.__name__, dict(tuner.cache)
    except AttributeError:
        # An older version of Triton.
        return
    for key, config in cache.items():
        values = ", ".join(map(str, key)) if isinstance(key, tuple) else str(key)
        yield f"{name}({values}) by Triton", str(config)


# torch.jit.trace.
#
# PyTorch's tracer does not work under any dispatch mode, not even an empty one: arguments passed to a mode no longer say where numbers come
# from in the graph. It also writes the whole stack of Python frames into the graph, and into files saved from it. So while it runs, the
# recorder is off the mode stack, our wrappers are removed, and no frame of our own is on the stack. What the program computes meanwhile is not
# recorded; memory that it changed is digested where it is read next.


_FUNCTIONS = ("_create_graph_by_tracing", "_create_function_from_trace", "_create_function_from_trace_with_dict")
_METHODS = ("_create_method_from_trace", "_create_method_from_trace_with_dict")
"""All the tracer's entry points: `torch.jit.trace`, `trace_module`, the old ONNX exporter and TensorBoard use them."""
_WHAT = "function that torch.jit traced"
_TRACING_REASON = (
    "the ops that ran during tracing are not recorded; memory that they changed is digested where it is read next"
)
_num_modes = torch._C._len_torch_dispatch_stack
_mode_at = torch._C._get_dispatch_stack_at


class _Call(functools.partial[Any]):
    """One call of the tracer. As a partial, called from C, it adds no frame; it ends when its caller releases it."""

    meanwhile: ExitStack | None = None

    def __del__(self) -> None:
        if self.meanwhile is not None:
            self.meanwhile.close()


class _Entry:
    """Replaces one entry point of the tracer."""

    def __init__(self, original: Any, aside: _SuspendedRecorder) -> None:
        self._original = original
        self._aside = aside
        functools.update_wrapper(self, original)  # type: ignore[arg-type]

    def call(self, *bound: Any) -> _Call:
        """Begin a call, with the instance that a method is bound to."""
        made = _Call(self._original, *bound)
        made.meanwhile = self._aside.step_aside()
        return made


class _EntryFunction(_Entry):
    """Replaces a function: Python looks up `__call__`, and calls the result."""

    @property
    def __call__(self) -> Any:  # type: ignore[override]
        return self.call()


class _EntryMethod(_Entry):
    """Replaces a method: Python looks it up on the instance, and calls the result."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self._original if instance is None else self.call(instance)


class _SuspendedRecorder:
    """Takes the recorder of a thread out of the way."""

    def __init__(self, threads: Threads, wrappers: list[Replaced]) -> None:
        self._threads = threads
        self._wrappers = wrappers

    def step_aside(self) -> ExitStack | None:
        """Step aside; returns a stack that puts everything back when closed, or None if this thread is not recorded."""
        recorder = self._threads.recorder()
        if recorder is None:
            return None
        meanwhile = ExitStack()
        if recorder.tracks_ops:
            storages, digest = recorder.edges.storages, recorder.stream.digests.of
            held = recorder.run_unrecorded(storages.contents, digest)
            meanwhile.callback(recorder.run_unrecorded, storages.forget_changed, held, digest)
            recorder.writer.blind_spot("traced", _WHAT, _TRACING_REASON)
        meanwhile.enter_context(recorder.suspended())
        if self._threads.is_alone():
            # Other threads still need the wrappers.
            for wrapper in self._wrappers:
                if wrapper.take_off():
                    meanwhile.callback(wrapper.put_back)
        if (count := _num_modes()) and _mode_at(count - 1) is recorder:
            meanwhile.callback(_push_mode, _pop_mode())
        return meanwhile


def step_aside_for_tracing(threads: Threads, undos: Iterable[Undo]) -> list[Undo]:
    """Step aside whenever the tracer runs, from now on.

    Args:
        threads: The threads whose recorders step aside.
        undos: Everything installed; the wrappers among it are removed while the tracer runs.

    Returns:
        Functions that end this.
    """
    aside = _SuspendedRecorder(threads, [undo for undo in undos if isinstance(undo, Replaced)])
    module = torch._C.ScriptModule
    return [
        *(
            Replaced(torch._C, name, _EntryFunction(getattr(torch._C, name), aside))
            for name in _found(torch._C, _FUNCTIONS)
        ),
        *(Replaced(module, name, _EntryMethod(getattr(module, name), aside)) for name in _found(module, _METHODS)),
    ]


def _found(owner: Any, names: Iterable[str]) -> list[str]:
    return [name for name in names if hasattr(owner, name)]
