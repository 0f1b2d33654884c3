"""The state that PyTorch keeps in tensors and generators, copied so that it can be put back into the same objects.

The classes here have the shape that `determinism.session.contents.Contents` describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

_MEMORY, _ATTRIBUTES, _HASHED = range(3)
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


def contents_of(thing: Any) -> list[Any] | None:
    """What a tensor, storage or generator holds; None if `thing` is none of them.

    Args:
        thing: Any object.

    Returns:
        Objects with the shape of `determinism.session.contents.Contents`.
    """
    if isinstance(thing, torch.Tensor):
        return _tensor_contents(thing)
    if isinstance(thing, torch.Generator):
        return [_GeneratorContents(thing)]
    if isinstance(thing, torch.UntypedStorage):
        return [_StorageContents(thing)]
    if isinstance(thing, torch.TypedStorage):
        return [_Held([("_untyped_storage", thing._untyped_storage)])]
    return [] if isinstance(thing, _STATELESS) else None


def _tensor_contents(tensor: torch.Tensor) -> list[Any]:
    contents: list[Any] = [_LinkContents(tensor)]
    if hasattr(type(tensor), "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        return [*contents, _Held([(name, getattr(tensor, name)) for name in names])]
    if tensor.layout in _COMPRESSED:
        return [*contents, _CompressedContents(tensor)]
    if tensor.layout is not torch.strided or tensor.is_nested:
        return [*contents, _WholeContents(tensor)]
    return [*contents, _ViewContents(tensor), _Held([("untyped_storage()", tensor.untyped_storage())])]


class _Held:
    """Objects that another one holds for good."""

    order: int = _MEMORY
    template: str = ".{}"
    rebinds: bool = False

    def __init__(self, parts: list[tuple[object, object]]) -> None:
        self._parts = parts

    def children(self) -> Iterable[tuple[object, object]]:
        return self._parts

    def restore(self, renewed: Callable[[object], object]) -> None:
        """Leave everything as it is."""


class _StorageContents(_Held):
    """The bytes of a storage, written past autograd: no version changes."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        super().__init__([])
        self._storage = storage
        self._bytes = storage.nbytes()
        self._copy = None if storage.device.type == "meta" or not self._bytes else storage.clone()  # type: ignore[no-untyped-call]

    def restore(self, renewed: Callable[[object], object]) -> None:
        if self._storage.nbytes() != self._bytes:
            self._storage.resize_(self._bytes)
        if self._copy is not None:
            self._storage.copy_(self._copy, False)


class _ViewContents(_Held):
    """How a tensor looks at its storage, and at which one."""

    order: int = _ATTRIBUTES

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__([])
        self._tensor = tensor
        self._alias = tensor.detach()
        self._function = tensor.grad_fn

    def restore(self, renewed: Callable[[object], object]) -> None:
        tensor = self._tensor
        if tensor.grad_fn is not self._function:
            if self._function is not None:
                raise RuntimeError("the graph that made it was changed, and a graph cannot be copied")
            tensor.detach_()
        if _view(tensor) != _view(self._alias):
            tensor.data = self._alias.detach()


class _CompressedContents(_Held):
    """The memory of a compressed sparse tensor; assigning to `data` does not replace it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._storages = self._present()
        super().__init__(list(self._storages.items()))

    def restore(self, renewed: Callable[[object], object]) -> None:
        present = self._present()
        if any(present[name]._cdata != storage._cdata for name, storage in self._storages.items()):
            raise RuntimeError("other memory was put into a sparse tensor")

    def _present(self) -> dict[object, torch.UntypedStorage]:
        names = _COMPRESSED[self._tensor.layout]
        return {name: getattr(self._tensor.detach(), name)().untyped_storage() for name in names}


class _WholeContents(_Held):
    """A tensor without one storage: sparse, nested or of another layout."""

    order: int = _ATTRIBUTES

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__([])
        self._tensor = tensor
        self._copy = tensor.detach().clone()

    def restore(self, renewed: Callable[[object], object]) -> None:
        self._tensor.data = self._copy.clone()


class _LinkContents:
    """A tensor's gradient, hooks and `requires_grad`."""

    order: int = _HASHED
    template: str = ".{}"
    rebinds: bool = False

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._requires_grad = tensor.requires_grad
        self._hooks = {name: getattr(tensor, name, None) for name in _HOOKS if tensor.is_leaf}
        self._has_gradient = tensor.is_leaf or tensor.retains_grad
        self._gradient = tensor.grad if self._has_gradient else None

    def children(self) -> Iterable[tuple[object, object]]:
        return [("grad", self._gradient), *self._hooks.items()]

    def restore(self, renewed: Callable[[object], object]) -> None:
        tensor = self._tensor
        if tensor.requires_grad != self._requires_grad:
            tensor.requires_grad_(self._requires_grad)
        if self._has_gradient and tensor.grad is not self._gradient:
            tensor.grad = self._gradient
        for name, hooks in self._hooks.items():
            if getattr(tensor, name, None) is not hooks:
                setattr(tensor, name, hooks)


class _GeneratorContents(_Held):
    """The state of a generator."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__([])
        self._generator = generator
        self._state = generator.get_state().clone()

    def restore(self, renewed: Callable[[object], object]) -> None:
        self._generator.set_state(self._state)


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
