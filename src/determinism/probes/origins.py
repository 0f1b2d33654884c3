"""Traces a library's objects and functions to the line of the program that made them, for libraries that seed themselves.

A sampler asks for entropy long after the line that made it, and a stage of a pipeline runs when somebody iterates. So the
results of the program's calls into a library are remembered by the line of the call, with the objects that they hold.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

from determinism.probes.rewrite import ProbedSite, parsed
from determinism.source_files import Owner, owner_of, owner_of_module

SEED_PARAMETERS = ("seed", "random_state", "random_seed", "rng_seed", "base_seed", "rng", "generator")
"""Names of parameters that take a seed or a generator; the first that a function has is the one to pass."""

_SEEDING_METHODS = ("seed", "set_seed")

_PARAMETERS = {("optuna.study.study", "create_study"): "sampler"}
"""Parameters that take an object with a seed, by the module and name of the function."""

_PLAIN = frozenset({str, bytes, int, float, complex, bool, type(None), type(...), range, slice, type, types.ModuleType})
_CONTAINERS = (list, tuple, set, frozenset, deque)
_MOST_OBJECTS = 300
_MOST_PARTS = 40
_MOST_KNOWN = 100_000
_MOST_FRAMES = 60


class Origins:
    """The lines of the program that made objects of libraries."""

    def __init__(self) -> None:
        """Begin without any."""
        self._seen: set[str] = set()
        self._owners: dict[str, Owner] = {}
        self._callees: dict[str, Any] = {}
        """The callee in a library, by site."""
        self._sites: dict[tuple[str, int, int], str] = {}
        """Sites by file and end position, which the compiler preserves."""
        self._objects: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._codes: dict[int, list[tuple[str, Sequence[Any]]]] = {}
        """The calls that passed a library's function on, by the identity of its code, with the plain values next to it."""

    @property
    def sites(self) -> Container[str]:
        """The sites at which a library was called."""
        return self._callees.keys()

    def called(self, site: str, function: Any) -> None:
        """Record what a site of the program calls; the first call there decides for all later ones."""
        if site in self._seen:
            return
        self._seen.add(site)
        callee = function.__func__ if type(function) is types.MethodType else function
        if not isinstance(callee, types.FunctionType | type):
            callee = type(callee)
        try:
            if self._owner(callee) is not Owner.LIBRARY:
                return
        except Exception:
            return
        self._callees[site] = callee
        place = parsed(site)
        self._sites[place.file, place.end_line, place.end_column] = site

    def made(self, site: str, value: Any) -> None:
        """Record the result of a call at a site of the program."""
        if site not in self._callees or type(value) in _PLAIN or len(self._objects) >= _MOST_KNOWN:
            return
        left = _MOST_OBJECTS
        waiting: deque[tuple[Any, Sequence[Any]]] = deque([(value, ())])
        try:
            if self._is_known(value):
                # It may be the object that was called: a pipeline that returns itself with a further stage.
                waiting = deque(_with_plain(object.__getattribute__(value, "__dict__").values()))
            while waiting and left:
                left -= 1
                waiting.extend(self._parts(site, *waiting.popleft()))
        except Exception:
            # Another thread changed a container in the meantime.
            return

    def _parts(self, site: str, value: Any, beside: Sequence[Any]) -> Iterator[tuple[Any, Sequence[Any]]]:
        """Remember an object; unless it was known, yield the objects that it holds, with the plain values next to them."""
        kind = type(value)
        if kind in _PLAIN:
            return
        if kind in _CONTAINERS:
            yield from _with_plain(value)
        elif kind is dict:
            yield from _with_plain(value.values())
        elif kind is functools.partial:
            yield from _with_plain((value.func, *value.args, *value.keywords.values()))
        elif kind is types.MethodType:
            yield from ((value.__self__, ()), (value.__func__, ()))
        elif kind is types.GeneratorType:
            self._hand_on(value.gi_code, site, ())
        elif kind is types.FunctionType:
            if self._owner(value) is Owner.LIBRARY:
                self._hand_on(value.__code__, site, beside)
            yield from ((cell.cell_contents, ()) for cell in value.__closure__ or () if _is_filled(cell))
        elif self._owner(kind) is Owner.LIBRARY and self._is_new(site, value):
            try:
                yield from _with_plain(object.__getattribute__(value, "__dict__").values())
            except AttributeError:
                return

    def _hand_on(self, code: types.CodeType, site: str, beside: Sequence[Any]) -> None:
        calls = self._codes.setdefault(id(code), [])
        if len(calls) < _MOST_PARTS:
            calls.append((site, beside))

    def _is_known(self, value: Any) -> bool:
        known = self._objects.get(id(value))
        return known is not None and known[0]() is value

    def _is_new(self, site: str, value: Any) -> bool:
        if self._is_known(value):
            return False
        try:
            self._objects[id(value)] = weakref.ref(value), site
        except TypeError:
            # It allows no weak reference, and must not be kept alive.
            return True
        return True

    def _owner(self, value: Any) -> Owner:
        module = str(getattr(value, "__module__", None) or "")
        known = self._owners.get(module)
        if known is None:
            file = getattr(sys.modules.get(module), "__file__", None)
            known = Owner.FOREIGN if file is None else owner_of_module(module, file)
            self._owners[module] = known
        return known

    def led_to(self, frame: types.FrameType | None) -> dict[str, Any]:
        """The line of the program that caused what a library does now, and how a seed can be passed there.

        Args:
            frame: The library's frame, or one that it called.

        Returns:
            The fields of a note; empty if no line is known.
        """
        try:
            return self._led_to(frame)
        except Exception:
            return {}

    def _led_to(self, frame: types.FrameType | None) -> dict[str, Any]:
        asked: list[types.FrameType] = []
        site: str | None = None
        while frame is not None and len(asked) < _MOST_FRAMES and (owner := owner_of(frame)) is not Owner.USER:
            if owner is Owner.LIBRARY:
                asked.append(frame)
                site = site or self._site_of(frame)
            frame = frame.f_back
        if site is None:
            if frame is None or owner_of(frame) is not Owner.USER:
                return {}
            site = self._sites.get(_end_of(frame))
            if site is None:
                return {"led": _line_of(frame)}
        own = self._unseeded_call(frame, asked)
        if own is not None:
            return own
        if frame is not None and asked and owner_of(frame) is Owner.USER and asked[-1].f_code.co_name != "__init__":
            # No argument seeds it, such as a space that is sampled.
            method = _seeding_method(_own_object(asked[-1]))
            if method is not None:
                known = self._sites.get(_end_of(frame))
                return {"led": _line_of(frame) if known is None else parsed(known).description, "method": method}
        argument, is_declared = self._argument(site, asked)
        found = None if is_declared else self._seeded_by_method(asked)
        if found is not None:
            made_at, method = found
            argument = argument if made_at == site else None
            return {"led": parsed(made_at).description, "argument": argument, "method": method, "is_made": True}
        return {"led": parsed(site).description, "argument": argument, "is_declared": is_declared}

    def _seeded_by_method(self, asked: Sequence[types.FrameType]) -> tuple[str, str] | None:
        """Where the outermost object in use that a method seeds was made, such as a vector of environments, and that method."""
        for frame in reversed(asked):
            own = _own_object(frame)
            method = _seeding_method(own) if self._is_known(own) else None
            if method is not None:
                return self._objects[id(own)][1], method
        return None

    def _unseeded_call(self, frame: types.FrameType | None, asked: list[types.FrameType]) -> dict[str, Any] | None:
        """The line of the program whose call made the library seed itself, if the callee takes a seed and got none.

        A method that takes a seed, such as `reset` of an environment, seeds the object whichever line made it.
        """
        if frame is None or not asked or owner_of(frame) is not Owner.USER:
            return None
        called = asked[-1]
        unset = [
            name
            for name in SEED_PARAMETERS
            if name in _parameters(called.f_code) and _is_unset(called.f_locals.get(name, 0))
        ]
        if not unset:
            return None
        site = self._sites.get(_end_of(frame))
        led = _line_of(frame) if site is None else parsed(site).description
        return {"led": led, "argument": unset[0], "is_declared": True}

    def _site_of(self, frame: types.FrameType) -> str | None:
        """The call that made the object whose method is running, or that passed on the function that is running."""
        code = frame.f_code
        if code.co_argcount:
            first = frame.f_locals.get(code.co_varnames[0])
            known = self._objects.get(id(first))
            if known is not None and known[0]() is first:
                return known[1]
        calls = self._codes.get(id(code), ())
        if len(calls) < 2:
            return calls[0][0] if calls else None
        # Stages of one kind share their code: the frame's is the one whose arguments match best.
        values = [value for value in frame.f_locals.values() if type(value) in _PLAIN]
        return min(calls, key=lambda call: sum(not _is_among(one, values) for one in call[1]))[0]

    def _argument(self, site: str, asked: list[types.FrameType]) -> tuple[str | None, bool]:
        """The parameter that takes a seed, and whether the callee declares it itself or passes it on within `**keywords`."""
        callee = self._callees.get(site)
        known = _PARAMETERS.get((getattr(callee, "__module__", ""), getattr(callee, "__name__", "")))
        if known is not None:
            return known, True
        code = _code_of(callee)
        if code is None:
            return None, False
        for name in SEED_PARAMETERS:
            if name in _parameters(code):
                return name, True
        if code.co_flags & _VARKEYWORDS:
            for frame in asked:
                found = [name for name in SEED_PARAMETERS if name in _parameters(frame.f_code)]
                unset = [name for name in found if frame.f_locals.get(name, 0) is None]
                if unset:
                    return unset[0], False
        return None, False


