"""What PyTorch computes otherwise while a dispatch mode is active; data that the audit found, by version.

A mode is seen by more than its handler. Some formulas of the autograd engine ask whether one is active, and then leave
out what a tensor subclass could not do: other ops, other bits, checks that are not made. And an op that runs ops itself
finds autocast and lazy conjugation switched off below a handler.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DATA = Path(__file__).parent / "data" / "formulas.toml"
BLIND_SPOT = "formula-changed"
"""Says in a program's trace that it ran a formula that could not be kept."""
_NODE = re.compile(r"(\w+)Backward\d+")


@dataclass(frozen=True)
class Formulas:
    """What is known of one version of PyTorch."""

    audited: str
    """The version that the audit was run with."""
    is_audited: bool
    """Whether that is the version asked for; a later digit of it does not matter."""
    nodes: frozenset[str]
    """Nodes of the autograd graph that take another formula, such as `ProdBackward0`."""
    conjugation_inside: frozenset[str]
    """Ops whose own ops miss lazy conjugation below a handler, such as `aten::linalg_pinv`."""
    autocast_inside: frozenset[str]
    """Ops whose own ops miss autocast below a handler, such as `aten::_trilinear`."""
    forward_mode: frozenset[str]
    """Ops whose forward-mode derivative takes another formula, such as `aten::prod`."""

    def makes_node(self, schema_name: str) -> bool:
        """Whether an op's backward may be one of the nodes.

        Args:
            schema_name: Qualified name of the op without its overload, such as `aten::prod`.
        """
        return _camel_case(schema_name.partition("::")[2]) in self._stems

    @property
    def _stems(self) -> frozenset[str]:
        return _stems(self.nodes)


@cache
def formulas_of(version: str, path: Path = DATA) -> Formulas:
    """What is known of a version; of the nearest audited one, if that one was not audited.

    Args:
        version: As `torch.__version__` gives it.
        path: The data.
    """
    with path.open("rb") as file:
        audits = tomllib.load(file)["audit"]
    asked = _release(version)
    nearest = min(audits, key=lambda audit: _distance(_release(audit["torch"]), asked))
    names = {
        key: frozenset(one["name"] for one in nearest.get(key, ()))
        for key in ("node", "conjugation_inside", "autocast_inside", "forward_mode")
    }
    return Formulas(
        audited=nearest["torch"],
        is_audited=_release(nearest["torch"]) == asked,
        nodes=names["node"],
        conjugation_inside=names["conjugation_inside"],
        autocast_inside=names["autocast_inside"],
        forward_mode=names["forward_mode"],
    )


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version that say which formulas it has: the first two."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _distance(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return abs((one[0] - other[0]) * 100 + one[1] - other[1])


@cache
def _stems(nodes: frozenset[str]) -> frozenset[str]:
    return frozenset(match[1] for node in nodes if (match := _NODE.fullmatch(node)))


def _camel_case(name: str) -> str:
    """The name of an op as the names of its nodes begin: `_linalg_eigh` gives `LinalgEigh`."""
    return "".join(word[:1].upper() + word[1:] for word in name.split("_"))
