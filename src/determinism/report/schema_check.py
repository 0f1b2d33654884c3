"""Tells where a document does not have the form that its schema gives: the part of JSON Schema that `report.schema.json` uses.

Keys that the schema does not name are passed over: newer versions may add some.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

_LARGEST_INTEGER = 10**60
"""Beyond any count; what is drawn must fit into a float."""
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}
UNDERSTOOD = frozenset(
    {
        "$defs", "$id", "$ref", "$schema", "additionalProperties", "anyOf", "const", "description", "enum", "items", "maxItems",
        "maximum", "minItems", "minimum", "properties", "required", "title", "type",
    }
)  # fmt: skip
"""The keywords that are looked at, or that say nothing about the form."""


def first_fault(document: Any, schema: dict[str, Any]) -> str | None:
    """Where and how a document is not as its schema says, such as `runs[0].seconds is a string`; None if it is."""
    return next(_faults(document, schema, schema, ""), None)


def _faults(value: Any, schema: dict[str, Any], root: dict[str, Any], place: str) -> Iterator[str]:
    if "$ref" in schema:
        yield from _faults(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, place)
    if "anyOf" in schema:
        yield from _faults(value, _alternative(value, schema["anyOf"]), root, place)
    name = place.lstrip(".") or "the document"
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_is_of(value, kind) for kind in kinds):
            yield f"{name} is {_described(value)}"
            return
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if allowed is not None and value not in allowed:
        yield f"{name} is {_described(value)}"
    if isinstance(value, int | float) and not isinstance(value, bool) and not _is_within(value, schema):
        yield f"{name} is {_described(value)}"
    if isinstance(value, dict):
        yield from _faults_of_object(value, schema, root, place)
    elif isinstance(value, list) and not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        yield f"{name} has {len(value)} items"
    elif isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            yield from _faults(item, schema["items"], root, f"{place}[{number}]")


def _faults_of_object(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], place: str) -> Iterator[str]:
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{f'{place}.{key}'.lstrip('.')} is missing"
    for key, described in schema.get("properties", {}).items():
        if key in value:
            yield from _faults(value[key], described, root, f"{place}.{key}")


def _alternative(value: Any, schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """The alternative that a value is meant to be: each `anyOf` of the schema is null or one other."""
    return next(one for one in schemas if (one.get("type") == "null") is (value is None))


def _is_of(value: Any, kind: str) -> bool:
    return kind == "boolean" if isinstance(value, bool) else isinstance(value, _TYPES[kind])


def _is_within(value: int | float, schema: dict[str, Any]) -> bool:
    if isinstance(value, float):
        fits = math.isfinite(value)
    else:
        fits = abs(value) <= _LARGEST_INTEGER
    return fits and schema.get("minimum", value) <= value <= schema.get("maximum", value)


def _described(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
        return "a number beyond any count"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
