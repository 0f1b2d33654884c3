"""The global random number generators outside of frameworks: Python's and NumPy's.

NumPy is never imported here: a program that has not imported it draws nothing from it.
"""

from __future__ import annotations

import ctypes
import random
import sys
from array import array
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

from determinism.digest import digest_bytes


@dataclass(frozen=True, slots=True)
class GeneratorStates:
    """The states of the global generators at one moment."""

    python: tuple[Any, ...]
    numpy: dict[str, Any] | None
    """None if NumPy's generator did not exist yet."""


class _KnownPython(NamedTuple):
    """The state of Python's generator when it was last digested: most steps do not draw from it."""

    generator: Any
    memory: bytes
    """The memory of the object in CPython, which includes the state."""
    gauss: Any
    """The pending second of two normal numbers that were drawn together, which is a separate attribute."""
    digest: bytes


_last: list[_KnownPython | None] = [None]


def state_digests() -> dict[str, bytes]:
    """Return digests of the global generators' complete states: 16 bytes each, by the generator's name."""
    digests = {"python": _python_digest()}
    numpy_random = _numpy_random()
    if numpy_random is not None:
        digests["numpy"] = _numpy_digest(numpy_random)
    return digests


def _python_digest() -> bytes:
    """Return the digest of the state of Python's generator.

    `getstate` creates 625 numbers, so it is called only if the generator's memory has changed.
    """
    generator = getattr(random.getstate, "__self__", None)
    is_known_kind = type(generator) is random.Random
    # After the object header, such as the reference count.
    size = random.Random.__basicsize__ - object.__basicsize__
    memory = ctypes.string_at(id(generator) + object.__basicsize__, size) if is_known_kind else b""
    gauss = getattr(generator, "gauss_next", None)
    known = _last[0]
    if (
        is_known_kind
        and known is not None
        and known.generator is generator
        and known.memory == memory
        and known.gauss is gauss
    ):
        return known.digest
    version, words, kept = random.getstate()
    digest = digest_bytes(array("I", words).tobytes() + repr((version, kept)).encode())
    # Assigned as one object, since another thread may read it meanwhile.
    _last[0] = _KnownPython(generator, memory, gauss, digest) if is_known_kind else None
    return digest


class _KnownTwister(NamedTuple):
    """The state of NumPy's generator when it was last digested."""

    bit_generator: Any
    words: bytes
    """The content of its memory: the words of the Mersenne Twister and the position among them."""
    digest: bytes


_last_numpy: list[_KnownTwister | None] = [None]


def _numpy_digest(numpy_random: ModuleType) -> bytes:
    """Return the digest of NumPy's state, which is slow to read and so is read only if its memory has changed.

    NumPy documents the address of the state (`BitGenerator.ctypes`), which lacks the pending second of two normal
    numbers that were drawn together. While there is none, a draw leaves one only if it also changes the memory.
    """
    bit_generator = getattr(getattr(numpy_random.get_state, "__self__", None), "_bit_generator", None)
    known = _last_numpy[0]
    if known is not None and known.bit_generator is bit_generator:
        memory = ctypes.string_at(bit_generator.ctypes.state_address, len(known.words))
        if memory == known.words:
            return known.digest
    state = numpy_random.get_state(legacy=False)
    digest = digest_bytes(_numpy_bytes(state))
    # DANGER: `set_state` may restore such a number with the same words; then only draws show it, not this digest.
    inner = state["state"]
    is_known = bit_generator is not None and state["bit_generator"] == "MT19937" and not state["has_gauss"]
    words = inner["key"].tobytes() + int(inner["pos"]).to_bytes(4, sys.byteorder) if is_known else b""
    _last_numpy[0] = _KnownTwister(bit_generator, words, digest) if is_known else None
    return digest


def capture() -> GeneratorStates:
    """Copy the states of the global generators."""
    # NumPy loads this module at first use, and would seed it by the clock after the states were copied.
    getattr(sys.modules.get("numpy"), "random", None)
    numpy_random = _numpy_random()
    state = None if numpy_random is None else numpy_random.get_state(legacy=False)
    return GeneratorStates(random.getstate(), state)


def restore(states: GeneratorStates) -> None:
    """Restore the states of the global generators from `capture`.

    NumPy's generator is left unchanged if it was imported only after `capture`.
    """
    random.setstate(states.python)
    _last_numpy[0] = None
    numpy_random = _numpy_random()
    if numpy_random is not None and states.numpy is not None:
        numpy_random.set_state(states.numpy)


def _numpy_random() -> ModuleType | None:
    # A module that is still being imported has no generator yet.
    module = sys.modules.get("numpy.random")
    return module if hasattr(module, "get_state") else None


def _numpy_bytes(state: dict[str, Any]) -> bytes:
    inner = state["state"]
    key = inner.get("key")
    if key is None:
        return repr(sorted(state.items())).encode()
    rest = (state["bit_generator"], inner.get("pos"), state["has_gauss"], state["gauss"])
    return bytes(key.tobytes()) + repr(rest).encode()
