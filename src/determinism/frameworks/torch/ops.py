"""Properties of an op that are known before it runs: what it writes, what it only looks at, whether it is random."""

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

# What collectives write. Their schemas do not say it (torch 2.13: `torch/csrc/distributed/c10d/Ops.cpp`).

_NAMESPACES = ("c10d", "_c10d_functional")

ADDED_TO = frozenset({"c10d::allreduce_", "c10d::allreduce_coalesced_", "c10d::reduce_"})
"""They read what they write: their first argument."""

FILLED = frozenset(
    {
        "c10d::_allgather_base_", "c10d::_reduce_scatter_base_", "c10d::allgather_", "c10d::allgather_coalesced_",
        "c10d::allgather_into_tensor_coalesced_", "c10d::alltoall_", "c10d::alltoall_base_", "c10d::broadcast_",
        "c10d::gather_", "c10d::recv_", "c10d::recv_any_source_", "c10d::reduce_scatter_",
        "c10d::reduce_scatter_tensor_coalesced_", "c10d::scatter_", "_c10d_functional::irecv",
        "fsdp::all_gather_copy_in",
    }
)  # fmt: skip
"""They write their first argument (`fsdp::all_gather_copy_in` its second) and do not read it; a broadcast reads it in
the root."""

WITHOUT_VALUES = frozenset({"c10d::barrier", "c10d::monitored_barrier_"})
"""They take a tensor of which nothing is used."""

_FSDP_COPY = "fsdp::all_gather_copy_in"
"""Puts the part of this process into a buffer, its second argument, that an all-gather then fills."""


def targets(name: str) -> tuple[int, ...]:
    """Positions of the arguments that an op writes without saying so."""
    if name == _FSDP_COPY:
        return (1,)
    return (0,) if name in ADDED_TO or name in FILLED else ()


def is_collective(name: str) -> bool:
    """Whether what an op writes may still be on its way when the op returns."""
    return name.partition("::")[0] in _NAMESPACES or name == _FSDP_COPY


def root_at(name: str) -> int | None:
    """Position of the rank that alone reads what the op writes; None if there is no such rank."""
    return 2 if name == "c10d::broadcast_" else None


def is_root(args: Any, position: int) -> bool:
    """Whether this process is the root of a collective, whose second argument is the group of processes."""
    group = torch.distributed.ProcessGroup.unbox(args[1])
    return bool(group.rank() == args[position])


# Keeps `torch.compile` from looking into the recorder.
#
# PyTorch wraps the handler of every mode so that Dynamo leaves its frames alone. The wrapper imports Dynamo, which
# takes a second, into programs that never compile, and costs a quarter of an empty handler per op. Marking the code
# object says the same to Dynamo's frame evaluation for nothing.


def leave_alone(function: Callable[..., Any], *, with_callees: bool = True) -> bool:
    """Tell Dynamo to run a function as it is; False if this version of PyTorch cannot.

    Args:
        function: A Python function.
        with_callees: Also whatever it calls; otherwise Dynamo may compile that.
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
    """Let Dynamo skip the files of this package but for the patches, which compiled code may call.

    Where a compiled function calls `backward()` or `optimizer.step()`, Dynamo breaks its graph, and would go on to
    compile each function that hooks call: dozens of graphs, with warnings on the program's error stream.

    Args:
        failed: Called in words where this version of PyTorch keeps no such list.

    Returns:
        What takes the files off the list, or lets go of the wish if Dynamo has not been imported.
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
    """Every module and package that is not above a patch."""
    for package in ("determinism", *_NOT_SKIPPED[:-1]):
        for module in pkgutil.iter_modules(sys.modules[package].__path__, f"{package}."):
            if module.name not in _NOT_SKIPPED:
                yield module.name


def unwrap_handler(mode: type[Any]) -> None:
    """Take PyTorch's wrapper off the handler of a mode, where its code can be marked instead."""
    plain = getattr(mode.__torch_dispatch__, "__wrapped__", None)
    if plain is not None and leave_alone(plain):
        mode.__torch_dispatch__ = plain


