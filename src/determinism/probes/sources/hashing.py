"""What depends on hashes and addresses: `hash`, `id`, and the element that `set.pop` takes."""

from __future__ import annotations

import itertools
from typing import Any

from determinism.digest import digest_text
from determinism.probes.set_order import elements_of, in_order
from determinism.probes.source_function import Function, SourceFunction, functions
from determinism.probes.stable_text import FIRST_USES, stable_text
from determinism.probes.use import Use

HASH = "hash"
IDENTITY = "id"
SET_ORDER = "set-order"

_BITS = (1 << 61) - 1
"""Python's hashes are below this number on machines of 64 bits."""
_NUMBERS = (int, float, complex, bool, type(None))
_addresses: dict[int, int] = {}
_next_address = itertools.count(1)


def _hashed(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    result = function(*arguments, **keywords)
    value = arguments[0]
    if use.is_fixed and type(value) not in _NUMBERS:
        text = stable_text(value)
        number = FIRST_USES.use(value) if text is None else None
        if text is not None or number is not None:
            digest = digest_text(f"object:{number}" if text is None else text)
            result = int.from_bytes(digest[:8], "big") % _BITS
    use.note(lambda: str(result))
    return result


def _identified(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    result = function(*arguments, **keywords)
    if use.is_fixed:
        result = _numbered(arguments[0], result)
    use.note(lambda: str(result))
    return result


def _numbered(value: Any, address: int) -> int:
    """The number of an object by its first use: even, or odd where only its address tells it apart from others.

    What comes to lie where another object was is a new one. Which object that is differs from run to run.
    """
    number = FIRST_USES.use(value)
    if number is not None:
        return 2 * (number + 1)
    known = _addresses.get(address)
    if known is None:
        known = _addresses[address] = next(_next_address)
    return 2 * known - 1


def _popped(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    elements = function.__self__  # type: ignore[attr-defined]
    if not use.is_fixed or not elements:
        result = function(*arguments, **keywords)
    else:
        result = in_order(elements)[0]
        elements.remove(result)
    use.note(lambda: stable_text(result), elements=lambda: elements_of([result]).value)
    return result


FUNCTIONS = (
    *functions(HASH, _hashed, "builtins", "hash"),
    *functions(IDENTITY, _identified, "builtins", "id"),
    SourceFunction(SET_ORDER, "builtins", "set.pop", _popped),
)
