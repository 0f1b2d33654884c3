"""Which module is being called: its path below the outermost called one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import FrameType

import torch

from determinism.frameworks.torch.forward_links import Link
from determinism.sites import NO_STACK, Waiting


class Call(Waiting):
    """One call of a module that has not returned."""

    __slots__ = ("link", "module")

    def __init__(self, frame: FrameType, module: torch.nn.Module, link: Link) -> None:
        super().__init__(frame)
        self.module = module
        self.link = link
        """What the ops of this call are known by: the number of the module's path."""


class _Root:
    """What is known of the modules below an outermost one. Their ids are used again, so each goes with a reference."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.reference = weakref.ref(module)
        self.links: dict[int, tuple[weakref.ref[torch.nn.Module], Link]] = {}
        """Of the modules that were called."""
        self.names: dict[int, tuple[weakref.ref[torch.nn.Module], str]] = {}

    def name(self, module: torch.nn.Module) -> str:
        """The path of a module; one that is called but not registered below the root goes by its class."""
        found = self.names.get(id(module))
        if found is None or found[0]() is not module:
            root = self.reference()
            named = root.named_modules() if root is not None else ()
            self.names = {id(child): (weakref.ref(child), name) for name, child in named}
            found = self.names.get(id(module))
        return found[1] if found is not None and found[0]() is module else f"<{type(module).__name__}>"


class ModulePaths:
    """Follows the module calls of one thread."""

    def __init__(self, number: Callable[[str], int]) -> None:
        """Take the function that gives the number of a path."""
        self.number = number
        self.calls: list[Call] = []
        """The calls that the thread is in, outermost first."""
        self._roots: dict[int, _Root] = {}

    def enter(self, module: torch.nn.Module, frame: FrameType) -> None:
        """A module is called from a frame that waits until it returns."""
        calls = self.calls
        root = self._root(calls[0].module if calls else module)
        known = root.links.get(id(module))
        if known is None or known[0]() is not module:
            link = Link(-1, NO_STACK, self.number(root.name(module)))
            known = root.links[id(module)] = (weakref.ref(module), link)
        calls.append(Call(frame, module, known[1]))

    def _root(self, module: torch.nn.Module) -> _Root:
        root = self._roots.get(id(module))
        if root is None or root.reference() is not module:
            root = self._roots[id(module)] = _Root(module)
        return root

    def roots(self) -> list[torch.nn.Module]:
        """Every living module that was called as the outermost one, in the order of their first calls."""
        for key in [key for key, root in self._roots.items() if root.reference() is None]:
            del self._roots[key]
        return [module for root in self._roots.values() if (module := root.reference()) is not None]

    def leave(self, module: torch.nn.Module) -> None:
        """A module returned or raised; calls that never reported their end go with it."""
        calls = self.calls
        for index in range(len(calls) - 1, -1, -1):
            if calls[index].module is module:
                del calls[index:]
                return
