"""The JSON document of a comparison; `report.schema.json` next to this file is its published schema."""

from __future__ import annotations

import json
import math
import os
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from determinism.comparison.divergence import (
    Dataflow,
    Divergence,
    Evidence,
    FlowNode,
    InputDifference,
    OutputDifference,
    StepHistory,
)
from determinism.comparison.result import Comparison, FileChange, Missing, Parting, Recorded, ValuesApart
from determinism.environment import Part, part_of
from determinism.errors import UsageError
from determinism.redaction import redacted, redacted_code
from determinism.report.entries import (
    Section,
    answer,
    cause_document,
    fields_of,
    fix_document,
    headline,
    with_fixes_for_times,
)
from determinism.report.notes import with_command_and_files
from determinism.report.sections import batch_document, narrowing_document
from determinism.report.story import compose, story_document
from determinism.trace.schema import Frame

# Writes a report to the file that an option names.


def write_report(path: Path, text: str, option: str, *, mode: int = 0o666) -> None:
    """Write a report; an existing file is replaced completely or not at all.

    Args:
        path: The file. A link, a device or a pipe is written to, not replaced.
        text: What to write.
        option: The option that named the file, such as `--json`.
        mode: Permissions of a new file, before the umask.

    Raises:
        UsageError: The file cannot be written; its previous content is intact.
    """
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            # Replacing a link, a device or a pipe would destroy it, for example `--json /dev/null` as root.
            path.write_text(text, encoding="utf-8")
        else:
            _replace(path, text, mode)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            "report-unwritable",
            f"The report cannot be written to {path} ({reason}), so {option} wrote nothing. "
            f"Give {option} a file in a folder that exists and that you may write to.",
        ) from None


def _replace(path: Path, text: str, mode: int) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(text)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


# Finds where a document violates its schema; supports the part of JSON Schema that `report.schema.json` uses.
#
# Keys that the schema does not name are ignored: newer versions may add some.

_LARGEST_INTEGER = 10**60
"""More than any count; numbers in charts must fit into a float."""
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
"""The keywords that are checked, or that do not constrain the document."""


def first_fault(document: Any, schema: dict[str, Any]) -> str | None:
    """Say where and how a document violates its schema, such as `runs[0].seconds is 'x'`; None if it does not."""
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
    others = schema.get("additionalProperties", False)
    if isinstance(others, dict):
        for key, item in value.items():
            yield from _faults(item, others, root, f"{place}.{key[:40]}")


