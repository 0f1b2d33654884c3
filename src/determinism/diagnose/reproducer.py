"""Writes a standalone script that shows that an op gives different results on equal inputs.

The script is made from data written by the program's process. Only names that were checked
to be names, and literals, get into the script.
"""

from __future__ import annotations

import base64
import keyword
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template
from typing import Any

from determinism.trace.files import make_private_folder, private

# Turns what a process of the program wrote into Python source: checked names, and literals.

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def checked_name(text: Any) -> str:
    """Return a name unchanged.

    Raises:
        ValueError: It is not a name.
    """
    if type(text) is not str or _NAME.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a name")
    return text


def whole(number: Any) -> int:
    """Return an integer unchanged.

    Raises:
        ValueError: It is not an integer.
    """
    if type(number) is not int:
        raise ValueError(f"{number!r} is not a whole number")
    return number


def sizes(numbers: Any) -> tuple[int, ...]:
    """Return integers as a tuple."""
    return tuple(whole(number) for number in numbers)


def real(text: Any) -> str:
    """Return the source of a number that was written in hexadecimal."""
    number = float.fromhex(text)
    return repr(number) if math.isfinite(number) else f"float({str(number)!r})"


def printable(text: str) -> str:
    """Escape the characters of a text that a terminal would not print as they are."""
    return "".join(part if part.isprintable() else ascii(part)[1:-1] for part in text)


# A TensorFlow op call as the fields of the script that reproduces it.

TENSORFLOW_TEMPLATE = "reproduce_tensorflow.py.template"


def tensorflow_fields(call: Mapping[str, Any]) -> dict[str, str]:
    """Return the template's fields for a call, besides those of every script.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It is not a call.
    """
    tensors: dict[str, Any] = dict(call["tensors"])
    given = [f"{checked_name(argument)}={_given(at, tensors)}" for argument, at in call["arguments"].items()]
    given += [f"{checked_name(attribute)}={_value(value)}" for attribute, value in call["attributes"].items()]
    return {
        "inputs": "\n".join(
            f"    {checked_name(one)!r}: ({checked_name(about['dtype'])!r}, {sizes(about['shape'])!r}),"
            for one, about in tensors.items()
        ),
        "call": f"tf.raw_ops.{checked_name(call['op'])}({', '.join(given)})",
        "settings": "\n".join(f"    {line}" for line in _tensorflow_settings(call["settings"])),
    }


def _given(at: Any, tensors: Mapping[str, Any]) -> str:
    if type(at) is list:
        return f"[{', '.join(_given(one, tensors) for one in at)}]"
    if at not in tensors:
        raise ValueError(f"there is no tensor called {at!r}")
    return f"tensor[{checked_name(at)!r}]"


def _value(value: Any) -> str:
    if value is None or type(value) in (bool, int):
        return repr(value)
    if type(value) is str:
        return ascii(value)
    if type(value) is list:
        return f"[{', '.join(_value(one) for one in value)}]"
    ((kind, content),) = value.items()
    if kind == "float":
        return real(content)
    if kind == "dtype":
        return f"tf.dtypes.as_dtype({checked_name(content)!r})"
    if kind == "shape":
        known = None if content is None else [None if size is None else whole(size) for size in content]
        return f"tf.TensorShape({known!r})"
    raise ValueError(f"{kind!r} is not a kind of value")


def _tensorflow_settings(found: Mapping[str, Any]) -> list[str]:
    lines = [
        f"tf.config.threading.set_{which}_op_parallelism_threads({whole(found[f'{which}_op_threads'])})"
        for which in ("intra", "inter")
    ]
    lines.append(f"tf.config.experimental.enable_tensor_float_32_execution({bool(found['tensor_float_32'])})")
    return [*lines, "tf.config.experimental.enable_op_determinism()"] if found["op_determinism"] else lines


# A call of a compiled JAX function as the fields of the script that reproduces it.

JAX_TEMPLATE = "reproduce_jax.py.template"
PROGRAM_FILE = "program.jax_export"
_JAX_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
)


def jax_fields(call: Mapping[str, Any]) -> dict[str, str]:
    """Return the template's fields for a call, besides those of every script.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It is not a call.
    """
    settings = {name: call["settings"][name] for name in _JAX_SETTINGS}
    flags = call["flags"]
    if type(flags) is not str or not all(type(one) in (bool, str, type(None)) for one in settings.values()):
        raise ValueError("flags and settings are texts and truth values")
    return {
        "inputs": "\n".join(
            f"    {checked_name(one)!r}: ({checked_name(about['dtype'])!r}, {sizes(about['shape'])!r}),"
            for one, about in call["tensors"].items()
        ),
        "custom_calls": ascii([str(one) for one in call["custom_calls"]]),
        "flags": f'import os\n\nos.environ["XLA_FLAGS"] = {flags!a}' if flags else "",
        "settings": "\n".join(f"    jax.config.update({name!r}, {value!a})" for name, value in settings.items()),
    }


# A PyTorch op call as the fields of the script that reproduces it.

TORCH_TEMPLATE = "reproduce_torch.py.template"
_OP = re.compile(r"(\w+)::(\w+)(?:\.(\w+))?", re.ASCII)
_DEVICE = re.compile(r"[a-z]+", re.ASCII)
_SAME_PLACE = (0,)
_PLACES = (0, 1, 2, 3, 5, 8, 12)
"""Offsets, in elements, of the inputs where the op varies with their alignment."""


