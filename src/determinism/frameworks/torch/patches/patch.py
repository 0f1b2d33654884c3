"""One op that is replaced: which overloads of it, by what, where the replacement is right, and whether the installed version needs it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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


# Whether the installed version needs a replacement on the CPU, found by running the stock op on a small example.

_ALERT = "does not have a deterministic implementation"


@contextmanager
def deterministic_mode() -> Iterator[None]:
    """PyTorch's deterministic mode, for a while; without what the public function sets besides."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch._C._set_deterministic_algorithms(True, warn_only=False)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before[0], warn_only=before[1])


def alerts_on_cpu(patch: Patch) -> bool:
    """Whether the op raises in deterministic mode."""
    if not patch.probed:
        return False
    with deterministic_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that quantized tensors are deprecated: the program made none
        try:
            patch.run_example(torch.device("cpu"))
        except RuntimeError as error:
            return _ALERT in str(error)
    return False
