"""How the contents of each type are copied."""

from __future__ import annotations

import contextvars
import datetime
import enum
import gc
import io
import logging
import numbers
import operator
import pathlib
import random
import re
import struct
import threading
import types
import uuid
import weakref
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import cached_property, partial, partialmethod
from typing import Any, TypeVar

from determinism.session.arrays import array_contents
from determinism.session.attributes import AttributeContents, SlotContents, slot_names
from determinism.session.contents import (
    BytesContents,
    Contents,
    DequeContents,
    DictContents,
    FactoryContents,
    ListContents,
    Parts,
    SetContents,
)
from determinism.session.framework_state import FrameworkState
from determinism.session.handed_state import (
    context_variable_contents,
    is_value,
    numpy_generator_contents,
    pickled_contents,
    python_generator_contents,
)
from determinism.session.refusals import is_standard_stream

ATOMIC = frozenset({type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range, object})
"""Types whose instances hold nothing; only these very types."""

_STATELESS: tuple[type[Any], ...] = (
    *(enum.Enum, re.Pattern, re.Match, pathlib.PurePath, uuid.UUID, struct.Struct, slice, TypeVar),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo),
    *(types.CodeType, types.TracebackType, types.GenericAlias, types.UnionType, types.ModuleType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType),
    *(types.MethodDescriptorType, types.ClassMethodDescriptorType),
    *(operator.itemgetter, operator.attrgetter, operator.methodcaller),
    *(logging.Logger, logging.LoggerAdapter, logging.Handler, logging.Filter, logging.Formatter, logging.Manager),
)
_VALUES = (numbers.Number, str, bytes)
_STATELESS_NAMES = frozenset(
    {
        *("pyarrow.lib.Array", "pyarrow.lib.ChunkedArray", "pyarrow.lib.DataType", "pyarrow.lib.Field"),
        *("pyarrow.lib.Scalar", "pyarrow.lib.Schema", "pyarrow.lib._Tabular"),
        *(
            "jax.Array",
            "jax._src.random.prng.PRNGKeyArray",
            "jax._src.prng.PRNGKeyArray",
            "triton.runtime.jit.KernelInterface",
            "numpy.generic",
            "numpy.dtype",
            "numpy.ufunc",
        ),
        *("rich.console.Console", "torch._ops.OperatorBase", "torch._ops.OpOverloadPacket"),
        *("torch.library.Library", "_json.Scanner", "_json.Encoder", "_collections._tuplegetter"),
    }
)


def contents_of(thing: Any, frameworks: Sequence[FrameworkState]) -> list[Contents] | None:
    """Copy what an object holds; None if it keeps its state where it cannot be copied."""
    kind = type(thing)
    if issubclass(kind, _STATELESS) or _is_stateless_by_name(kind) or is_standard_stream(thing):
        return []
    for wrapper, parts in _WRAPPERS:
        if issubclass(kind, wrapper):
            return parts(thing)
    own = _own_contents(thing, frameworks)
    if own is None:
        return None
    # What a framework keeps in the attributes of its own objects may be no state of the program's.
    is_whole = any(getattr(part, "is_whole", False) for part in own)
    return own if is_whole else [*own, *_attributes(thing)]


def _own_contents(thing: Any, frameworks: Sequence[FrameworkState]) -> list[Contents] | None:
    """What an object holds beside its attributes; None if it is hidden."""
    kind = type(thing)
    if issubclass(kind, _VALUES):
        return []
    for base, copy in _CONTAINERS:
        if issubclass(kind, base):
            return copy(thing)
    special = array_contents(thing)
    if special is None:
        special = numpy_generator_contents(thing)
    if special is not None:
        return special
    for framework in frameworks:
        contents = framework.contents_of(thing)
        if contents is not None:
            return list(contents)
    return _hidden_contents(thing) if _hides_state(kind) else []


def _hidden_contents(thing: Any) -> list[Contents] | None:
    """What an object of a C type gives to pickle; None for iterators, and for those that give nothing."""
    if hasattr(type(thing), "__next__"):
        return None
    contents = pickled_contents(thing)
    return [] if contents is None and is_value(thing) else contents


