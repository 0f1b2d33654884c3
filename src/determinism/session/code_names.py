"""The names that a function's code refers to, its nested functions included."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

_GLOBAL = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_IMPORT = "IMPORT_NAME"


@dataclass(frozen=True, slots=True)
class CodeNames:
    """Names by the way they are looked up."""

    globals: frozenset[str]
    imports: frozenset[str]
    """Modules that the code imports when it runs."""
    attributes: frozenset[str]
    """Every other name: attributes, among them those of modules."""


@lru_cache(maxsize=4096)
def names_in(code: CodeType) -> CodeNames:
    """The names that a code object and those nested in it refer to."""
    globals_: set[str] = set()
    imports: set[str] = set()
    attributes: set[str] = set()
    for part in _with_nested(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname in _GLOBAL:
                globals_.add(instruction.argval)
            elif instruction.opname == _IMPORT:
                imports.add(instruction.argval)
        attributes.update(part.co_names)
    return CodeNames(frozenset(globals_), frozenset(imports), frozenset(attributes))


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    waiting = [code]
    while waiting:
        part = waiting.pop()
        yield part
        waiting.extend(constant for constant in part.co_consts if isinstance(constant, CodeType))
