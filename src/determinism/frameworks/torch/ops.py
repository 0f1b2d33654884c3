"""Properties of an op that are known before it runs: what it writes, which values it reads, whether it is random."""

from __future__ import annotations

import marshal
import pkgutil
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch

from determinism.digest import digest_text
from determinism.frameworks.torch.tensor_bytes import digest_tensor
from determinism.import_hook import after_import
from determinism.redaction import redacted_code
from determinism.trace.writer import ProcessWriter

# What collectives write. Their schemas do not declare it (torch 2.13: `torch/csrc/distributed/c10d/Ops.cpp`).

_NAMESPACES = ("c10d", "_c10d_functional")

ADDED_TO = frozenset({"c10d::allreduce_", "c10d::allreduce_coalesced_", "c10d::reduce_"})
"""Ops that read and write their first argument."""

FILLED = frozenset(
    {
        "c10d::_allgather_base_", "c10d::_reduce_scatter_base_", "c10d::allgather_", "c10d::allgather_coalesced_",
        "c10d::allgather_into_tensor_coalesced_", "c10d::alltoall_", "c10d::alltoall_base_", "c10d::broadcast_",
        "c10d::gather_", "c10d::recv_", "c10d::recv_any_source_", "c10d::reduce_scatter_",
        "c10d::reduce_scatter_tensor_coalesced_", "c10d::scatter_", "_c10d_functional::irecv",
        "fsdp::all_gather_copy_in",
    }
)  # fmt: skip
"""Ops that write their first argument (`fsdp::all_gather_copy_in` its second) without reading it; a broadcast reads it
in the root."""

WITHOUT_VALUES = frozenset({"c10d::barrier", "c10d::monitored_barrier_"})
"""Ops that take a tensor but do not use its values."""

_FSDP_COPY = "fsdp::all_gather_copy_in"
"""Copies this process's part into a buffer, its second argument, which an all-gather then fills."""


def targets(name: str) -> tuple[int, ...]:
    """Return the positions of the arguments that an op writes without declaring it."""
    if name == _FSDP_COPY:
        return (1,)
    return (0,) if name in ADDED_TO or name in FILLED else ()


def is_collective(name: str) -> bool:
    """Whether an op's outputs may still be in transit when it returns."""
    return name.partition("::")[0] in _NAMESPACES or name == _FSDP_COPY


def root_at(name: str) -> int | None:
    """Return the position of the only rank that reads what the op writes; None if there is no such rank."""
    return 2 if name == "c10d::broadcast_" else None


def is_root(args: Any, position: int) -> bool:
    """Whether this process is the root of a collective, whose second argument is the process group."""
    group = torch.distributed.ProcessGroup.unbox(args[1])
    return bool(group.rank() == args[position])


# Keeps `torch.compile` from tracing into the recorder.
#
# PyTorch wraps the handler of every mode so that Dynamo skips its frames. The wrapper imports Dynamo, which takes a
# second, into programs that never compile, and adds a quarter of the cost of an empty handler to each op. Marking the
# code object has the same effect on Dynamo's frame evaluation at no cost.


def leave_alone(function: Callable[..., Any], *, with_callees: bool = True) -> bool:
    """Make Dynamo run a function without compiling it; False if this version of PyTorch cannot.

    Args:
        function: A Python function.
        with_callees: Whether to skip its callees too; if not, Dynamo may compile them.
    """
    evaluation = getattr(torch._C._dynamo, "eval_frame", None)
    try:
        action = evaluation._FrameAction  # type: ignore[union-attr]
        callees = action.SKIP if with_callees else action.DEFAULT
        strategy = evaluation._FrameExecStrategy(action.SKIP, callees)  # type: ignore[union-attr]
        evaluation.set_code_exec_strategy(function.__code__, strategy)  # type: ignore[union-attr]
    except AttributeError:
        return False
    return True


_NOT_SKIPPED = ("determinism.frameworks", "determinism.frameworks.torch", "determinism.frameworks.torch.patches")


