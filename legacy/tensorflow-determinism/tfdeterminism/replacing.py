"""Replaces functions of TensorFlow by others, wherever a module holds them, and puts them back."""

import sys


def replace_everywhere(pairs):
    """In each loaded module, lets what names the first function of a pair name the second.

    TensorFlow's public names are copies of those of its own modules, and so are the names that a program imported
    from it: to find them all, every module is looked through for the function itself.

    Args:
        pairs: (function that is there, function to put in its place), ...

    Returns:
        How many names were changed.
    """
    by_identity = {id(old): (old, new) for old, new in pairs}
    changed = 0
    for namespace in _namespaces():
        for name, value in list(vars(namespace).items()):
            old, new = by_identity.get(id(value), (None, None))
            if old is not None and old is value:
                _put(namespace, name, new)
                changed += 1
    return changed


def _namespaces():
    seen = set()
    for module in list(sys.modules.values()):
        # What wraps a module to warn of deprecated names keeps its own copy of what was asked for once.
        for holder in (module, _wrapped(module)):
            if holder is not None and id(holder) not in seen and isinstance(getattr(holder, "__dict__", None), dict):
                seen.add(id(holder))
                yield holder


def _wrapped(module):
    names = vars(module) if isinstance(getattr(module, "__dict__", None), dict) else {}
    return names.get("_tfmw_wrapped_module") or names.get("_dw_wrapped_module")


def _put(namespace, name, value):
    vars(namespace)[name] = value
    known_to_fast_module = getattr(type(namespace), "_fastdict_key_in", None)
    if known_to_fast_module is not None and known_to_fast_module(namespace, name):
        type(namespace)._fastdict_insert(namespace, name, value)