def _alternative(value: Any, schemas: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the alternative that applies to a value: each `anyOf` of the schema is null or one other type."""
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
        return "a number too large for a count"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


# The lines around a place of the program, if its file still contains the code that ran.

LINES_AROUND = 4
LONGEST_LINE = 400
_LARGEST_FILE = 4_000_000
_SUFFIXES = {".py", ".pyw"}
"""A trace may come from someone else and name any file: only source code is quoted."""


def contexts(frames: Iterable[Frame | None]) -> list[dict[str, Any]]:
    """Return the lines around places, each place once; places whose file is gone or has changed since are left out.

    Each has the `file` and `line` of the place, `lines`, and `first`, the number of the first of these.
    """
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for frame in frames:
        if frame is not None and (frame.file, frame.line) not in found:
            lines = _lines(frame)
            if lines is not None:
                found[frame.file, frame.line] = lines
    return list(found.values())


def _lines(frame: Frame) -> dict[str, Any] | None:
    source = _source(Path(frame.file))
    code = frame.code.strip()
    if source is None or not code or not 1 <= frame.line <= len(source):
        return None
    # The record holds one line of the statement that ran.
    if code not in (found := source[frame.line - 1].strip(), redacted_code(found)):
        return None
    first = max(1, frame.line - LINES_AROUND)
    shown = [redacted_code(line[:LONGEST_LINE]) for line in source[first - 1 : frame.line + LINES_AROUND]]
    return {"file": frame.file, "line": frame.line, "first": first, "lines": shown}


def _source(path: Path) -> list[str] | None:
    try:
        if path.suffix not in _SUFFIXES or not path.is_file() or path.stat().st_size > _LARGEST_FILE:
            return None
        with tokenize.open(path) as file:
            # Not `splitlines`: Python counts lines by line feeds only.
            return file.read().split("\n")
    except (OSError, SyntaxError, ValueError):
        return None


# The parts of the JSON document that say how far apart values are.


def _values(values: ValuesApart) -> dict[str, Any]:
    """Return how far apart the values of two stored runs are, as JSON."""
    return {
        **fields_of(values, "kept note"),
        "first": _parting(values.first),
        "beyond_rounding": _parting(values.beyond_rounding),
        "by_step": values.steps,
        "records_alone": values.alone,
    }


def _parting(parting: Parting | None) -> dict[str, Any] | None:
    if parting is None:
        return None
    outputs = [_output(output) for output in parting.outputs]
    return {**fields_of(parting, "step phase op module site"), "outputs": outputs, "looks_like": parting.looks_like}


def _output(output: OutputDifference) -> dict[str, Any]:
    return fields_of(
        output,
        "dtype shape device elements elements_different max_ulp max_abs max_relative elements_sampled repeats distinct "
        "distinct_one_thread distinct_filled_memory distinct_alignments examples extent",
    )


def _input(value: InputDifference) -> dict[str, Any]:
    return fields_of(
        value,
        "position path dtype shape device elements other elements_different max_ulp max_abs max_relative examples extent",
    )


SCHEMA = "determinism.report/1"
SCHEMA_FILE = Path(__file__).with_name("report.schema.json")


def document(comparison: Comparison) -> dict[str, Any]:
    """Make the JSON document of a comparison.

    Every key is always present; absent values are None. Floats that JSON cannot hold become None, and surrogates,
    which come from file names that are not valid UTF-8, become visible escapes, so that every JSON reader accepts it.
    """
    first = comparison.first_divergence
    visible = comparison.first_visible
    content = {
        "schema": SCHEMA,
        "verdict": comparison.verdict,
        "trouble": [{"id": trouble.identifier, "message": trouble.message} for trouble in comparison.trouble],
        "runs": [fields_of(run, "command exit_status stopped_by seconds trace") for run in comparison.runs],
        "recorded": _recorded(comparison.recorded),
        "first_divergence": None if first is None else _divergence(first),
        "divergences": [_short_divergence(divergence) for divergence in comparison.divergences],
        "first_visible": visible and fields_of(visible, "step what site"),
        "reached": [fields_of(other, "step what site") for other in comparison.infected],
        "absorbed": comparison.absorbed,
        "dead_differences": _dead_differences(comparison),
        "leftovers": [fields_of(leftover, "file changed_in read_in change") for leftover in comparison.leftovers],
        "printed": comparison.printed and fields_of(comparison.printed, "runs first second"),
        "extra_runs": {"count": comparison.extra_runs, "racy": comparison.racy},
        "open_settings": [{"name": name, "why": why} for name, why in comparison.open_settings],
        "evidence": _evidence(comparison.evidence),
        "reproducer": None if comparison.evidence is None else comparison.evidence.reproducer,
        "causes": [cause_document(cause) for cause in comparison.causes],
        "fixes": [fix_document(with_command_and_files(fix, comparison)) for fix in comparison.fixes],
        "experiments": comparison.experiments,
        "diagnosis": comparison.diagnosis.limit,
        "varied": comparison.varied,
        "missing": None if comparison.missing is None else [_missing(missing) for missing in comparison.missing],
        "narrowing": None if comparison.narrowing is None else narrowing_document(comparison.narrowing),
        "batch": None if comparison.batch is None else batch_document(comparison.batch),
        "values": None if comparison.values is None else _values(comparison.values),
        "environment": [
            {"name": name, "part": part_of(name), "first": first_value, "second": second_value}
            for name, first_value, second_value in comparison.environment
        ],
        "ran_on": dict(comparison.ran_on),
        "sources": contexts(_places(comparison)),
        **_step_history(comparison.step_history),
        "dataflow": None if comparison.dataflow is None else _dataflow(comparison.dataflow),
    }
    facts = {key: _plain(value) for key, value in content.items()}
    facts["fixes"] = with_fixes_for_times(facts)
    composed = {key: _plain(value) for key, value in compose(comparison, facts).items()}
    return {"schema": SCHEMA, "verdict": facts["verdict"], **composed, **facts}


def json_text(content: dict[str, Any]) -> str:
    """Return a document as JSON text."""
    return json.dumps(content, indent=1, allow_nan=False)


def _places(comparison: Comparison) -> Iterator[Frame | None]:
    """Yield the places to show in context, the most important ones first."""
    first = comparison.first_divergence
    if first is not None:
        yield from (first.site, first.forward_site, *first.stack[:1])
    yield from (site for cause in comparison.causes for site in cause.sites)
    yield from (missing.site for missing in comparison.missing or ())


def _step_history(history: StepHistory | None) -> dict[str, Any]:
    if history is None:
        return {"compared_runs": None, "divergence_by_step": None, "losses": None}
    return {"compared_runs": history.runs, "divergence_by_step": history.steps, "losses": history.losses}


def _dataflow(found: Dataflow) -> dict[str, Any]:
    return {
        "nodes": [_flow_node(node) for node in found.nodes],
        "edges": [{"from": edge.source, "to": edge.target, "differs": edge.differs} for edge in found.edges],
        "left_out": found.left_out,
    }


def _flow_node(node: FlowNode) -> dict[str, Any]:
    return {"id": node.identifier, **fields_of(node, "distance op module step phase site differs outputs")}


def _recorded(recorded: Recorded) -> dict[str, Any]:
    return {
        **fields_of(recorded, "records steps steps_by processes"),
        "recorders": [{"name": name, "reason": reason} for name, reason in recorded.recorders],
        "blind_spots": [
            {"id": spot.identifier, **fields_of(spot, "what reason count"), "share": recorded.share(spot)}
            for spot in recorded.blind_spots
        ],
    }


def _divergence(divergence: Divergence) -> dict[str, Any]:
    return {
        **_short_divergence(divergence),
        **fields_of(divergence, "detail hint forward_site stack inputs_equal"),
        "inputs": [_input(value) for value in divergence.inputs],
        "outputs": [_output(output) for output in divergence.outputs],
        "inside": None if divergence.inside is None else fields_of(divergence.inside, "op site functions"),
    }


def _short_divergence(divergence: Divergence) -> dict[str, Any]:
    return fields_of(divergence, "kind process thread step phase op module site received_from")


def _evidence(evidence: Evidence | None) -> dict[str, Any] | None:
    return None if evidence is None else fields_of(evidence, "source folder note")


def _missing(missing: Missing) -> dict[str, Any]:
    return {"id": missing.identifier, **fields_of(missing, "site fix")}


def _dead_differences(comparison: Comparison) -> dict[str, Any]:
    first = [fields_of(difference, "step phase op site") for difference in comparison.dead_first]
    return {"count": comparison.dead_differences, "first": first}


def _plain(value: Any) -> Any:
    """Reduce a value to JSON types: objects with fields become JSON objects; numbers may come from NumPy."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if math.isfinite(number) else None
    if is_dataclass(value):
        value = fields_of(value, " ".join(field.name for field in fields(value)))
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value]