def _attributes(thing: Any) -> list[Contents]:
    contents: list[Contents] = []
    attributes = getattr(thing, "__dict__", None)
    if type(attributes) is dict:
        contents.append(AttributeContents(thing, attributes))
    if slot_names(type(thing)):
        contents.append(SlotContents(thing))
    return contents


def _hides_state(kind: type[Any]) -> bool:
    """Whether instances are larger than their attributes account for, which is what pickle asks as well."""
    managed_dict = 1 << 4
    pointers = len(slot_names(kind)) + (kind.__weakrefoffset__ > 0)
    pointers += kind.__dictoffset__ != 0 and not kind.__flags__ & managed_dict
    return kind.__basicsize__ > object.__basicsize__ + pointers * struct.calcsize("P") or kind.__itemsize__ != 0


def _is_stateless_by_name(kind: type[Any]) -> bool:
    return any(f"{base.__module__}.{base.__qualname__}" in _STATELESS_NAMES for base in kind.__mro__)


def _parts(template: str, *names: str) -> Callable[[Any], list[Contents]]:
    def parts(thing: Any) -> list[Contents]:
        return [Parts(template, [(name, getattr(thing, name)) for name in names])]

    return parts


def _referents(thing: Any) -> list[Contents]:
    return [Parts(".<{}>", [("mapping", held) for held in gc.get_referents(thing)])]


def _partial_contents(thing: partial[Any]) -> list[Contents]:
    return [*_parts(".{}", "func", "args", "keywords")(thing), *_attributes(thing)]


def _exception_contents(thing: BaseException) -> list[Contents]:
    return _parts(".{}", "args", "__cause__", "__context__")(thing)


def _sequence(thing: Any) -> list[Contents]:
    return [Parts("[{}]", enumerate(tuple.__iter__(thing) if isinstance(thing, tuple) else thing))]


def _defaultdict_contents(thing: defaultdict[Any, Any]) -> list[Contents]:
    return [DictContents(thing), FactoryContents(thing)]


def _nothing(thing: Any) -> list[Contents]:
    return []


# What only passes on another object: its attributes, if it has any, are those of what it wraps.
_WRAPPERS: tuple[tuple[type[Any] | tuple[type[Any], ...], Callable[[Any], list[Contents]]], ...] = (
    (types.MethodType, _parts(".{}", "__self__", "__func__")),
    ((types.BuiltinFunctionType, types.MethodWrapperType), _parts(".{}", "__self__")),
    ((staticmethod, classmethod), _parts(".{}", "__func__")),
    (property, _parts(".{}", "fget", "fset", "fdel")),
    (cached_property, _parts(".{}", "func")),
    (partialmethod, _parts(".{}", "func", "args", "keywords")),
    (partial, _partial_contents),
    (weakref.ref, lambda thing: [Parts("{}", [("()", thing())])]),
    (weakref.ProxyTypes, lambda thing: [Parts("{}", [("", thing.__repr__.__self__)])]),
    ((types.MappingProxyType, type({}.keys()), type({}.values()), type({}.items())), _referents),
    (memoryview, _parts(".{}", "obj")),
)
_CONTAINERS: tuple[tuple[type[Any] | tuple[type[Any], ...], Callable[[Any], list[Contents] | None]], ...] = (
    (defaultdict, _defaultdict_contents),
    (dict, lambda thing: [DictContents(thing)]),
    (list, lambda thing: [ListContents(thing)]),
    ((tuple, frozenset), _sequence),
    (set, lambda thing: [SetContents(thing)]),
    (deque, lambda thing: [DequeContents(thing)]),
    ((bytearray, array), lambda thing: [BytesContents(thing)]),
    (random.Random, python_generator_contents),
    (contextvars.ContextVar, context_variable_contents),
    (BaseException, _exception_contents),
    (threading.local, _nothing),
    ((io.StringIO, io.BytesIO), pickled_contents),
)
