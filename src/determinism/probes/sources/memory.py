"""Arrays that are made without being filled: they hold what was in memory before. Fixed, they hold zeros."""

from __future__ import annotations

from typing import Any

from determinism.digest import digest_bytes
from determinism.probes.source_function import Function, functions
from determinism.probes.use import Use

SOURCE = "uninitialized-array"

_MOST_BYTES = 1 << 20


def _array(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    result = function(*arguments, **keywords)
    if use.is_fixed:
        result.fill(0)
    use.note(lambda: _bytes_text(result))
    return result


def _bytes_text(array: Any) -> str | None:
    if array.dtype.hasobject or array.nbytes > _MOST_BYTES:
        return None
    return f"memory {digest_bytes(array.tobytes()).hex()}"


def _tensor(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """The recorder sees by itself what tensors hold, and whether it is read."""
    result = function(*arguments, **keywords)
    if use.is_fixed:
        result.detach().zero_()
    return result


FUNCTIONS = (
    *functions(SOURCE, _array, "numpy", "empty empty_like"),
    *functions(SOURCE, _tensor, "torch", "empty empty_like empty_strided Tensor.new_empty"),
)