def leave_recorder_alone(failed: Callable[[str], None]) -> Callable[[], None]:
    """Make Dynamo skip the files of this package, except the patches, which compiled code may call.

    Where a compiled function calls `backward()` or `optimizer.step()`, Dynamo breaks its graph, and would then compile
    each function that hooks call: dozens of graphs, with warnings on the program's error stream.

    Args:
        failed: Called with the reason if this version of PyTorch has no list of files to skip.

    Returns:
        A function that takes the files off the list, or cancels adding them if Dynamo has not been imported.
    """
    added: list[str] = []

    def skip_files(rules: Any) -> None:
        before = len(rules.SKIP_DIRS)
        for module in _skipped_modules():
            rules.add(module)
        added[:] = rules.SKIP_DIRS[before:]

    def undo() -> None:
        forget()
        if added:
            rules: Any = sys.modules["torch._dynamo.trace_rules"]
            rules.SKIP_DIRS[:] = [directory for directory in rules.SKIP_DIRS if directory not in added]
            rules._recompile_re()

    forget = after_import("torch._dynamo.trace_rules", skip_files, failed)
    return undo


def _skipped_modules() -> Iterator[str]:
    """Yield every module and package that does not contain a patch."""
    for package in ("determinism", *_NOT_SKIPPED[:-1]):
        for module in pkgutil.iter_modules(sys.modules[package].__path__, f"{package}."):
            if module.name not in _NOT_SKIPPED:
                yield module.name


def unwrap_handler(mode: type[Any]) -> None:
    """Remove PyTorch's wrapper from the handler of a mode, if its code can be marked instead."""
    plain = getattr(mode.__torch_dispatch__, "__wrapped__", None)
    if plain is not None and leave_alone(plain):
        mode.__torch_dispatch__ = plain


# What PyTorch computes differently while a dispatch mode is active; the data was found by the audit, per version.
#
# A mode affects more than the ops that its handler gets. Some autograd formulas check whether a mode is active, and
# then avoid what a tensor subclass could not do: they run other ops, give other bits and skip checks. And an op that
# runs ops itself finds autocast and lazy conjugation switched off below a handler.

DATA = Path(__file__).parent / "data" / "formulas.toml"
_NODE = re.compile(r"(\w+)Backward\d+")


@dataclass(frozen=True)
class Formulas:
    """The formulas of one version of PyTorch that depend on modes."""

    audited: str
    """The version that the audit was run with."""
    is_audited: bool
    """Whether that is the requested version; only its first two numbers count."""
    nodes: frozenset[str]
    """Nodes of the autograd graph that take another formula, such as `ProdBackward0`."""
    conjugation_inside: frozenset[str]
    """Ops whose own ops miss lazy conjugation below a handler, such as `aten::linalg_pinv`."""
    autocast_inside: frozenset[str]
    """Ops whose own ops miss autocast below a handler, such as `aten::_trilinear`."""
    forward_mode: frozenset[str]
    """Ops whose forward-mode derivative takes another formula, such as `aten::prod`."""

    def makes_node(self, schema_name: str) -> bool:
        """Whether an op's backward may be one of the nodes.

        Args:
            schema_name: Qualified name of the op without its overload, such as `aten::prod`.
        """
        return _camel_case(schema_name.partition("::")[2]) in _stems(self.nodes)


@cache
def formulas_of(version: str, path: Path = DATA) -> Formulas:
    """Return the formulas of a version, or of the nearest audited one if it was not audited.

    Args:
        version: In the form of `torch.__version__`.
        path: The data file.
    """
    with path.open("rb") as file:
        audits = tomllib.load(file)["audit"]
    asked = _release(version)
    nearest = min(audits, key=lambda audit: _distance(_release(audit["torch"]), asked))
    kinds = ("node", "conjugation_inside", "autocast_inside", "forward_mode")
    names = (frozenset(one["name"] for one in nearest.get(kind, ())) for kind in kinds)
    return Formulas(nearest["torch"], _release(nearest["torch"]) == asked, *names)


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version that determine its formulas: the first two."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _distance(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return abs((one[0] - other[0]) * 100 + one[1] - other[1])


@cache
def _stems(nodes: frozenset[str]) -> frozenset[str]:
    return frozenset(match[1] for node in nodes if (match := _NODE.fullmatch(node)))


def _camel_case(name: str) -> str:
    """Convert an op's name to the prefix of its node names: `_linalg_eigh` gives `LinalgEigh`."""
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


# The state of the generators that ops draw random numbers from.


def generator_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator | None:
    """Find the generator that an op will draw from; None if the device has no readable one."""
    for value in (*kwargs.values(), *args):
        if isinstance(value, torch.Generator):
            return value
    device = kwargs.get("device")
    if not isinstance(device, torch.device):
        device = next((value.device for value in args if isinstance(value, torch.Tensor)), torch.device("cpu"))
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "cuda" and torch.cuda.is_available():
        index = device.index if device.index is not None else torch.cuda.current_device()
        return torch.cuda.default_generators[index]
    return None


