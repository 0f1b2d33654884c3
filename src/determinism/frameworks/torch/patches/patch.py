"""One op that is replaced: which overloads of it, by what, and where the replacement is right; and putting replacements in the place of stock kernels.

The dispatcher calls a kernel below autograd: PyTorch's own formulas stay, and where one calls a backward op that is replaced, the
replacement runs. An alert (`torch.use_deterministic_algorithms`) is raised within the stock kernel, so what takes its place does
not raise it. The stock kernel is kept and called where a replacement does not fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

Arguments = tuple[Any, ...]


def always(*given: Any, **named: Any) -> bool:
    """A replacement that takes whatever the stock op takes."""
    return True


@dataclass(frozen=True)
class Patch:
    """A deterministic implementation of one op of PyTorch.

    Attributes:
        identity: Short name of the patch; unique.
        what: The op in the words of the user.
        overloads: Names below `aten::`, all with the same arguments but for `out=`. Those that the installed version has a kernel
            for are replaced.
        run: Computes the result. With `in_place` it changes its first argument instead.
        supports: Whether `run` is right for the arguments; else the stock kernel runs, with its errors and its alert.
        example: Makes arguments of the first overload, small and without random numbers, on a device.
        in_place: Whether `run` works in place; the other forms are then made from copies.
        varies_on_cpu: Measured to vary on the CPU, with PyTorch's deterministic mode off.
        probed: Whether the example is run on the CPU to see if it raises. Not for ops that warn whenever they are called, and for
            which no version is known to raise there.
        cpu_key: The dispatch key of the CPU's kernel.
        gpu_key: The dispatch key of the GPU's kernel; `CUDA` are NVIDIA's and AMD's.
        named: What the example is called with by name.
    """

    identity: str
    what: str
    overloads: tuple[str, ...]
    run: Callable[..., Any]
    example: Callable[[Any], Arguments]
    supports: Callable[..., bool] = always
    in_place: bool = False
    varies_on_cpu: bool = False
    probed: bool = True
    cpu_key: str = "CPU"
    gpu_key: str = "CUDA"
    named: Mapping[str, Any] = field(default_factory=dict)

    def run_example(self, device: torch.device) -> Any:
        """Call the op as the installed version has it, replaced or not, with the example."""
        op = getattr(torch.ops.aten, self.overloads[0].partition(".")[0])
        return op(*self.example(device), **self.named)


# Whether the installed version needs a replacement on the CPU, found by running the stock op on a small example.

_ALERT = "does not have a deterministic implementation"


@contextmanager
def deterministic_mode() -> Iterator[None]:
    """PyTorch's deterministic mode, for a while; without what the public function sets besides."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch._C._set_deterministic_algorithms(True, warn_only=False)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before[0], warn_only=before[1])


def alerts_on_cpu(patch: Patch) -> bool:
    """Whether the op raises in deterministic mode; not if this version has none of that name."""
    if not patch.probed or not hasattr(torch.ops.aten, patch.overloads[0].partition(".")[0]):
        return False
    with deterministic_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that quantized tensors are deprecated: the program made none
        try:
            patch.run_example(torch.device("cpu"))
        except RuntimeError as error:
            return _ALERT in str(error)
    return False


# The forms of one op: the functional one, the one with `out=`, the one in place; each made from a single implementation.
#
# A kernel gets `out` of any shape, as the stock kernels do: it is resized, with a warning where that loses values. What else
# is wrong with it is for the stock kernel to refuse: then the answer is `NotImplemented`.

Compute = Callable[..., Any]


def output_names(overload: Any) -> list[str]:
    """The names of the arguments that an overload writes its results to; none of them is also read."""
    return [argument.name for argument in overload._schema.arguments if argument.is_out]


def separate(given: tuple[Any, ...], outputs: list[torch.Tensor]) -> bool:
    """Whether what is written shares no memory with what is read, nor with each other."""
    read = [value for value in given if isinstance(value, torch.Tensor)]
    pairs = [(one, two) for number, one in enumerate(outputs) for two in (*read, *outputs[:number])]
    return not any(torch._C._overlaps(one, two) for one, two in pairs)


def writes_its_first_argument(overload: Any) -> bool:
    """Whether an overload works in place."""
    first = overload._schema.arguments[0]
    return bool(first.alias_info is not None and first.alias_info.is_write and not first.is_out)


def form_of(overload: Any, run: Compute, in_place: bool) -> Compute:
    """What computes one overload, made from what computes the op.

    Args:
        overload: An overload of the op.
        run: Computes the op: gives the result, or with `in_place` changes its first argument.
        in_place: How `run` works.
    """
    names = output_names(overload)
    if names:
        return _with_out(run, names, in_place)
    if writes_its_first_argument(overload):
        return _in_place(run, in_place)
    return _functional(run) if in_place else run


