"""The state that PyTorch keeps in tensors and generators, copied so that it can be put back into the same objects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from determinism.frameworks.snapshots import Contents, Order

_STATELESS: tuple[type[Any], ...] = (
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.qscheme, torch.finfo, torch.iinfo),
    *(torch.Stream, torch.Event),
)
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


@dataclass(frozen=True, slots=True)
class GeneratorStates:
    """The states of the default generators, by device type; None for a device that was not in use yet."""

    cpu: torch.Tensor
    devices: dict[str, list[torch.Tensor] | None]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Copy and put back unseen by autograd and by whatever watches ops."""
    with torch.no_grad(), _disable_current_modes():
        yield


def capture_generators() -> GeneratorStates:
    """Copy the states of the default generators of every device in use."""
    devices: dict[str, list[torch.Tensor] | None] = {}
    for name, module in _device_modules():
        in_use = module.is_initialized()
        devices[name] = [_on_cpu(state) for state in module.get_rng_state_all()] if in_use else None
    if torch.backends.mps.is_available():
        devices["mps"] = [_on_cpu(torch.mps.get_rng_state())]
    return GeneratorStates(torch.get_rng_state().clone(), devices)


def restore_generators(states: GeneratorStates | None) -> None:
    """Put the default generators back; those that came into use since then start at their seeds again."""
    if states is None:
        torch.default_generator.manual_seed(torch.default_generator.initial_seed())
        states = GeneratorStates(torch.default_generator.get_state(), {})
    torch.set_rng_state(states.cpu)
    for name, module in _device_modules():
        if not module.is_initialized():
            continue
        saved = states.devices.get(name)
        if saved is not None:
            module.set_rng_state_all(saved)
            continue
        for generator in module.default_generators:
            generator.manual_seed(generator.initial_seed())
    mps = states.devices.get("mps")
    if mps is not None:
        torch.mps.set_rng_state(mps[0])


def contents_of(thing: Any) -> list[Contents] | None:
    """What a tensor, storage or generator holds; None if `thing` is none of them."""
    if isinstance(thing, torch.Tensor):
        return _tensor_contents(thing)
    if isinstance(thing, torch.Generator):
        state = thing.get_state().clone()
        return [Contents(lambda: thing.set_state(state))]
    if isinstance(thing, torch.UntypedStorage):
        return [_storage_contents(thing)]
    if isinstance(thing, torch.TypedStorage):
        return [Contents(children=[("_untyped_storage", thing._untyped_storage)])]
    return [] if isinstance(thing, _STATELESS) else None


def _tensor_contents(tensor: torch.Tensor) -> list[Contents]:
    link = _link_contents(tensor)
    if hasattr(type(tensor), "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        return [link, Contents(children=[(name, getattr(tensor, name)) for name in names])]
    if tensor.layout in _COMPRESSED:
        return [link, _compressed_contents(tensor)]
    if tensor.layout is not torch.strided or tensor.is_nested:
        # Sparse, nested or of another layout: there is no one storage.
        copied = tensor.detach().clone()
        return [link, Contents(lambda: setattr(tensor, "data", copied.clone()), order=Order.ATTRIBUTES)]
    return [link, _view_contents(tensor), Contents(children=[("untyped_storage()", tensor.untyped_storage())])]


def _storage_contents(storage: torch.UntypedStorage) -> Contents:
    """The bytes of a storage, written past autograd: no version changes."""
    size = storage.nbytes()
    copied = None if storage.device.type == "meta" or not size else storage.clone()  # type: ignore[no-untyped-call]

    def restore() -> None:
        if storage.nbytes() != size:
            storage.resize_(size)
        if copied is not None:
            storage.copy_(copied, False)

    return Contents(restore)


def _view_contents(tensor: torch.Tensor) -> Contents:
    """How a tensor looks at its storage, and at which one."""
    alias, function = tensor.detach(), tensor.grad_fn

    def restore() -> None:
        if tensor.grad_fn is not function:
            if function is not None:
                raise RuntimeError("the graph that made it was changed, and a graph cannot be copied")
            tensor.detach_()
        if _view(tensor) != _view(alias):
            tensor.data = alias.detach()

    return Contents(restore, order=Order.ATTRIBUTES)


def _compressed_contents(tensor: torch.Tensor) -> Contents:
    """The memory of a compressed sparse tensor; assigning to `data` does not replace it."""

    def present() -> dict[str, torch.UntypedStorage]:
        return {name: getattr(tensor.detach(), name)().untyped_storage() for name in _COMPRESSED[tensor.layout]}

    storages = present()

    def restore() -> None:
        now = present()
        if any(now[name]._cdata != storage._cdata for name, storage in storages.items()):
            raise RuntimeError("other memory was put into a sparse tensor")

    return Contents(restore, storages.items())


def _link_contents(tensor: torch.Tensor) -> Contents:
    """A tensor's gradient, hooks and `requires_grad`."""
    requires_grad = tensor.requires_grad
    all_hooks = {name: getattr(tensor, name, None) for name in _HOOKS if tensor.is_leaf}
    has_gradient = tensor.is_leaf or tensor.retains_grad
    gradient = tensor.grad if has_gradient else None

    def restore() -> None:
        if tensor.requires_grad != requires_grad:
            tensor.requires_grad_(requires_grad)
        if has_gradient and tensor.grad is not gradient:
            tensor.grad = gradient
        for name, hooks in all_hooks.items():
            if getattr(tensor, name, None) is not hooks:
                setattr(tensor, name, hooks)

    return Contents(restore, [("grad", gradient), *all_hooks.items()], order=Order.HASHED)


def _view(tensor: torch.Tensor) -> tuple[Any, ...]:
    place = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride())
    return (*place, tensor.dtype, tensor.device, tensor.is_conj(), tensor.is_neg())


def _device_modules() -> Iterator[tuple[str, ModuleType]]:
    for name in ("cuda", "xpu"):
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            yield name, module


def _on_cpu(state: torch.Tensor) -> torch.Tensor:
    return state.detach().cpu().clone()