# Reads the JSON document of an earlier comparison.

_FIRST_KEYS = frozenset(
    {
        "schema", "verdict", "trouble", "runs", "recorded", "first_divergence", "divergences", "first_visible", "absorbed",
        "dead_differences", "leftovers", "extra_runs", "open_settings", "causes", "fixes", "missing", "environment",
    }
)  # fmt: skip
"""The keys of every document; all others were added later."""


def read_document(path: Path) -> dict[str, Any]:
    """Read a document that `--json` wrote; keys that were added to the format since are filled in.

    Raises:
        UsageError: It cannot be read, or is not a report.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except OSError as error:
        raise UsageError(
            "report-unreadable",
            f"{path} cannot be read ({error.strerror or error}). Give the file that `--json` wrote.",
        ) from None
    except (ValueError, RecursionError) as error:
        raise _foreign(path, f"it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise _foreign(path, "it is JSON, but not an object")
    schema = found.get("schema")
    if schema != SCHEMA:
        if isinstance(schema, str) and schema.startswith("determinism.report/"):
            raise UsageError(
                "report-newer",
                f"{path} is a {schema!r}, and this version reads {SCHEMA!r}. Use the version of determinism that wrote it.",
            )
        raise _foreign(path, f"it does not say that it is a {SCHEMA!r}")
    form = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    added = {key: _nothing(described) for key, described in form["properties"].items() if key not in _FIRST_KEYS}
    content = {**added, **found}
    is_old = _is_without_sections(content["story"])
    _fill_in(content)
    fault = first_fault(content, form)
    if fault is not None:
        raise _foreign(path, fault)
    if is_old:
        content["headline"] = content["headline"] or headline(content)
        content["story"] = [*story_document(answer(content)), *content["story"]]
    return content


def _nothing(described: dict[str, Any]) -> Any:
    """Return the value of a key that did not exist yet when a document was written."""
    nothing: dict[str, Any] = {"array": [], "string": "", "object": {}}
    return nothing.get(str(described.get("type")))


def _is_without_sections(story: Any) -> bool:
    """Whether a story was written before entries had sections: then it has only details."""
    entries = story if isinstance(story, list) else []
    return not any(isinstance(entry, dict) and "section" in entry for entry in entries)


def _fill_in(content: dict[str, Any]) -> None:
    """Add keys to the parts of a document from an earlier version."""
    for run in content.get("runs") or ():
        if isinstance(run, dict) and isinstance(run.get("command"), list):
            run["command"] = redacted(run["command"])
    first = content.get("first_divergence")
    outputs = first.get("outputs") if isinstance(first, dict) else None
    if isinstance(first, dict):
        first.setdefault("inputs", [])
        first.setdefault("detail", "")
        first.setdefault("hint", "")
        first.setdefault("inside", None)
    recorded = content.get("recorded")
    if isinstance(recorded, dict):
        recorded.setdefault("steps_by", None)
        recorded.setdefault("recorders", [])
    batch = content.get("batch")
    additions: list[tuple[Any, dict[str, Any]]] = [
        (content.get("environment"), {"part": Part.OTHER}),
        (outputs, {"max_relative": None, "elements_sampled": None}),
        (content.get("leftovers"), {"change": FileChange.UNSEEN}),
        (content.get("fixes"), {"patch": None, "steps": None, "side_effect": None}),
        (batch.get("tried") if isinstance(batch, dict) else None, {"patch": None, "steps": None, "side_effect": None}),
        *((made, {"seconds": None}) for made in _experiment_lists(content)),
        (content.get("story"), {"section": Section.DETAILS, "is_detail": True}),
    ]
    for found, later in additions:
        for one in found if isinstance(found, list) else ():
            if isinstance(one, dict):
                one.update({key: value for key, value in later.items() if key not in one})


def _experiment_lists(content: dict[str, Any]) -> list[Any]:
    causes = content.get("causes")
    return [
        content.get("experiments"),
        *(one.get("experiments") for one in (causes if isinstance(causes, list) else ()) if isinstance(one, dict)),
    ]


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _foreign(path: Path, fault: str) -> UsageError:
    return UsageError(
        "report-foreign", f"{path} is not a report: {fault}. Give the file that `determinism check --json` wrote."
    )