def _functional(run: Compute) -> Compute:
    def functional(first: torch.Tensor, *given: Any, **named: Any) -> Any:
        result = first.clone(memory_format=torch.preserve_format)
        run(result, *given, **named)
        return result

    return functional


def _in_place(run: Compute, in_place: bool) -> Compute:
    def changed(first: torch.Tensor, *given: Any, **named: Any) -> Any:
        if in_place:
            run(first, *given, **named)
        else:
            first.copy_(run(first, *given, **named))
        return first

    return changed


def _with_out(run: Compute, names: list[str], in_place: bool) -> Compute:
    functional = _functional(run) if in_place else run

    def written(*given: Any, **named: Any) -> Any:
        outputs = [named.pop(name) for name in names]
        results = functional(*given, **named)
        pairs = list(zip(outputs, results if isinstance(results, tuple) else (results,), strict=True))
        if any(output.dtype != result.dtype or output.device != result.device for output, result in pairs):
            return NotImplemented
        for output, result in pairs:
            _resize(output, result.shape)
            output.copy_(result)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return written


def _resize(output: torch.Tensor, shape: torch.Size) -> None:
    if output.shape == shape:
        return
    if output.numel() > 0:
        warnings.warn(
            f"The output of shape {list(output.shape)} was resized to {list(shape)}, the shape of the result; PyTorch will refuse to.",
            UserWarning,
            stacklevel=2,
        )
    output.resize_(shape)


_KEYS = torch._C.DispatchKey

_in_place_now: set[tuple[str, str]] = set()
"""Overloads and dispatch keys at which a replacement stands now."""


def can_bind() -> bool:
    """Whether this version lets a kernel be kept when it is replaced."""
    return hasattr(torch.library, "get_kernel")


def overloads_in_version(patch: Patch) -> list[str]:
    """The overloads of a patch that the installed version knows, whatever it has kernels for."""
    return [name for name in patch.overloads if _overload(name) is not None]


def bindable(patch: Patch, key: str) -> list[str]:
    """The overloads of a patch that have a kernel of their own at a dispatch key."""
    return [
        name
        for name in overloads_in_version(patch)
        if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)
    ]


def bind(patches: Iterable[Patch], device: str) -> tuple[list[Patch], Callable[[], None]]:
    """Replace the kernels of ops that are not replaced yet.

    Args:
        patches: What to replace.
        device: `cpu` or `gpu`: whose kernels.

    Returns:
        The patches of which something was replaced, and what puts the stock kernels back.
    """
    library = torch.library.Library("aten", "IMPL")
    bound: list[tuple[str, str]] = []
    replaced = []
    for patch in patches:
        where = patch.cpu_key if device == "cpu" else patch.gpu_key
        new = [name for name in bindable(patch, where) if (name, where) not in _in_place_now]
        for name in new:
            _bind_one(library, patch, name, where)
            bound.append((name, where))
        if new:
            replaced.append(patch)
    _in_place_now.update(bound)

    def restore() -> None:
        library._destroy()
        _in_place_now.difference_update(bound)
        bound.clear()

    return replaced, restore


def _overload(name: str) -> Any:
    op, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, op, None), overload or "default", None)


def _bind_one(library: torch.library.Library, patch: Patch, name: str, key: str) -> None:
    overload = _overload(name)
    stock = torch.library.get_kernel(f"aten::{name}", key)
    compute, outputs = form_of(overload, patch.run, patch.in_place), output_names(overload)

    def kernel(keys: Any, *given: Any, **named: Any) -> Any:
        with _as_in_a_kernel():
            inputs = {name: value for name, value in named.items() if name not in outputs}
            fits = separate(given, [named[name] for name in outputs]) and patch.supports(*given, **inputs)
            result = compute(*given, **named) if fits else NotImplemented
        if result is not NotImplemented:
            return result
        return stock.call_boxed(keys, *given, **named)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        library.impl(name, kernel, key, with_keyset=True)


def _guarded_keys() -> Any:
    keys = torch._C.DispatchKeySet(_KEYS.ADInplaceOrView)
    for name in dir(_KEYS):
        if name.startswith("Autocast"):
            keys = keys | torch._C.DispatchKeySet(getattr(_KEYS, name))
    return keys


_EXCLUDED = _guarded_keys()


@contextmanager
def _as_in_a_kernel() -> Iterator[None]:
    """What a kernel calls is neither differentiated nor cast by autocast, nor seen by what watches the program's calls."""
    with (
        torch._C._AutoDispatchBelowAutograd(),
        torch._C._ExcludeDispatchKeyGuard(_EXCLUDED),
        torch._C.DisableTorchFunction(),
    ):
        yield
