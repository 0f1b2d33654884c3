"""Finds in a program's source which settings it makes itself, by the calls of trainers that make them. The program is read, not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from determinism.knowledge.settings import GROUPS, Effect, Setting, facts_of

_DETERMINISTIC = ("torch.use_deterministic_algorithms", "torch._inductor.config.deterministic")
"""One call sets both."""
_BENCHMARK = "torch.backends.cudnn.benchmark"
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_SEED = "seed"
_EVERYTHING = "*"
"""All settings that can be made once the program runs."""


class Call(NamedTuple):
    """A call that makes settings."""

    name: str
    packages: tuple[str, ...]
    """The program imports one of these, so that it is this call."""
    keyword: str | None
    """The call makes them if this argument is true; None if it always does."""
    settings: tuple[str, ...]
    remark: str = ""


_LIGHTNING = ("lightning", "pytorch_lightning")
_FULL = (*_DETERMINISTIC, "torch.backends.cudnn.deterministic", _BENCHMARK, _CUBLAS)
CALLS = (
    Call("Trainer", _LIGHTNING, "deterministic", (*_DETERMINISTIC, _BENCHMARK, _CUBLAS)),
    Call("seed_everything", (*_LIGHTNING, "lightning_fabric"), None, (_SEED,)),
    Call(
        "TrainingArguments",
        ("transformers",),
        "full_determinism",
        _FULL,
        "seeds when the Trainer is created: a model that was built before is not seeded",
    ),
    Call("enable_full_determinism", ("transformers",), None, (*_FULL, _SEED)),
    Call("set_seed", ("transformers", "accelerate"), None, (_SEED,)),
    Call("DeterminismCallback", ("determinism",), None, (_EVERYTHING,)),
    Call("DeterminismHandler", ("determinism",), None, (_EVERYTHING,)),
    Call("enable", ("determinism",), None, (_EVERYTHING,)),
)
"""What trainers, and this package, offer; as of Lightning 2.6, Transformers 5.24, Accelerate 1.15."""


@dataclass(frozen=True)
class CodeSettings:
    """What a program's source says of settings."""

    lines: tuple[str, ...] = ()
    """Each call with its place and what it makes, in words."""
    made: tuple[tuple[str, str, str | None], ...] = ()
    """Name of each setting, the call with its place, and the mode if it is the one of deterministic algorithms."""

    def applied_to(self, settings: Sequence[Setting], *, warn_only: bool) -> list[Setting]:
        """The settings, of which those that the program makes are not missing.

        Args:
            settings: What was found without the program.
            warn_only: Whether ops should warn rather than raise.
        """
        found = []
        for one in settings:
            places = [
                (place, mode)
                for name, place, mode in self.made
                if name == one.name or (name == _EVERYTHING and _is_made_later(one.name))
            ]
            wanted = (None, "warn" if warn_only else "error")
            right = [place for place, mode in places if mode in wanted or one.name != _DETERMINISTIC[0]]
            if one.effect is Effect.MISSING and right:
                one = replace(one, effect=Effect.PROGRAM, detail=f"{right[-1]} makes it")
            found.append(one)
        return found


def _is_made_later(name: str) -> bool:
    """Whether a setting counts when it is made in the running program."""
    moments = {fact.name: fact.moment for group in GROUPS for fact in facts_of(group)}
    return moments.get(name, "any") in ("any", "device", "collectives") and name != _SEED


def settings_in_code(path: Path) -> CodeSettings:
    """What a file says; nothing if it cannot be read as Python.

    Args:
        path: The script.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return CodeSettings()
    packages = set(_imported(tree))
    lines, made = [], []
    for node in ast.walk(tree):
        call = _known(node, packages)
        if call is None or not isinstance(node, ast.Call):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        value = _constant(given.get(call.keyword or ""))
        if call.keyword is not None and not value:
            continue
        shown = f"{call.keyword}={value!r}" if call.keyword else "..."
        place = f"{call.name}({shown}), {path.name}:{node.lineno}"
        names = list(call.settings)
        if _EVERYTHING in names and (
            node.args or _constant(given.get("seed", ast.Constant(None)), "unknown") is not None
        ):
            names.append(_SEED)
        warns = value == "warn" or _constant(given.get("warn_only")) is True
        made += [
            (name, place, ("warn" if warns else "error") if name in (_EVERYTHING, *_DETERMINISTIC[:1]) else None)
            for name in names
        ]
        words = ", ".join("what the running program can set" if name == _EVERYTHING else name for name in names)
        lines.append(f"{place}: {words}" + (f"; it {call.remark}" if call.remark else ""))
    return CodeSettings(tuple(lines), tuple(made))


def _known(node: ast.AST, packages: set[str]) -> Call | None:
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    if name == "enable" and isinstance(function, ast.Attribute) and getattr(function.value, "id", "") != "determinism":
        return None
    return next((call for call in CALLS if call.name == name and packages.intersection(call.packages)), None)


def _imported(tree: ast.AST) -> Iterator[str]:
    """The first parts of the names of the modules that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _constant(node: ast.expr | None, default: Any = None) -> Any:
    """The value of a literal; the default where there is none, or something that only the running program knows."""
    return node.value if isinstance(node, ast.Constant) else default