def state_digest(generator: torch.Generator) -> bytes:
    """Digest a generator's whole state."""
    return digest_tensor(generator.get_state())


_IGNORED_NAMESPACES = {"profiler", "prim", "prims_meta", "_inductor_test"}

_METADATA = {
    "is_pinned", "size", "stride", "dim", "numel", "storage_offset", "is_contiguous", "is_same_size", "is_complex",
    "is_floating_point", "is_inference", "is_neg", "is_conj", "is_signed", "is_set_to", "is_strides_like_format",
    "is_non_overlapping_and_dense", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "sym_is_contiguous",
    "sym_constrain_range", "sym_constrain_range_for_size", "_has_compatible_shallow_copy_type", "dense_dim",
    "sparse_dim", "is_coalesced", "_is_zerotensor", "qscheme", "_version", "output_nr", "_nested_tensor_size",
    "set_", "_assert_tensor_metadata", "result_type", "can_cast", "promote_types", "_debug_has_internal_overlap",
    "_use_cudnn_ctc_loss", "_use_miopen_ctc_loss", "is_leaf", "requires_grad_", "retain_grad", "_backward",
    "record_stream", "set_data", "detach_", "_fw_primal", "_make_dual",
}  # fmt: skip
"""Ops that read no elements: only shapes can differ through them, and records hold shapes anyway."""

_VIEWS_WITHOUT_ANNOTATION = {"_unsafe_view", "_reshape_alias"}

_UNINITIALIZED = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "empty_quantized", "new_empty", "new_empty_strided",
    "_empty_affine_quantized", "_empty_per_channel_affine_quantized", "resize_", "resize_as_", "_resize_output_",
}  # fmt: skip
"""Ops whose outputs hold what was in memory before (or stay partly unwritten)."""

_UNVALUED_INPUTS = {
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "new_empty",
    "new_empty_strided", "new_zeros", "new_ones", "new_full", "resize_", "resize_as_", "_shape_as_tensor",
}  # fmt: skip
"""Ops that use only the shape, dtype and device of their inputs, never their elements."""

_WHOLE_WRITES = {
    "fill_", "zero_", "copy_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_",
    "log_normal_", "_foreach_zero_", "_foreach_copy_", "fill", "zero", "resize_", "resize_as_",
}  # fmt: skip
"""In-place ops that replace their whole target without reading it."""

_PARTIAL_WRITES = {
    "index_put_", "_index_put_impl_", "index_copy_", "index_fill_", "masked_fill_", "masked_scatter_", "scatter_",
    "put_", "fill_diagonal_", "triu_", "tril_",
}  # fmt: skip
"""In-place ops that replace the elements selected by their arguments, and leave the others as they are."""

_HIDDEN_WRITES = {
    "native_batch_norm": ((3, 4), 5),
    "cudnn_batch_norm": ((3, 4), 5),
    "miopen_batch_norm": ((3, 4), 5),
}
"""Writes that the schema does not declare: positions of the tensors, and of the flag that must be True."""

WORKSPACE_OUTPUTS = {
    "aten::mkldnn_rnn_layer": frozenset({3}),
    "aten::_ctc_loss": frozenset({1}),
    "aten::_cudnn_rnn": frozenset({4}),
    "aten::miopen_rnn": frozenset({4}),
    "aten::cudnn_batch_norm": frozenset({3}),
    "aten::_batch_norm_with_update": frozenset({3}),
    "aten::_batch_norm_no_update": frozenset({3}),
}
"""Outputs that are scratch memory for the backward: their bytes differ in every run and are meaningless.
`mkldnn_rnn_layer` and `_ctc_loss` were measured with torch 2.13 on the CPU; the others are documented as reserve spaces."""


COPIES = frozenset({"aten::copy_", "aten::_to_copy"})
"""Ops that may return before the copy is complete; see `as_called`."""


