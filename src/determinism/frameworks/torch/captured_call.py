"""A call of an op as data: its arguments as JSON, and the tensors among them with their places in memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from determinism.frameworks.torch.edges import written_arguments
from determinism.frameworks.torch.generators import generator_of
from determinism.frameworks.torch.op_traits import OpTraits
from determinism.frameworks.torch.settings import computing_settings
from determinism.frameworks.torch.tensor_bytes import is_plain
from determinism.frameworks.torch.tensor_copies import alignment_of
from determinism.trace.tensor_file import StoredTensor, write_tensors

_BUILT_IN = frozenset({"aten", "prims", "mkldnn", "mkldnn_prepacked", "onednn", "quantized", "sparse"})
"""Namespaces of ops that PyTorch brings; others need a package that registers them."""
_STORED = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
    torch.complex64: "F32", torch.complex128: "F64",
}  # fmt: skip
"""Names of the format safetensors. Complex numbers are stored as two; other types as their bytes."""
_NAMED = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}


class CapturedCall:
    """The arguments of one call."""

    def __init__(self, traits: OpTraits, args: Any, kwargs: Any) -> None:
        """Write down arguments.

        Args:
            traits: Of the op.
            args: The positional arguments.
            kwargs: The others.
        """
        self.problem: str | None = None
        """Why the call could not be made again from this; goes on from "because"."""
        self.tensors: dict[str, torch.Tensor] = {}
        """By names made from those of the parameters."""
        op, names = traits.name, traits.argument_names
        if op.partition("::")[0] not in _BUILT_IN:
            self.problem = f"{op} is not part of PyTorch: it exists only where the package that defines it is loaded"
        self._op = op
        self._args = [
            self._node(value, names[position] if position < len(names) else f"argument_{position}")
            for position, value in enumerate(args)
        ]
        self._kwargs = {name: self._node(value, name) for name, value in kwargs.items()}
        self._written = [
            self.name_of(tensor)
            for target in written_arguments(traits, args, kwargs)
            for tensor in (target if isinstance(target, (list, tuple)) else [target])
            if tensor is not None
        ]
        given = (*args, *kwargs.values())
        is_given = any(isinstance(value, torch.Generator) for value in given)
        generator = generator_of(args, kwargs) if traits.draws and not is_given else None
        self._generator = None if generator is None else self._node(generator, "default_generator")

    def document(self) -> dict[str, Any]:
        """The call as JSON."""
        return {
            "op": self._op,
            "args": self._args,
            "kwargs": self._kwargs,
            "tensors": {name: _layout(tensor) for name, tensor in self.tensors.items()},
            "written": self._written,
            "default_generator": self._generator,
            "settings": computing_settings(),
        }

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """The name of a tensor among the arguments."""
        return next((name for name, known in self.tensors.items() if known is tensor), None)

    def _node(self, value: Any, name: str) -> Any:
        """A value as JSON: what JSON does not have is a dictionary with one key, which tells what it is."""
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return {"float": value.hex()}
        if type(value) is complex:
            return {"complex": [value.real.hex(), value.imag.hex()]}
        if isinstance(value, torch.Tensor):
            return {"tensor": self._tensor(value, name)}
        if isinstance(value, (list, tuple)):
            return [self._node(item, f"{name}_{index}") for index, item in enumerate(value)]
        if isinstance(value, torch.device):
            return {"device": value.type}
        if isinstance(value, torch.Generator):
            state = value.get_state()
            return {"generator": self._tensor(state, f"{name}_state"), "device": value.device.type}
        kind = _NAMED.get(type(value))
        if kind is None:
            self.problem = f"its argument {name} is of type {type(value).__qualname__}"
            return None
        return {kind: str(value).removeprefix("torch.")}

    def _tensor(self, tensor: torch.Tensor, name: str) -> str:
        if not is_saveable(tensor):
            self.problem = f"its argument {name} is a sparse, quantized or nested tensor"
            return name
        known = self.name_of(tensor)
        if known is None:
            known = name if name not in self.tensors else f"{name}_{len(self.tensors)}"
            self.tensors[known] = tensor
        return known


def is_saveable(tensor: torch.Tensor) -> bool:
    """Whether a tensor has elements that can be written one after the other."""
    return is_plain(tensor) and not tensor.is_quantized


def save(path: Path, tensors: Mapping[str, torch.Tensor], *, about: str) -> None:
    """Write tensors to a file of safetensors.

    Raises:
        OSError: It cannot be written.
    """
    write_tensors(path, {name: stored(tensor) for name, tensor in tensors.items()}, about={"about": about})


def stored(tensor: torch.Tensor) -> StoredTensor:
    """The elements of a tensor in the order of its indices; of a dimension that repeats them, they are there once."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    shape = tuple(1 if size and not stride else size for size, stride in zip(*_sizes(tensor), strict=True))
    tensor = tensor.as_strided(shape, tensor.stride(), tensor.storage_offset()).cpu().contiguous()
    kind = _STORED.get(tensor.dtype)
    if tensor.is_complex():
        shape += (2,)
    elif kind is None:
        kind, shape = "U8", (*shape, tensor.element_size())
    return StoredTensor(kind or "U8", shape, _memory(tensor))


def _sizes(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(tensor.shape), tensor.stride()


def _memory(tensor: torch.Tensor) -> memoryview:
    if not tensor.nbytes:
        return memoryview(b"")
    block: Any = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    # What the view lies over must live as long as the view.
    block.tensor = tensor
    return memoryview(block).cast("B")


def _layout(tensor: torch.Tensor) -> dict[str, Any]:
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "address": alignment_of(tensor) if tensor.numel() else 0,
        "device": tensor.device.type,
    }
