"""Puts implementations in the place of stock kernels, at PyTorch's dispatcher, and takes them out again.

The dispatcher calls a kernel below autograd: PyTorch's own formulas stay, and where one calls a backward op that is replaced, the
replacement runs. An alert (`torch.use_deterministic_algorithms`) is raised within the stock kernel, so what takes its place does
not raise it. The stock kernel is kept and called where a replacement does not fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from determinism.frameworks.torch.patches.forms import form_of, output_names, separate
from determinism.frameworks.torch.patches.patch import Patch

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
