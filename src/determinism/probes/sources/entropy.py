"""Bytes and names that the system makes up. Fixed, they are made from a count of the uses."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from determinism.probes.source_function import Function, functions
from determinism.probes.stable_text import stable_text
from determinism.probes.use import Use

SOURCE = "entropy"

_uses = itertools.count()


def _seeded(seed: int) -> Any:
    # Not imported before the program does: its folder may have a module of the same name.
    return import_module("random").Random(seed)


def _generator() -> Any:
    return _seeded(next(_uses))


def _noted(use: Use, value: Any) -> Any:
    use.note(lambda: stable_text(value))
    return value


def _bytes(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if not use.is_fixed:
        return _noted(use, function(*arguments, **keywords))
    return _noted(use, _generator().randbytes(arguments[0] if arguments else keywords["size"]))


def _uuid(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if not use.is_fixed:
        return _noted(use, function(*arguments, **keywords))
    uuid = sys.modules["uuid"]
    version = 1 if function is uuid.uuid1 else 4
    return _noted(use, uuid.UUID(int=_generator().getrandbits(128), version=version))


def _secret(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if not use.is_fixed:
        return _noted(use, function(*arguments, **keywords))
    generator, name = _generator(), getattr(function, "__name__", "")
    if name in ("randbelow", "_randbelow_with_getrandbits"):
        return _noted(use, generator.randrange(*arguments, **keywords))
    if name in ("getrandbits", "choice"):
        return _noted(use, getattr(generator, name)(*arguments, **keywords))
    size = next(iter((*arguments, *keywords.values())), None) or 32
    made = generator.randbytes(size)
    if name == "token_bytes":
        return _noted(use, made)
    # The text has two digits for each byte, or four letters for three bytes.
    letters = -(-size * 4 // 3)
    return _noted(use, made.hex() if name == "token_hex" else (made.hex() * 2)[:letters])


def _system_generator(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """A generator that asks the system for each number: it is told by where it was made."""
    use.note(lambda: "0" if use.is_fixed else os.urandom(8).hex())
    return _seeded(0) if use.is_fixed else function(*arguments, **keywords)


def _names() -> Iterator[str]:
    return (f"fixed{number:05}" for number in itertools.count())


def _temporary(use: Use, function: Function, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    tempfile: Any = sys.modules["tempfile"]
    if use.is_fixed and not isinstance(getattr(tempfile, "_name_sequence", None), type(_names())):
        tempfile._name_sequence = _names()
    result = function(*arguments, **keywords)
    named: Any = result[1] if isinstance(result, tuple) else getattr(result, "name", result)
    use.note(lambda: os.path.basename(os.fsdecode(named)))
    return result


FUNCTIONS = (
    *functions(SOURCE, _bytes, "os", "urandom getrandom"),
    *functions(SOURCE, _uuid, "uuid", "uuid1 uuid4"),
    *functions(SOURCE, _secret, "secrets", "token_bytes token_hex token_urlsafe randbelow randbits choice"),
    *functions(SOURCE, _system_generator, "random", "SystemRandom"),
    *functions(SOURCE, _temporary, "tempfile", "mkdtemp mkstemp mktemp NamedTemporaryFile TemporaryDirectory"),
)