@dataclass(frozen=True, slots=True)
class OpTraits:
    """How an op is recorded."""

    name: str
    """Qualified overload name, such as `aten::add.Tensor`."""
    is_ignored: bool = False
    is_view: bool = False
    is_view_or_copy: bool = False
    """Whether an op needs special treatment; a single check for all other ops."""
    is_uninitialized: bool = False
    is_asynchronous: bool = False
    """Whether its outputs may not be ready when it returns, as where processes exchange tensors."""
    is_lift: bool = False
    """Whether it turns outside memory into a tensor of the framework."""
    draws: bool = False
    has_unvalued_inputs: bool = False
    written: tuple[int | str, ...] = ()
    """Positions or names of the arguments that the op writes."""
    reads_written: bool = False
    """Whether the result depends on the previous contents of a written argument."""
    keeps_unwritten: bool = False
    """Whether elements of a written argument can stay as they were."""
    accumulate_at: int | None = None
    """Position of the flag `accumulate`, which makes a partial write read its target."""
    root_at: int | None = None
    """Position of the only rank that reads what a collective writes."""
    hidden_written: tuple[int, ...] = ()
    hidden_flag: int = 0
    workspaces: frozenset[int] = frozenset()
    argument_names: tuple[str, ...] = ()
    returns_target: bool = False
    """Whether it is an in-place op: writes its first argument and returns it."""
    has_formula_node: bool = False
    """Whether its backward may take another formula while a mode is active."""
    asks_for_modes: bool = False
    """Whether its backward or its forward-mode derivative may do so."""
    needs_settings: bool = False
    """Whether its kernel runs ops that depend on autocast or lazy conjugation."""


def traits_of(op: Any) -> OpTraits:
    """Derive the traits of an `OpOverload` from its schema, its tags and the tables above."""
    schema = op._schema
    namespace, _, base = schema.name.partition("::")
    arguments = schema.arguments
    written: list[int | str] = []
    positional = 0
    for argument in arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(argument.name if argument.kwarg_only else positional)
        if not argument.kwarg_only:
            positional += 1
    written += targets(schema.name)
    returns_alias = any(r.alias_info is not None for r in schema.returns)
    is_aten = namespace == "aten"
    is_view = (not written and returns_alias and base != "lift_fresh") or (
        is_aten and base in _VIEWS_WITHOUT_ANNOTATION
    )
    is_out = any(a.is_out for a in arguments)
    is_whole = is_out or schema.name in FILLED or (is_aten and base in _WHOLE_WRITES)
    is_partial = is_aten and base in _PARTIAL_WRITES and "reduce" not in schema.overload_name
    accumulate = next((i for i, a in enumerate(arguments) if a.name == "accumulate"), None)
    hidden, flag = _HIDDEN_WRITES.get(base, ((), 0)) if is_aten else ((), 0)
    name = op.name()
    formulas = formulas_of(torch.__version__)
    return OpTraits(
        name=name,
        is_ignored=namespace in _IGNORED_NAMESPACES or (is_aten and base in _METADATA),
        is_view=is_view,
        is_view_or_copy=is_view or schema.name in COPIES,
        is_uninitialized=is_aten and base in _UNINITIALIZED,
        is_asynchronous=is_collective(schema.name),
        is_lift=schema.name == "aten::lift_fresh",
        draws=torch.Tag.nondeterministic_seeded in op.tags,
        has_unvalued_inputs=(is_aten and base in _UNVALUED_INPUTS) or schema.name in WITHOUT_VALUES,
        written=tuple(written),
        reads_written=not (is_whole or is_partial),
        keeps_unwritten=is_partial,
        accumulate_at=accumulate if is_partial else None,
        root_at=root_at(schema.name),
        hidden_written=hidden,
        hidden_flag=flag,
        workspaces=WORKSPACE_OUTPUTS.get(schema.name, frozenset()),
        argument_names=tuple(a.name for a in arguments),
        returns_target=written == [0] and len(schema.returns) == 1 and returns_alias and not hidden,
        has_formula_node=formulas.makes_node(schema.name),
        asks_for_modes=formulas.makes_node(schema.name) or schema.name in formulas.forward_mode,
        needs_settings=schema.name in formulas.conjugation_inside | formulas.autocast_inside,
    )


HIGHER_ORDER = OpTraits("higher-order operator", is_ignored=True)
"""An operator that takes functions: not recorded itself, as the ops inside it are."""

OPAQUE = OpTraits("opaque")
"""Code that is not an op and of which only inputs and outputs are known."""


# The non-tensor arguments of an op, as a key that is quick to make and as an exact text.

_MAX_TEXT = 2000
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_PLAIN = (int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def _is_bare(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, torch.Generator))