# What PyTorch computes differently while a dispatch mode is active; data that the audit found, by version.
#
# A mode is seen by more than its handler. Some formulas of the autograd engine ask whether one is active, and then
# leave out what a tensor subclass could not do: other ops, other bits, checks that are not made. And an op that runs
# ops itself finds autocast and lazy conjugation switched off below a handler.

DATA = Path(__file__).parent / "data" / "formulas.toml"
BLIND_SPOT = "formula-changed"
"""Says in a program's trace that it ran a formula that could not be kept."""
_NODE = re.compile(r"(\w+)Backward\d+")


@dataclass(frozen=True)
class Formulas:
    """What is known of one version of PyTorch."""

    audited: str
    """The version that the audit was run with."""
    is_audited: bool
    """Whether that is the version asked for; a later digit of it does not matter."""
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
        return _camel_case(schema_name.partition("::")[2]) in self._stems

    @property
    def _stems(self) -> frozenset[str]:
        return _stems(self.nodes)


@cache
def formulas_of(version: str, path: Path = DATA) -> Formulas:
    """What is known of a version; of the nearest audited one, if that one was not audited.

    Args:
        version: As `torch.__version__` gives it.
        path: The data.
    """
    with path.open("rb") as file:
        audits = tomllib.load(file)["audit"]
    asked = _release(version)
    nearest = min(audits, key=lambda audit: _distance(_release(audit["torch"]), asked))
    names = {
        key: frozenset(one["name"] for one in nearest.get(key, ()))
        for key in ("node", "conjugation_inside", "autocast_inside", "forward_mode")
    }
    return Formulas(
        audited=nearest["torch"],
        is_audited=_release(nearest["torch"]) == asked,
        nodes=names["node"],
        conjugation_inside=names["conjugation_inside"],
        autocast_inside=names["autocast_inside"],
        forward_mode=names["forward_mode"],
    )


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version that say which formulas it has: the first two."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _distance(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return abs((one[0] - other[0]) * 100 + one[1] - other[1])


@cache
def _stems(nodes: frozenset[str]) -> frozenset[str]:
    return frozenset(match[1] for node in nodes if (match := _NODE.fullmatch(node)))


def _camel_case(name: str) -> str:
    """The name of an op as the names of its nodes begin: `_linalg_eigh` gives `LinalgEigh`."""
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))


# The state of the generators that ops draw random numbers from.


def generator_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Generator | None:
    """The generator that an op will draw from; None if the device has none that can be read."""
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
    """Digest of a generator's whole state."""
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
"""They read no element, so nothing can differ through them but shapes, which records hold anyway."""

_VIEWS_WITHOUT_ANNOTATION = {"_unsafe_view", "_reshape_alias"}

_UNINITIALIZED = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "empty_quantized", "new_empty", "new_empty_strided",
    "_empty_affine_quantized", "_empty_per_channel_affine_quantized", "resize_", "resize_as_", "_resize_output_",
}  # fmt: skip
"""Their outputs hold what was in memory before (or stay partly unwritten)."""

_UNVALUED_INPUTS = {
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "new_empty",
    "new_empty_strided", "new_zeros", "new_ones", "new_full", "resize_", "resize_as_", "_shape_as_tensor",
}  # fmt: skip
"""They look at the shape, dtype and device of their inputs, never at elements."""

_WHOLE_WRITES = {
    "fill_", "zero_", "copy_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_",
    "log_normal_", "_foreach_zero_", "_foreach_copy_", "fill", "zero", "resize_", "resize_as_",
}  # fmt: skip
"""In-place ops that replace their whole target without reading it."""

_PARTIAL_WRITES = {
    "index_put_", "_index_put_impl_", "index_copy_", "index_fill_", "masked_fill_", "masked_scatter_", "scatter_",
    "put_", "fill_diagonal_", "triu_", "tril_",
}  # fmt: skip
"""In-place ops that replace the elements that their arguments choose, and leave the others as they are."""

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
"""Outputs that hold scratch memory for the backward: their bytes differ in every run and mean nothing.
`mkldnn_rnn_layer` and `_ctc_loss` were measured with torch 2.13 on the CPU; the others are documented as reserve spaces."""


