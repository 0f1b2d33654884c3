"""Which module is being called: its path below the outermost called one."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from determinism.frameworks.torch.compiler import leave_alone
from determinism.frameworks.torch.forward_links import Link
from determinism.frameworks.torch.wrapping import Undo, wrap
from determinism.sites import NO_STACK
from determinism.types import Phase


class Call(NamedTuple):
    """One call of a module that has not returned."""

    module: torch.nn.Module
    link: Link
    """What the ops of this call are known by: the number of the module's path."""


class ModulePaths:
    """Follows the module calls of the thread that it is made in."""

    def __init__(self, add: Callable[[str], int]) -> None:
        """Take the function that writes a path and gives its number."""
        self._add = add
        self._numbers: dict[str, int] = {}
        self.calls: list[Call] = []
        """The calls that the recorded thread is in, outermost first."""
        self.thread = threading.get_ident()
        self._paths: dict[int, tuple[weakref.ref[torch.nn.Module], dict[int, str]]] = {}
        self._roots: dict[int, weakref.ref[torch.nn.Module]] = {}

    def enter(self, module: torch.nn.Module) -> None:
        """A module is called."""
        calls = self.calls
        root = calls[0].module if calls else module
        if not calls:
            self._add_root(module)
        calls.append(Call(module, Link(-1, NO_STACK, self.number(self._path(root, module)))))

    def _add_root(self, module: torch.nn.Module) -> None:
        known = self._roots.get(id(module))
        if known is None or known() is not module:
            self._roots[id(module)] = weakref.ref(module)

    def roots(self) -> list[torch.nn.Module]:
        """Every living module that was called as the outermost one, in the order of their first calls."""
        for key in [key for key, reference in self._roots.items() if reference() is None]:
            del self._roots[key]
            self._paths.pop(key, None)
        return [module for reference in self._roots.values() if (module := reference()) is not None]

    def leave(self, module: torch.nn.Module) -> None:
        """A module returned or raised; calls that never reported their end go with it."""
        calls = self.calls
        for index in range(len(calls) - 1, -1, -1):
            if calls[index].module is module:
                del calls[index:]
                return

    def number(self, path: str) -> int:
        """The number of a path."""
        number = self._numbers.get(path)
        if number is None:
            number = self._numbers[path] = self._add(path)
        return number

    def _path(self, root: torch.nn.Module, module: torch.nn.Module) -> str:
        known = self._paths.get(id(root))
        if known is None or known[0]() is not root or id(module) not in known[1]:
            names = {id(child): name for name, child in root.named_modules()}
            # A module that is called but not registered below the root goes by its class.
            names.setdefault(id(module), f"<{type(module).__name__}>")
            known = self._paths[id(root)] = (weakref.ref(root), names)
        return known[1][id(module)]


def install(
    paths: ModulePaths,
    set_phase: Callable[[Phase], None],
    returned: Callable[[torch.nn.Module, Any, Any], None] | None,
) -> Undo:
    """Follow every module call.

    `Module.__call__` is wrapped. Global hooks would do the same, but they take Dynamo off its usual way, make it warn
    on the program's error stream, and cost more.

    Args:
        paths: What is kept up to date.
        set_phase: Called with `FORWARD` when an outermost module is called.
        returned: Called with module, arguments and output when a module returns, before it is left.

    Returns:
        What takes the wrapper off.
    """

    def around(original: Callable[..., Any], module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != paths.thread:
            return original(module, *args, **kwargs)
        if not paths.calls:
            set_phase(Phase.FORWARD)
        paths.enter(module)
        try:
            output = original(module, *args, **kwargs)
            if returned is not None:
                returned(module, (args, kwargs), output)
            return output
        finally:
            paths.leave(module)

    undo = wrap(torch.nn.Module, "__call__", around)
    for passing in (around, torch.nn.Module.__call__):
        leave_alone(passing, with_callees=False)
    for own in (ModulePaths.enter, ModulePaths.leave, set_phase, returned):
        if own is not None:
            leave_alone(getattr(own, "__func__", own))
    return undo
