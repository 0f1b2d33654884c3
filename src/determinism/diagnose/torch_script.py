"""The call of an op of PyTorch as the fields of the script that reproduces it."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping
from typing import Any

from determinism.diagnose.literals import checked_name, real, sizes, whole

TEMPLATE = "reproduce_torch.py.template"
_OP = re.compile(r"(\w+)::(\w+)(?:\.(\w+))?", re.ASCII)
_DEVICE = re.compile(r"[a-z]+", re.ASCII)
_SAME_PLACE = (0,)
_PLACES = (0, 1, 2, 3, 5, 8, 12)
"""Elements by which the inputs are moved where the alignment is what the op varies with."""


def fields(call: Mapping[str, Any], *, moves: bool) -> dict[str, str]:
    """What the template has to be given for a call, besides what every script has.

    Args:
        call: What the capturing run said of the call.
        moves: Whether its buffers shall lie at other alignments in each repeat.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It is no call.
    """
    source = _CallSource(call)
    return {
        "threads": str(whole(call["settings"]["num_threads"])),
        "shifts": repr(_PLACES if moves else _SAME_PLACE),
        "inputs": "\n".join(source.inputs()),
        "written": repr([source.tensor_name(name) for name in call["written"]]),
        "compared": repr([whole(position) for position in call["compared"]]),
        "generators": "".join(f"    {line}\n" for line in source.lines),
        "call": source.call,
        "settings": "\n".join(f"    {line}" for line in _settings(call["settings"])),
    }


class _CallSource:
    """Turns a captured call into Python."""

    def __init__(self, call: Mapping[str, Any]) -> None:
        self.lines: list[str] = []
        """What goes before the call."""
        self.op = call["op"]
        self._tensors: dict[str, Any] = dict(call["tensors"])
        self._add_default_generator(call["default_generator"])
        parts = [self._value(value) for value in call["args"]]
        named = {checked_name(name): self._value(value) for name, value in call["kwargs"].items()}
        if any(keyword.iskeyword(name) for name in named):
            parts.append(f"**{{{', '.join(f'{name!r}: {value}' for name, value in named.items())}}}")
        else:
            parts += [f"{name}={value}" for name, value in named.items()]
        self.call = f"{self._function()}({', '.join(parts)})"

    def inputs(self) -> list[str]:
        """A line per tensor."""
        return [
            f"    {checked_name(name)!r}: (torch.{checked_name(one['dtype'])}, {sizes(one['shape'])!r}, {sizes(one['stride'])!r}, "
            f"{_device(one['device'])!r}, {whole(one['address'])}),"
            for name, one in self._tensors.items()
        ]

    def tensor_name(self, name: Any) -> str:
        """A name, if a tensor has it."""
        if name not in self._tensors:
            raise ValueError(f"no tensor is called {name!r}")
        return checked_name(name)

    def _function(self) -> str:
        found = _OP.fullmatch(self.op)
        if found is None:
            raise ValueError(f"{self.op!r} is no op")
        source = "torch.ops"
        for part in (found[1], found[2], found[3] or "default"):
            # `aten::__and__` is a name, and so is `aten::is`, which cannot be written as an attribute.
            source = f"getattr({source}, {part!r})" if keyword.iskeyword(part) else f"{source}.{checked_name(part)}"
        return source

    def _value(self, value: Any) -> str:
        if value is None or type(value) in (bool, int):
            return repr(value)
        if type(value) is str:
            return ascii(value)
        if type(value) is list:
            return f"[{', '.join(self._value(item) for item in value)}]"
        kinds: dict[str, Callable[[Any], str]] = {
            "tensor": lambda name: f"tensor[{self.tensor_name(name)!r}]",
            "float": lambda text: real(text),
            "complex": lambda parts: f"complex({real(parts[0])}, {real(parts[1])})",
            "dtype": lambda name: f"torch.{checked_name(name)}",
            "layout": lambda name: f"torch.{checked_name(name)}",
            "memory_format": lambda name: f"torch.{checked_name(name)}",
            "device": lambda name: f"torch.device({_device(name)!r})",
        }
        if "generator" in value:
            return self._generator(value)
        ((kind, content),) = value.items()
        return kinds[kind](content)

    def _generator(self, value: Mapping[str, Any]) -> str:
        # A state is read from the beginning of its memory on, wherever the tensor begins: hence the clone.
        variable = f"generator_{len(self.lines)}"
        self.lines.append(f"{variable} = torch.Generator({_device(value['device'])!r})")
        self.lines.append(f"{variable}.set_state(tensor[{self.tensor_name(value['generator'])!r}].clone())")
        return variable

    def _add_default_generator(self, value: Mapping[str, Any] | None) -> None:
        """What the op draws from if it is given no generator."""
        if value is not None:
            device = _device(value["device"])
            function = "torch.set_rng_state" if device == "cpu" else f"torch.{checked_name(device)}.set_rng_state"
            self.lines.append(f"{function}(tensor[{self.tensor_name(value['generator'])!r}].clone())")


def _settings(found: Mapping[str, Any]) -> list[str]:
    precision = found["float32_matmul_precision"]
    if precision not in ("highest", "high", "medium"):
        raise ValueError(f"{precision!r} is no precision")
    return [
        f"torch.use_deterministic_algorithms({bool(found['deterministic_algorithms'])})",
        f"torch.set_float32_matmul_precision({precision!r})",
        f"torch.backends.cudnn.deterministic = {bool(found['cudnn_deterministic'])}",
        f"torch.backends.cudnn.benchmark = {bool(found['cudnn_benchmark'])}",
    ]


def _device(text: Any) -> str:
    if type(text) is not str or _DEVICE.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no device")
    return text