_VARKEYWORDS = 0x08
"""`inspect.CO_VARKEYWORDS`; `inspect` is not imported before the program does so."""


def _parameters(code: types.CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _code_of(callee: Any) -> types.CodeType | None:
    """The code that takes the arguments of a call."""
    if isinstance(callee, type):
        callee = next((vars(one)["__init__"] for one in callee.__mro__ if "__init__" in vars(one)), None)
    for _ in range(10):
        callee = getattr(callee, "__wrapped__", callee)
    code = getattr(callee, "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def _with_plain(values: Iterable[Any]) -> list[tuple[Any, Sequence[Any]]]:
    """The first of several objects, each with the plain values among them, also those within tuples and dictionaries."""
    parts = list(values)[:_MOST_PARTS]
    plain: list[Any] = []
    for part in parts:
        kind = type(part)
        inner = part if kind is tuple else part.values() if kind is dict else (part,)
        plain.extend(one for one in inner if type(one) in _PLAIN and one is not None)
    return [(part, plain) for part in parts]


def _is_unset(seed: Any) -> bool:
    """Whether no seed was given; a vector of environments has by then replaced None by one None for each of them."""
    return seed is None or (type(seed) in (list, tuple) and bool(seed) and all(one is None for one in seed))


def _own_object(frame: types.FrameType) -> Any:
    """The object whose method is running; None in a function. By convention, the first parameter of a method is `self`."""
    names = frame.f_code.co_varnames
    return frame.f_locals.get("self") if frame.f_code.co_argcount and names[0] == "self" else None


def _seeding_method(value: Any) -> str | None:
    """The name of the method that seeds an object."""
    return next((name for name in _SEEDING_METHODS if callable(getattr(type(value), name, None))), None)


def _is_among(value: Any, values: Sequence[Any]) -> bool:
    return any(type(value) is type(other) and value == other for other in values)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _end_of(frame: types.FrameType) -> tuple[str, int, int]:
    """The file, and the end position of the call that a frame waits for."""
    at = frame.f_lasti // 2
    for number, (_, end_line, _, end_column) in enumerate(frame.f_code.co_positions()):
        if number == at:
            return frame.f_code.co_filename, end_line or 0, end_column or 0
    return frame.f_code.co_filename, 0, 0


def _line_of(frame: types.FrameType) -> dict[str, Any]:
    """The current line of a frame, as a site of unknown columns."""
    line = frame.f_lineno or frame.f_code.co_firstlineno
    function = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
    return ProbedSite(frame.f_code.co_filename, line, 0, line, 0, function, False).description
