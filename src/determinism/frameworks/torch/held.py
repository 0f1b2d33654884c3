"""What a program keeps: parameters, gradients, buffers and optimizer state, with their names."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from determinism.frameworks.torch.modules import ModulePaths


class Held(NamedTuple):
    """One tensor that the program keeps."""

    kind: str
    """`parameter`, `gradient`, `buffer` or `optimizer state`."""
    name: str
    tensor: torch.Tensor


class HeldTensors:
    """Finds what the program keeps, through the modules it called, its optimizers, and leaves it differentiates."""

    def __init__(self, paths: ModulePaths) -> None:
        self._paths = paths
        self._optimizers: dict[int, weakref.ref[torch.optim.Optimizer]] = {}
        self._leaves: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer stepped."""
        known = self._optimizers.get(id(optimizer))
        if known is None or known() is not optimizer:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)

    def add_leaf(self, tensor: torch.Tensor, describe: Callable[[], str]) -> None:
        """A tensor that requires a gradient and was made by no op was read."""
        known = self._leaves.get(id(tensor))
        if known is None or known[0]() is not tensor:
            self._leaves[id(tensor)] = (weakref.ref(tensor), describe())

    def tensors(self) -> Iterator[Held]:
        """Everything that is kept now, each tensor once, in an order that does not vary."""
        seen: set[int] = set()
        for held in self._all():
            if id(held.tensor) in seen:
                continue
            seen.add(id(held.tensor))
            yield held
            if held.kind == "parameter" and (gradient := _gradient(held.tensor)) is not None:
                yield Held("gradient", held.name, gradient)

    def _all(self) -> Iterator[Held]:
        named: dict[int, str] = {}
        taken: set[str] = set()
        for number, root in enumerate(self._paths.roots(), 1):
            parameters, buffers = [*root.named_parameters()], [*root.named_buffers()]
            names = [name for name, _ in (*parameters, *buffers)]
            # Two outermost modules, of a GAN say, may both have a `0.weight`.
            suffix = "" if taken.isdisjoint(names) else f" of outermost module {number} ({type(root).__name__})"
            taken.update(names)
            for name, parameter in parameters:
                yield Held("parameter", named.setdefault(id(parameter), name + suffix), parameter)
            for name, buffer in buffers:
                yield Held("buffer", name + suffix, buffer)
        for reference in list(self._optimizers.values()):
            if (optimizer := reference()) is not None:
                yield from _of_optimizer(optimizer, named)
        for key, (leaf, name) in list(self._leaves.items()):
            if (tensor := leaf()) is not None:
                yield Held("parameter", name, tensor)
            else:
                del self._leaves[key]


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.grad if tensor.is_leaf else None


def _of_optimizer(optimizer: torch.optim.Optimizer, named: dict[int, str]) -> Iterator[Held]:
    for group_index, group in enumerate(optimizer.param_groups):
        # A parameter that has a name is that one wherever it stands; the others are known by where they stand.
        for index, parameter in sorted(enumerate(group["params"]), key=lambda one: named.get(id(one[1]), "")):
            if not isinstance(parameter, torch.Tensor):
                continue
            name = named.get(id(parameter)) or f"param_groups[{group_index}].params[{index}]"
            yield Held("parameter", name, parameter)
            state = optimizer.state.get(parameter)
            if isinstance(state, dict):
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        yield Held("optimizer state", f"{key} of {name}", value)