def torch_fields(call: Mapping[str, Any], *, moves: bool) -> dict[str, str]:
    """Return the template's fields for a call; `moves` changes the alignment of the buffers in each repeat.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It is not a call.
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
        "settings": "\n".join(f"    {line}" for line in _torch_settings(call["settings"])),
    }


class _CallSource:
    """Turns a captured call into Python."""

    def __init__(self, call: Mapping[str, Any]) -> None:
        self.lines: list[str] = []
        """Lines that precede the call."""
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
        """Return one line per tensor."""
        return [
            f"    {checked_name(name)!r}: (torch.{checked_name(one['dtype'])}, {sizes(one['shape'])!r}, {sizes(one['stride'])!r}, "
            f"{_device(one['device'])!r}, {whole(one['address'])}),"
            for name, one in self._tensors.items()
        ]

    def tensor_name(self, name: Any) -> str:
        """Return the name of a tensor, checked to exist."""
        if name not in self._tensors:
            raise ValueError(f"there is no tensor called {name!r}")
        return checked_name(name)

    def _function(self) -> str:
        found = _OP.fullmatch(self.op)
        if found is None:
            raise ValueError(f"{self.op!r} is not an op")
        source = "torch.ops"
        for part in (found[1], found[2], found[3] or "default"):
            # `__and__` is a valid attribute; `is` is not, because it is a keyword.
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
        # A state is read from the start of the tensor's memory, even if the tensor begins later: hence the clone.
        variable = f"generator_{len(self.lines)}"
        self.lines.append(f"{variable} = torch.Generator({_device(value['device'])!r})")
        self.lines.append(f"{variable}.set_state(tensor[{self.tensor_name(value['generator'])!r}].clone())")
        return variable

    def _add_default_generator(self, value: Mapping[str, Any] | None) -> None:
        """Restore the generator that the op draws from if it is given none."""
        if value is not None:
            device = _device(value["device"])
            function = "torch.set_rng_state" if device == "cpu" else f"torch.{checked_name(device)}.set_rng_state"
            self.lines.append(f"{function}(tensor[{self.tensor_name(value['generator'])!r}].clone())")


def _torch_settings(found: Mapping[str, Any]) -> list[str]:
    precision = found["float32_matmul_precision"]
    if precision not in ("highest", "high", "medium"):
        raise ValueError(f"{precision!r} is not a precision")
    return [
        f"torch.use_deterministic_algorithms({bool(found['deterministic_algorithms'])})",
        f"torch.set_float32_matmul_precision({precision!r})",
        f"torch.backends.cudnn.deterministic = {bool(found['cudnn_deterministic'])}",
        f"torch.backends.cudnn.benchmark = {bool(found['cudnn_benchmark'])}",
    ]


def _device(text: Any) -> str:
    if type(text) is not str or _DEVICE.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a device")
    return text


SCRIPT_FILE = "reproduce.py"
INPUTS_FILE = "inputs.safetensors"
_TEMPLATES = Path(__file__).parent


class NotReproducible(Exception):
    """No script can be written; the text gives the reason, to follow "because"."""


def write_reproducer(
    folder: Path, inputs: Path, call: Mapping[str, Any], *, origin: str, seen: str, repeats: int, moves: bool
) -> Path:
    """Write the script and its inputs.

    Args:
        folder: Where to write; it is created.
        inputs: The saved inputs.
        call: What the capturing run wrote about the call.
        origin: Where the call is in the program.
        seen: What was seen there, in a few words.
        repeats: How often the script repeats the op.
        moves: Whether to change the alignment of the buffers in each repeat.

    Returns:
        The script.

    Raises:
        NotReproducible: The form of the call is not supported.
        OSError: The files cannot be written.
    """
    text = script(call, origin=origin, seen=seen, repeats=repeats, moves=moves)
    make_private_folder(folder, exist_ok=True)
    target = folder / INPUTS_FILE
    target.unlink(missing_ok=True)
    try:
        os.link(inputs, target)
    except OSError:
        with inputs.open("rb") as source, open(target, "wb", opener=private) as copy:
            shutil.copyfileobj(source, copy)
    if call.get("framework") == "jax":
        with open(folder / PROGRAM_FILE, "wb", opener=private) as file:
            file.write(_program(call))
    path = folder / SCRIPT_FILE
    with open(path, "w", encoding="utf-8", opener=private) as written:
        written.write(text)
    return path


def _program(call: Mapping[str, Any]) -> bytes:
    """Return the exported function, to be written unchanged and read only by the script.

    Raises:
        NotReproducible: There is none.
    """
    try:
        return base64.b64decode(call["program"], validate=True)
    except (KeyError, TypeError, ValueError) as error:
        raise NotReproducible(f"the capturing run wrote no function ({error!r})") from None


def script(call: Mapping[str, Any], *, origin: str, seen: str, repeats: int, moves: bool) -> str:
    """Return the text of the script; the arguments are those of `write_reproducer`.

    Raises:
        NotReproducible: The form of the call is not supported.
    """
    try:
        if call.get("framework") == "tensorflow":
            template, fields = TENSORFLOW_TEMPLATE, tensorflow_fields(call)
        elif call.get("framework") == "jax":
            template, fields = JAX_TEMPLATE, jax_fields(call)
        else:
            template, fields = TORCH_TEMPLATE, torch_fields(call, moves=moves)
        told = {"op": ascii(str(call["op"])), "origin": ascii(printable(origin)), "seen": ascii(printable(seen))}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotReproducible(f"the capturing run wrote something that is not a call ({error!r})") from None
    text = (_TEMPLATES / template).read_text(encoding="utf-8")
    return Template(text).substitute(fields, **told, repeats=str(repeats))
