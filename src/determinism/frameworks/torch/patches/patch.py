"""One op that is replaced: which overloads of it, by what, and where the replacement is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Arguments = tuple[Any, ...]


def always(*given: Any, **named: Any) -> bool:
    """A replacement that takes whatever the stock op takes."""
    return True


@dataclass(frozen=True)
class Patch:
    """A deterministic implementation of one op of PyTorch.

    Attributes:
        identity: Short name of the patch; unique.
        what: The op in the words of the user.
        overloads: Names below `aten::`, all with the same arguments but for `out=`. Those that the installed version has a kernel
            for are replaced.
        run: Computes the result. With `in_place` it changes its first argument instead.
        supports: Whether `run` is right for the arguments; else the stock kernel runs, with its errors and its alert.
        example: Makes arguments of the first overload, small and without random numbers, on a device.
        in_place: Whether `run` works in place; the other forms are then made from copies.
        varies_on_cpu: Measured to vary on the CPU, with PyTorch's deterministic mode off.
        probed: Whether the example is run on the CPU to see if it raises. Not for ops that warn whenever they are called, and for
            which no version is known to raise there.
        cpu_key: The dispatch key of the CPU's kernel.
        gpu_key: The dispatch key of the GPU's kernel; `CUDA` are NVIDIA's and AMD's.
        named: What the example is called with by name.
    """

    identity: str
    what: str
    overloads: tuple[str, ...]
    run: Callable[..., Any]
    example: Callable[[Any], Arguments]
    supports: Callable[..., bool] = always
    in_place: bool = False
    varies_on_cpu: bool = False
    probed: bool = True
    cpu_key: str = "CPU"
    gpu_key: str = "CUDA"
    named: Mapping[str, Any] = field(default_factory=dict)

    def run_example(self, device: torch.device) -> Any:
        """Call the op as the installed version has it, replaced or not, with the example."""
        op = getattr(torch.ops.aten, self.overloads[0].partition(".")[0])
        return op(*self.example(device), **self.named)
