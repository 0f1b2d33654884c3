"""Replacements of ops: what they replace, how they compute, what they support; and registering them over stock kernels.

The dispatcher calls a kernel below autograd: PyTorch's own formulas stay, and if a formula calls a replaced backward op, the
replacement runs. The alert of `torch.use_deterministic_algorithms` is raised inside the stock kernel, so the replacement does
not raise it. The stock kernel is kept, and called for arguments that the replacement does not support.
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
    """Accept all arguments that the stock op accepts."""
    return True


@dataclass(frozen=True)
class Patch:
    """A deterministic implementation of one PyTorch op.

    Attributes:
        identity: Short, unique name of the patch.
        what: The user's name for the op.
        overloads: Names in `aten::`, all with the same arguments except `out=`. Those for which the installed version has
            a kernel are replaced.
        run: Computes the result. With `in_place` it changes its first argument instead.
        supports: Whether `run` is correct for the arguments; if not, the stock kernel runs, with its errors and alert.
        example: Makes arguments of the first overload, small and without random numbers, on a device.
        in_place: Whether `run` works in place; the other forms then work on copies.
        varies_on_cpu: Measured to vary on the CPU, with PyTorch's deterministic mode off.
        probed: Whether to run the example on the CPU to see if it raises. False for ops that warn at every call and are
            not known to raise there in any version.
        cpu_key: The dispatch key of the CPU kernel.
        gpu_key: The dispatch key of the GPU kernel; `CUDA` for both NVIDIA and AMD.
        named: The keyword arguments of the example.
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
        """Call the installed op, replaced or not, with the example."""
        op = getattr(torch.ops.aten, self.overloads[0].partition(".")[0])
        return op(*self.example(device), **self.named)


# Whether the installed version needs a replacement on the CPU, found by running the stock op on a small example.

_ALERT = "does not have a deterministic implementation"


@contextmanager
def deterministic_mode() -> Iterator[None]:
    """Switch on PyTorch's deterministic mode temporarily, without the public function's other settings."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch._C._set_deterministic_algorithms(True, warn_only=False)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before[0], warn_only=before[1])


def alerts_on_cpu(patch: Patch) -> bool:
    """Whether the op raises in deterministic mode; False if this version has no such op."""
    if not patch.probed or not hasattr(torch.ops.aten, patch.overloads[0].partition(".")[0]):
        return False
    with deterministic_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that quantized tensors are deprecated: the program made none
        try:
            patch.run_example(torch.device("cpu"))
        except RuntimeError as error:
            return _ALERT in str(error)
    return False


# The forms of one op: functional, with `out=`, and in place; all made from a single implementation.
#
# Like a stock kernel, a replacement gets `out` of any shape and resizes it, with a warning if that loses values. Any
# other error in it is left to the stock kernel: then the result is `NotImplemented`.

Compute = Callable[..., Any]


def output_names(overload: Any) -> list[str]:
    """Return the names of the arguments to which an overload writes its results; none of them is also read."""
    return [argument.name for argument in overload._schema.arguments if argument.is_out]


def separate(given: tuple[Any, ...], outputs: list[torch.Tensor]) -> bool:
    """Whether the outputs share no memory with the inputs or with each other."""
    read = [value for value in given if isinstance(value, torch.Tensor)]
    pairs = [(one, two) for number, one in enumerate(outputs) for two in (*read, *outputs[:number])]
    return not any(torch._C._overlaps(one, two) for one, two in pairs)


def writes_its_first_argument(overload: Any) -> bool:
    """Whether an overload works in place."""
    first = overload._schema.arguments[0]
    return bool(first.alias_info is not None and first.alias_info.is_write and not first.is_out)


def form_of(overload: Any, run: Compute, in_place: bool) -> Compute:
    """Make the implementation of one overload from that of the op.

    Args:
        overload: An overload of the op.
        run: Computes the op: returns the result, or with `in_place` changes its first argument.
        in_place: Whether `run` works in place.
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
            f"The output of shape {list(output.shape)} was resized to {list(shape)}; future versions of PyTorch will not do so.",
            UserWarning,
            stacklevel=2,
        )
    output.resize_(shape)


_KEYS = torch._C.DispatchKey

_in_place_now: set[tuple[str, str]] = set()
"""Overloads and dispatch keys that are currently replaced."""


def can_bind() -> bool:
    """Whether this version lets us keep a kernel that we replace."""
    return hasattr(torch.library, "get_kernel")


def overloads_in_version(patch: Patch) -> list[str]:
    """Return the overloads of a patch that exist in the installed version, with or without kernels."""
    return [name for name in patch.overloads if _overload(name) is not None]


def bindable(patch: Patch, key: str) -> list[str]:
    """Return the overloads of a patch that have their own kernel at a dispatch key."""
    return [
        name
        for name in overloads_in_version(patch)
        if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)
    ]


def bind(patches: Iterable[Patch], device: str) -> tuple[list[Patch], Callable[[], None]]:
    """Replace the kernels of ops that are not replaced yet.

    Args:
        patches: The patches to apply.
        device: `cpu` or `gpu`: whose kernels to replace.

    Returns:
        The patches that replaced any kernel, and a function that restores the stock kernels.
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
    """Run like a kernel: without autograd and autocast, and hidden from what watches the program's calls."""
    with (
        torch._C._AutoDispatchBelowAutograd(),
        torch._C._ExcludeDispatchKeyGuard(_EXCLUDED),
        torch._C.DisableTorchFunction(),
    ):
        yield
