"""Writes a script that shows, by itself, that an op gives different results on equal inputs.

What the script is made from was written by the process of the program. Nothing of it gets into the script but as a name
that was checked to be one, or as a literal.
"""

from __future__ import annotations

import keyword
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template
from typing import Any

SCRIPT_FILE = "reproduce.py"
INPUTS_FILE = "inputs.safetensors"
_TEMPLATE = Path(__file__).with_name("reproduce.py.template")
_OP = re.compile(r"(\w+)::(\w+)(?:\.(\w+))?", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_DEVICE = re.compile(r"[a-z]+", re.ASCII)
_SAME_PLACE = (0,)
_PLACES = (0, 1, 2, 3, 5, 8, 12)
"""Elements by which the inputs are moved where the alignment is what the op varies with."""


class NotReproducible(Exception):
    """No script can be written; the text says why, and goes on from "because"."""


def write_reproducer(
    folder: Path, inputs: Path, call: Mapping[str, Any], *, origin: str, seen: str, repeats: int, moves: bool
) -> Path:
    """Write the script and its inputs.

    Args:
        folder: Where; it is made.
        inputs: The saved inputs.
        call: What the capturing run said of the call.
        origin: Where the call is in the program.
        seen: What was seen there, in a few words.
        repeats: How often the script repeats the op.
        moves: Whether its buffers shall lie at other alignments in each repeat.

    Returns:
        The script.

    Raises:
        NotReproducible: The call is not of a form that a script could be written for.
        OSError: The files cannot be written.
    """
    text = script(call, origin=origin, seen=seen, repeats=repeats, moves=moves)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / INPUTS_FILE
    target.unlink(missing_ok=True)
    try:
        os.link(inputs, target)
    except OSError:
        shutil.copyfile(inputs, target)
    path = folder / SCRIPT_FILE
    path.write_text(text, encoding="utf-8")
    return path


def script(call: Mapping[str, Any], *, origin: str, seen: str, repeats: int, moves: bool) -> str:
    """The text of the script; the arguments are those of `write_reproducer`.

    Raises:
        NotReproducible: The call is not of a form that a script could be written for.
    """
    try:
        source = _CallSource(call)
        fields = {
            "op": ascii(source.op),
            "origin": ascii(_printable(origin)),
            "seen": ascii(_printable(seen)),
            "threads": str(_whole(call["settings"]["num_threads"])),
            "shifts": repr(_PLACES if moves else _SAME_PLACE),
            "inputs": "\n".join(source.inputs()),
            "written": repr([source.tensor_name(name) for name in call["written"]]),
            "compared": repr([_whole(position) for position in call["compared"]]),
            "generators": "".join(f"    {line}\n" for line in source.lines),
            "call": source.call,
            "repeats": str(repeats),
            "settings": "\n".join(f"    {line}" for line in _settings(call["settings"])),
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotReproducible(f"the capturing run wrote what is no call ({error!r})") from None
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(fields)


class _CallSource:
    """Turns a captured call into Python."""

    def __init__(self, call: Mapping[str, Any]) -> None:
        self.lines: list[str] = []
        """What goes before the call."""
        self.op = call["op"]
        self._tensors: dict[str, Any] = dict(call["tensors"])
        self._add_default_generator(call["default_generator"])
        parts = [self._value(value) for value in call["args"]]
        named = {_name(name): self._value(value) for name, value in call["kwargs"].items()}
        if any(keyword.iskeyword(name) for name in named):
            parts.append(f"**{{{', '.join(f'{name!r}: {value}' for name, value in named.items())}}}")
        else:
            parts += [f"{name}={value}" for name, value in named.items()]
        self.call = f"{self._function()}({', '.join(parts)})"

    def inputs(self) -> list[str]:
        """A line per tensor."""
        return [
            f"    {_name(name)!r}: (torch.{_name(one['dtype'])}, {_sizes(one['shape'])!r}, {_sizes(one['stride'])!r}, "
            f"{_device(one['device'])!r}, {_whole(one['address'])}),"
            for name, one in self._tensors.items()
        ]

    def tensor_name(self, name: Any) -> str:
        """A name, if a tensor has it."""
        if name not in self._tensors:
            raise ValueError(f"no tensor is called {name!r}")
        return _name(name)

    def _function(self) -> str:
        found = _OP.fullmatch(self.op)
        if found is None:
            raise ValueError(f"{self.op!r} is no op")
        source = "torch.ops"
        for part in (found[1], found[2], found[3] or "default"):
            # `aten::__and__` is a name, and so is `aten::is`, which cannot be written as an attribute.
            source = f"getattr({source}, {part!r})" if keyword.iskeyword(part) else f"{source}.{_name(part)}"
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
            "float": lambda text: _float(text),
            "complex": lambda parts: f"complex({_float(parts[0])}, {_float(parts[1])})",
            "dtype": lambda name: f"torch.{_name(name)}",
            "layout": lambda name: f"torch.{_name(name)}",
            "memory_format": lambda name: f"torch.{_name(name)}",
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
            function = "torch.set_rng_state" if device == "cpu" else f"torch.{_name(device)}.set_rng_state"
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


def _name(text: Any) -> str:
    if type(text) is not str or _NAME.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no name")
    return text


def _device(text: Any) -> str:
    if type(text) is not str or _DEVICE.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no device")
    return text


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise ValueError(f"{number!r} is no whole number")
    return number


def _sizes(numbers: Any) -> tuple[int, ...]:
    return tuple(_whole(number) for number in numbers)


def _float(text: Any) -> str:
    number = float.fromhex(text)
    return repr(number) if math.isfinite(number) else f"float({str(number)!r})"


def _printable(text: str) -> str:
    """A text of which a terminal prints every character as it is."""
    return "".join(part if part.isprintable() else ascii(part)[1:-1] for part in text)
