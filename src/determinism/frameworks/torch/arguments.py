"""The arguments of an op that are no tensors, as a key that is quick to make and a text that is exact."""

from __future__ import annotations

import marshal
from collections.abc import Callable
from typing import Any

import torch

from determinism.digest import digest_text
from determinism.frameworks.torch.op_traits import OpTraits

_MAX_TEXT = 2000
_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_PLAIN = (int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def _is_bare(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, torch.Generator))


def argument_key(op: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """A hashable key; two calls of an op have equal keys only if their arguments have the same types and bits.

    Tensors and generators count by their place only: they are recorded on their own.

    Args:
        op: Number of the op.
        args: The positional arguments.
        kwargs: The others.
    """
    # A Python number may stand in the place of any tensor, also of the first.
    values = [... if type(value) in _TENSORS else value for value in args]
    try:
        # Bytes tell 1, 1.0 and True apart, and 0.0 from -0.0. Version 2 writes equal values as equal bytes.
        return op, marshal.dumps((values, kwargs) if kwargs else values, 2)
    except ValueError:
        # dtypes, devices, lists of tensors and the like.
        key: list[Any] = [op]
        _extend(key, values)
        for name, value in kwargs.items():
            key.append(name)
            _extend(key, value)
        return tuple(key)


def _extend(key: list[Any], value: Any) -> None:
    kind = type(value)
    if kind is int:
        key.append(value)
    elif kind is list or kind is tuple or kind is torch.Size:
        key.append(kind)
        key.append(len(value))
        for item in value:
            _extend(key, item)
    elif kind is float or kind is complex:
        # 0.0 == -0.0 == 0 and nan != nan: only the text tells floats apart.
        key.append(kind)
        key.append(repr(value))
    elif _is_bare(value):
        key.append(torch.Tensor)
    elif isinstance(value, _PLAIN):
        key.append(kind)
        key.append(value)
    else:
        key.append(kind)
        key.append(_opaque(value))


def _opaque(value: Any) -> str:
    """Objects without a value of their own; an address would differ in every run."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return str(value)
    return type(value).__qualname__


def argument_text(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments as a person would write them; long ones are cut and end with a digest of the whole."""
    parts = []
    for position, value in enumerate(args):
        if not _is_bare(value):
            name = names[position] if position < len(names) else str(position)
            parts.append(f"{name}={value_text(value)}")
    parts += [f"{name}={value_text(value)}" for name, value in kwargs.items() if not _is_bare(value)]
    text = ", ".join(parts)
    if len(text) > _MAX_TEXT:
        return f"{text[:_MAX_TEXT]} … {digest_text(text).hex()}"
    return text


def value_text(value: Any) -> str:
    """A plain value exactly; of anything else the type, as addresses differ in every run."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(value_text(item) for item in value) + "]"
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, (*_PLAIN, float, complex)):
        return repr(value)
    return _opaque(value)


class ArgumentTable:
    """Numbers the arguments of calls."""

    _MAX_KEYS = 20_000

    def __init__(self, add: Callable[[str], int]) -> None:
        """Take the function that writes a text and gives its number."""
        self._add = add
        self._numbers: dict[tuple[Any, ...], int] = {}

    def number(self, op: int, traits: OpTraits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """The number of the text of these arguments; -1 if there are none."""
        if not kwargs:
            for value in args:
                if type(value) not in _TENSORS:
                    break
            else:
                return -1
        key = argument_key(op, args, kwargs)
        number = self._numbers.get(key)
        if number is None:
            text = argument_text(traits.argument_names, args, kwargs)
            number = self._add(text) if text else -1
            if len(self._numbers) >= self._MAX_KEYS:
                # Forgetting keeps memory bounded; the same text may then get a second number.
                self._numbers.clear()
            self._numbers[key] = number
        return number

    def text_number(self, text: str) -> int:
        """The number of a text that is not made from a call."""
        number = self._numbers.get((text,))
        if number is None:
            number = self._numbers[(text,)] = self._add(text)
        return number