def argument_key(op: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Make a hashable key; two calls of an op have equal keys only if their arguments have the same types and bits.

    Tensors and generators count only by position: they are recorded separately.
    """
    # A Python number may replace any tensor, even the first.
    values = [... if type(value) in _TENSORS else value for value in args]
    try:
        # The bytes distinguish 1, 1.0 and True, and 0.0 and -0.0. Version 2 writes equal values as equal bytes.
        return op, marshal.dumps((values, kwargs) if kwargs else values, 2)
    except ValueError:
        # dtypes, devices, lists of tensors and the like.
        key: list[Any] = [op]
        _extend(key, values)
        for name, value in kwargs.items():
            key.append(name)
            _extend(key, value)
        return tuple(key)


def _extend(key: list[Any], value: Any) -> None:
    kind = type(value)
    if kind is int:
        key.append(value)
    elif kind is list or kind is tuple or kind is torch.Size:
        key.append(kind)
        key.append(len(value))
        for item in value:
            _extend(key, item)
    elif kind is float or kind is complex:
        # 0.0 == -0.0 == 0 and nan != nan: only the text identifies a float.
        key.append(kind)
        key.append(repr(value))
    elif _is_bare(value):
        key.append(torch.Tensor)
    elif isinstance(value, _PLAIN):
        key.append(kind)
        key.append(value)
    else:
        key.append(kind)
        key.append(_opaque(value))


def _opaque(value: Any) -> str:
    """Describe an object without a plain value by its type, as an address would differ in every run."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return str(value)
    return type(value).__qualname__


def argument_text(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Format arguments as a person would write them; a long text is cut and ends with a digest of the whole."""
    parts = []
    for position, value in enumerate(args):
        if not _is_bare(value):
            name = names[position] if position < len(names) else str(position)
            parts.append(f"{name}={value_text(value)}")
    parts += [f"{name}={value_text(value)}" for name, value in kwargs.items() if not _is_bare(value)]
    text = ", ".join(parts)
    if len(text) > _MAX_TEXT:
        return f"{text[:_MAX_TEXT]} … {digest_text(text).hex()}"
    return text


def value_text(value: Any) -> str:
    """Format a plain value exactly, and anything else as its type, as addresses differ in every run."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(value_text(item) for item in value) + "]"
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, str):
        return _string_text(value)
    if isinstance(value, (*_PLAIN, float, complex)):
        return repr(value)
    return _opaque(value)


def _string_text(value: str) -> str:
    text = repr(value)
    shown = redacted_code(text)
    # The digest distinguishes different secrets.
    return text if shown == text else f"{shown} ({digest_text(value).hex()})"