COPIES = frozenset({"aten::copy_", "aten::_to_copy"})
"""They may return before the copy is made; see `late_copies`."""


@dataclass(frozen=True, slots=True)
class OpTraits:
    """How an op is recorded."""

    name: str
    """Qualified overload name, such as `aten::add.Tensor`."""
    is_ignored: bool
    is_view: bool
    is_view_or_copy: bool
    """Whether an op needs a second look before it is recorded; one question for all others."""
    is_uninitialized: bool
    is_asynchronous: bool
    """Its outputs may not be there yet when it returns, as where processes exchange tensors."""
    is_lift: bool
    """Makes a tensor of the framework out of memory from outside."""
    draws: bool
    has_unvalued_inputs: bool
    written: tuple[int | str, ...]
    """Positions or names of the arguments that the op writes."""
    reads_written: bool
    """Whether the previous content of a written argument takes part in the result."""
    keeps_unwritten: bool
    """Whether elements of a written argument can stay as they were."""
    accumulate_at: int | None
    """Position of the flag `accumulate`, which makes a partial write read its target."""
    root_at: int | None
    """Position of the rank that alone reads what a collective writes."""
    hidden_written: tuple[int, ...]
    hidden_flag: int
    workspaces: frozenset[int]
    argument_names: tuple[str, ...]
    returns_target: bool
    """An in-place op: writes its first argument, and returns that."""
    has_formula_node: bool
    """Its backward may take another formula while a mode is active."""
    asks_for_modes: bool
    """Its backward or its forward-mode derivative may."""
    needs_settings: bool
    """Its kernel runs ops that take account of autocast or lazy conjugation."""


def traits_of(op: Any) -> OpTraits:
    """Work out the traits of an `OpOverload` from its schema, its tags and the tables above."""
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


HIGHER_ORDER = OpTraits(
    name="higher-order operator",
    is_ignored=True,
    is_view=False,
    is_view_or_copy=False,
    is_uninitialized=False,
    is_asynchronous=False,
    is_lift=False,
    draws=False,
    has_unvalued_inputs=False,
    written=(),
    reads_written=False,
    keeps_unwritten=False,
    accumulate_at=None,
    root_at=None,
    hidden_written=(),
    hidden_flag=0,
    workspaces=frozenset(),
    argument_names=(),
    returns_target=False,
    has_formula_node=False,
    asks_for_modes=False,
    needs_settings=False,
)
"""An operator that takes functions: not recorded itself, as the ops inside it are."""

OPAQUE = replace(HIGHER_ORDER, name="opaque", is_ignored=False)
"""Something that is no op, of which only inputs and outputs are known."""


# The arguments of an op that are no tensors, as a key that is quick to make and a text that is exact.

_MAX_TEXT = 2000
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_PLAIN = (int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def _is_bare(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, torch.Generator))


