"""Replaces functions by others wherever a module holds them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Function = Callable[..., Any]


def replace_everywhere(pairs: Iterable[tuple[Function, Function]]) -> None:
    """In each loaded module, let what names the first function of a pair name the second.

    TensorFlow's public names are copies of those of its own modules, and so are the names that a program imported: every
    module is looked through for the function itself.
    """
    by_identity = {id(old): (old, new) for old, new in pairs}
    for namespace in _namespaces():
        for name, value in list(vars(namespace).items()):
            pair = by_identity.get(id(value))
            if pair is not None and pair[0] is value:
                _put(namespace, name, pair[1])


def _namespaces() -> Iterator[Any]:
    seen = set()
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        # What wraps a module to warn of deprecated names keeps its own copy of what was asked for once.
        for holder in (module, names.get("_tfmw_wrapped_module")):
            if holder is not None and id(holder) not in seen:
                seen.add(id(holder))
                yield holder


def _put(namespace: Any, name: str, value: Function) -> None:
    vars(namespace)[name] = value
    in_cache = getattr(type(namespace), "_fastdict_key_in", None)
    if in_cache is not None and in_cache(namespace, name):
        type(namespace)._fastdict_insert(namespace, name, value)
