"""Check the knowledge about ops for mistakes, say how to mend each, and write the files made from it: `make facts`."""

from __future__ import annotations

import json
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

from determinism.knowledge.entries import DATA, OP_FOLDERS, SCHEMA_FILE, VersionRange

SCHEMA = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
KINDS = {
    **dict.fromkeys(OP_FOLDERS, "ops"),
    "frameworks": "framework",
    "settings": "settings",
    "history": "history",
    "myths.toml": "myths",
}
"""The definition in the schema for a file, by the first part of its path."""
MOST_LINES = 450
_SAME = ("framework", "device", "direction", "dtype", "condition", "basis")


def problems(folder: Path = DATA) -> list[str]:
    """The problems in a folder of data, each with its place, the finding and the remedy."""
    found: list[str] = []
    statuses: list[tuple[str, str, dict[str, Any]]] = []
    frameworks = {path.stem for path in (folder / "frameworks").glob("*.toml")}
    for path in sorted(folder.rglob("*.toml")):
        name = path.relative_to(folder).as_posix()
        document, wrong = _read(path, name)
        found += wrong
        if not wrong and KINDS[name.split("/")[0]] == "ops":
            found += _names(name, document, frameworks)
            statuses += [
                (name, op["name"], {"framework": document["framework"], **one})
                for op in document["op"]
                for one in op["status"]
            ]
    return [*found, *_identifiers(statuses), *_ranges(statuses)]


def _read(path: Path, name: str) -> tuple[dict[str, Any], list[str]]:
    """The content of a file, and its problems regardless of other files."""
    kind = KINDS.get(name.split("/")[0])
    if kind is None:
        return {}, [f"{name}: nothing reads this place. Put the file into one of {', '.join(KINDS)}."]
    text = path.read_text(encoding="utf-8")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return {}, [f"{name}: no TOML: {error}. A text of several lines stands between three quotes."]
    wrong = [f"{name}: {violation}" for violation in violations(document, kind)]
    lines = len(text.splitlines())
    if lines > MOST_LINES:
        wrong.append(f"{name}: {lines} lines, more than {MOST_LINES}. Make two families of it.")
    return document, wrong


def violations(document: dict[str, Any], kind: str) -> list[str]:
    """The violations of the schema in a document, each with the schema's description of that place."""
    validator = jsonschema.Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": SCHEMA["$defs"]})
    by_place: dict[str, jsonschema.ValidationError] = {}
    for error in validator.iter_errors(document):
        by_place.setdefault(error.json_path, error)
    return [_explained(error, document) for error in by_place.values()]


def _explained(error: jsonschema.ValidationError, document: dict[str, Any]) -> str:
    schema = error.schema if isinstance(error.schema, dict) else {}
    about = schema.get("description", "")
    return f"{_place(error, document)}: {error.message}.{f' {about}' if about else ''}"


def _place(error: jsonschema.ValidationError, document: dict[str, Any]) -> str:
    """The place of a mistake, by the names of the entries that lead to it."""
    place, words = document, ""
    for part in error.absolute_path:
        place = place[part]
        named = place.get("id", place.get("name", "")) if isinstance(place, dict) else ""
        words += f" > {named}" if named else f"[{part}]" if isinstance(part, int) else f" {part}"
    return f"{error.json_path} ({words.strip()})" if words else error.json_path


def _names(name: str, document: dict[str, Any], frameworks: set[str]) -> Iterator[str]:
    whose = {
        document["framework"],
        *(one["framework"] for op in document["op"] for one in op["status"] if "framework" in one),
    }
    for framework in sorted(whose - frameworks):
        yield f"{name}: there is no framework {framework!r}. Add frameworks/{framework}.toml, or use one of the names there."
    for op, count in Counter(op["name"] for op in document["op"]).items():
        if count > 1:
            yield f"{name}: the op {op!r} is listed {count} times. Move its statuses into one entry."


def _identifiers(statuses: list[tuple[str, str, dict[str, Any]]]) -> Iterator[str]:
    places = defaultdict(list)
    for name, _, one in statuses:
        places[one["id"]].append(name)
    for identifier, names in places.items():
        if len(names) > 1:
            yield f"{', '.join(sorted({*names}))}: the id {identifier!r} is given {len(names)} times. Give the newer status another one."


def _ranges(statuses: list[tuple[str, str, dict[str, Any]]]) -> Iterator[str]:
    same = defaultdict(list)
    for name, op, one in statuses:
        versions = VersionRange(one.get("since"), one.get("until"))
        if not versions.overlaps(versions):
            yield f"{name}: {one['id']} holds for no release: {versions}. `until` is the first one for which it does not hold."
        same[(name, op, *(one.get(key) for key in _SAME))].append((one["id"], versions))
    for (name, op, *_), held in same.items():
        for number, (first, versions) in enumerate(held):
            for second, others in held[number + 1 :]:
                if versions.overlaps(others):
                    yield (
                        f"{name}: {op}: {first} ({versions}) and {second} ({others}) hold for the same release. End the older one with "
                        "`until`, or say with `condition`, `dtype`, `device`, `direction` or `basis` in what they differ."
                    )


def main() -> int:
    """Report the problems; if there are none, write the index and the pages."""
    found = problems()
    for problem in found:
        print(problem, file=sys.stderr)
    if found:
        print(f"{len(found)} to mend under {DATA}.", file=sys.stderr)
        return 1
    from determinism.knowledge.entries import INDEX_FILE, index_text
    from tests.architecture.knowledge_pages import DOCS, PAGES

    INDEX_FILE.write_text(index_text(), encoding="utf-8")
    for name, text in PAGES.items():
        (DOCS / name).write_text(text(), encoding="utf-8")
    print("The data are sound; the index and the pages made from them are written.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
