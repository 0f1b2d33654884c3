"""One op that is replaced: which overloads of it, by what, and where the replacement is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
        cpu_key: The dispatch key of the CPU's kernel.
    """

    identity: str
    what: str
    overloads: tuple[str, ...]
    run: Callable[..., Any]
    example: Callable[[Any], Arguments]
    supports: Callable[..., bool] = always
    in_place: bool = False
    varies_on_cpu: bool = False
    cpu_key: str = "CPU"