def argument_key(op: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """A hashable key; two calls of an op have equal keys only if their arguments have the same types and bits.

    Tensors and generators count by their place only: they are recorded on their own.

    Args:
        op: Number of the op.
        args: The positional arguments.
        kwargs: The others.
    """
    # A Python number may stand in the place of any tensor, also of the first.
    values = [... if type(value) in _TENSORS else value for value in args]
    try:
        # Bytes tell 1, 1.0 and True apart, and 0.0 from -0.0. Version 2 writes equal values as equal bytes.
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
        # 0.0 == -0.0 == 0 and nan != nan: only the text tells floats apart.
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
    """Objects without a value of their own; an address would differ in every run."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return str(value)
    return type(value).__qualname__


def argument_text(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments as a person would write them; long ones are cut and end with a digest of the whole."""
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
    """A plain value exactly; of anything else the type, as addresses differ in every run."""
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
    # The digest tells one secret from another.
    return text if shown == text else f"{shown} ({digest_text(value).hex()})"


class ArgumentTable:
    """Numbers the arguments of calls."""

    _MAX_KEYS = 20_000

    def __init__(self, add: Callable[[str], int]) -> None:
        """Take the function that writes a text and gives its number."""
        self._add = add
        self._numbers: dict[tuple[Any, ...], int] = {}

    def number(self, op: int, traits: OpTraits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """The number of the text of these arguments; -1 if there are none."""
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
        """The number of a text that is not made from a call."""
        number = self._numbers.get((text,))
        if number is None:
            number = self._numbers[(text,)] = self._add(text)
        return number


# Copies from a device to the host that are still under way when their op returns.
#
# With `non_blocking=True` and page-locked memory the host goes on at once, and what the memory holds before the
# program has waited means nothing. So such an output is digested when it is read, like that of a collective.


def as_called(traits: OpTraits, args: Any, kwargs: Any) -> OpTraits:
    """The traits of one call of an op of `op_traits.COPIES`."""
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


# Runs an op that runs ops itself with autocast and lazy conjugation as they are without a mode.
#
# PyTorch switches both off below the handler of a mode. Whatever an op's kernel hands to the dispatcher then misses
# them: `bilinear` under autocast gives another dtype, `linalg.pinv` of a complex matrix wrong numbers.
#
# In inference mode composite ops arrive whole, such as `linear`, and below the handler the views that they make no
# longer know that their base requires a gradient. `matmul` asks for that, and multiplies in another way.

_C: Any = torch._C
_NAMES = [name for name in dir(getattr(_C, "DispatchKey", object)) if not name.startswith("_")]
CONJUGATION = tuple(getattr(_C.DispatchKey, name) for name in ("Conjugate", "Negative", "ZeroTensor") if name in _NAMES)
AUTOCAST = tuple(getattr(_C.DispatchKey, name) for name in _NAMES if name.startswith("Autocast"))
VIEWS = tuple(getattr(_C.DispatchKey, name) for name in ("ADInplaceOrView",) if name in _NAMES)
_CAN_RESTORE = hasattr(_C, "_RestorePythonTLSSnapshot") and hasattr(_C, "_ForceDispatchKeyGuard")

_WRAPPED_ELSEWHERE = {"aten::linalg_pinv"}
"""They also run inside an op that autocast wraps as a whole (`pinverse`), where it is off without a mode, too. A handler
cannot tell the one from the other."""


def run_with_settings(writer: ProcessWriter, op: Any, args: Any, kwargs: Any) -> Any:
    """Run an op from within a handler, so that the ops in its kernel find what they would find without the mode.

    Args:
        writer: Learns of what cannot be restored.
        op: One that the audit found.
        args: Its positional arguments.
        kwargs: Its other arguments.
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
    """What runs an op from within a handler, where its kernel is the same with a mode and without.

    Args:
        op: An `OpOverload`, or a higher-order operator.
    """
    if type(op) is not torch._ops.OpOverload:
        run: Callable[..., Any] = op
        return run
    # All that calling an `OpOverload` does is to call this.
    kernel: Callable[..., Any] = op._op
    if not _C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
        return kernel

    def run_composite(*args: Any, **kwargs: Any) -> Any:
        if torch.is_inference_mode_enabled():
            return run_restoring(VIEWS, kernel, args, kwargs)
        return kernel(*args, **kwargs)

    return run_composite


def _missing_keys(writer: ProcessWriter, name: str, args: Any) -> tuple[Any, ...]:
    # What autocast does is another thing on each device; the audit saw the CPU.
    if name not in formulas_of(torch.__version__).autocast_inside or not args[0].is_cpu:
        return CONJUGATION
    if name not in _WRAPPED_ELSEWHERE:
        return CONJUGATION + AUTOCAST
    if _is_on_outside("AutocastCPU"):
        writer.blind_spot("formula-changed", f"{name} under autocast", "the ops inside it run without autocast")
    return CONJUGATION


def run_restoring(keys: tuple[Any, ...], op: Any, args: Any, kwargs: Any) -> Any:
    """Run an op from within a handler with some dispatch keys as they were when the program called.

    Args:
        keys: The dispatch keys.
        op: What to run.
        args: Its positional arguments.
        kwargs: Its other arguments.
    """
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