class ArgumentTable:
    """Numbers the arguments of calls."""

    _MAX_KEYS = 20_000

    def __init__(self, add: Callable[[str], int]) -> None:
        """Take the function that writes a text and returns its number."""
        self._add = add
        self._numbers: dict[tuple[Any, ...], int] = {}

    def number(self, op: int, traits: OpTraits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Return the number of the text of these arguments; -1 if there are none."""
        if not kwargs:
            for value in args:
                if type(value) not in _TENSORS:
                    break
            else:
                return -1
        key = argument_key(op, args, kwargs)
        number = self._numbers.get(key)
        if number is None:
            text = argument_text(traits.argument_names, args, kwargs)
            number = self._add(text) if text else -1
            if len(self._numbers) >= self._MAX_KEYS:
                # Forgetting keeps memory bounded; the same text may then get a second number.
                self._numbers.clear()
            self._numbers[key] = number
        return number

    def text_number(self, text: str) -> int:
        """Return the number of a text that was not made from a call's arguments."""
        number = self._numbers.get((text,))
        if number is None:
            number = self._numbers[(text,)] = self._add(text)
        return number


# Copies from a device to the host that are still under way when their op returns.
#
# With `non_blocking=True` and page-locked memory the host continues at once, and the memory's contents are meaningless
# until the program has waited. So such an output is digested when it is read, like that of a collective.


def as_called(traits: OpTraits, args: Any, kwargs: Any) -> OpTraits:
    """Return the traits of one call of an op in `COPIES`."""
    non_blocking = kwargs.get("non_blocking", False) or (len(args) > 2 and args[2])
    return _late(traits) if non_blocking and _leads_to_host(args, kwargs) else traits


def _leads_to_host(args: Any, kwargs: Any) -> bool:
    if len(args) > 1:
        target, source = args[0].device, args[1]
    else:
        target, source = kwargs.get("device"), args[0]
    return target is not None and torch.device(target).type == "cpu" and source.device.type not in ("cpu", "meta")


@lru_cache
def _late(traits: OpTraits) -> OpTraits:
    return replace(traits, is_asynchronous=True)


# Runs an op that itself runs ops, with autocast and lazy conjugation as they would be without a mode.
#
# PyTorch switches both off below the handler of a mode. The ops that the kernel dispatches then run without them:
# `bilinear` under autocast returns another dtype, `linalg.pinv` of a complex matrix returns wrong numbers.
#
# In inference mode, composite ops such as `linear` arrive whole, and below the handler the views that they make lose
# the information that their base requires a gradient. `matmul` checks for that, and then multiplies differently.

_C: Any = torch._C
_NAMES = [name for name in dir(getattr(_C, "DispatchKey", object)) if not name.startswith("_")]
CONJUGATION = tuple(getattr(_C.DispatchKey, name) for name in ("Conjugate", "Negative", "ZeroTensor") if name in _NAMES)
AUTOCAST = tuple(getattr(_C.DispatchKey, name) for name in _NAMES if name.startswith("Autocast"))
VIEWS = tuple(getattr(_C.DispatchKey, name) for name in ("ADInplaceOrView",) if name in _NAMES)
_CAN_RESTORE = hasattr(_C, "_RestorePythonTLSSnapshot") and hasattr(_C, "_ForceDispatchKeyGuard")

_WRAPPED_ELSEWHERE = {"aten::linalg_pinv"}
"""Ops that also run inside an op that autocast wraps as a whole (`pinverse`), where autocast is off even without a
mode. A handler cannot distinguish the two cases."""


def run_with_settings(writer: ProcessWriter, op: Any, args: Any, kwargs: Any) -> Any:
    """Run an op from within a handler so that the ops in its kernel find the same settings as without the mode.

    Args:
        writer: Gets a blind spot for what cannot be restored.
        op: An op that the audit found.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """
    try:
        keys = _missing_keys(writer, op._schema.name, args)
    except Exception as error:
        writer.blind_spot("handler-failed", op.name(), f"{type(error).__name__}: {error}"[:300])
        keys = ()
    if torch.is_inference_mode_enabled():
        keys += VIEWS
    return run_restoring(keys, op, args, kwargs)


def runner_of(op: Any) -> Callable[..., Any]:
    """Return what runs an op from within a handler, if its kernel is the same with and without a mode."""
    if type(op) is not torch._ops.OpOverload:
        run: Callable[..., Any] = op
        return run
    # Calling an `OpOverload` does nothing but call this.
    kernel: Callable[..., Any] = op._op
    if not _C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
        return kernel

    def run_composite(*args: Any, **kwargs: Any) -> Any:
        if torch.is_inference_mode_enabled():
            return run_restoring(VIEWS, kernel, args, kwargs)
        return kernel(*args, **kwargs)

    return run_composite


def _missing_keys(writer: ProcessWriter, name: str, args: Any) -> tuple[Any, ...]:
    # Autocast behaves differently on each device; the audit covered only the CPU.
    if name not in formulas_of(torch.__version__).autocast_inside or not args[0].is_cpu:
        return CONJUGATION
    if name not in _WRAPPED_ELSEWHERE:
        return CONJUGATION + AUTOCAST
    if _is_on_outside("AutocastCPU"):
        writer.blind_spot("formula-changed", f"{name} under autocast", "the ops inside it run without autocast")
    return CONJUGATION


def run_restoring(keys: tuple[Any, ...], op: Any, args: Any, kwargs: Any) -> Any:
    """Run an op from within a handler with some dispatch keys as they were when the program called it."""
    if not _CAN_RESTORE or not keys:
        return op(*args, **kwargs)
    excluded_outside, excluded = _excluded_outside(), _C._dispatch_tls_local_exclude_set()
    for key in keys:
        if not excluded_outside.has(key):
            excluded = excluded.remove(key)
    with _C._ForceDispatchKeyGuard(_C._dispatch_tls_local_include_set(), excluded):
        return op(*args, **kwargs)


def _excluded_outside() -> Any:
    with _C._RestorePythonTLSSnapshot():
        return _C._dispatch_tls_local_exclude_set()


def _is_on_outside(key: str) -> bool:
    return _CAN_RESTORE and not _excluded_outside().has(getattr(_C.DispatchKey, key))
