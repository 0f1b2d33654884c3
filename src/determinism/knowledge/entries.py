"""The entries of the knowledge: statuses of ops and measurements, read from data and checked."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from determinism.errors import UsageError

SCHEMA = "determinism.audit/1"
MEASURED = Path(__file__).parent / "data" / "measured"


@dataclass(frozen=True, slots=True)
class Measurement:
    """How often one case was run, and how many different results it had.

    Attributes:
        op: The name that the op is listed under.
        case: Which variant of the op was run, and on which inputs.
        direction: `forward` or `backward`.
        dtype: The dtype of the inputs.
        threads: How many threads computed on the CPU.
        deterministic_mode: Whether the framework's deterministic mode was on.
        runs: How often it was run on equal inputs; 0 if it raised.
        distinct: How many different bit patterns resulted; 0 if it raised.
        raised: The first line of the error, if it raised one; else None.
        patched: Whether `determinism.patch` had replaced ops of the framework.
    """

    op: str
    case: str
    direction: str
    dtype: str
    threads: int
    deterministic_mode: bool
    runs: int
    distinct: int
    raised: str | None = None
    patched: bool = False

    @property
    def varies(self) -> bool:
        """Whether different results were seen."""
        return self.distinct > 1


@dataclass(frozen=True, slots=True)
class Audit:
    """One file of results.

    Attributes:
        framework: The framework whose ops were measured.
        version: The version of the framework.
        device: The device on which they ran.
        hardware: Names of the processor and the accelerator, and the number of cores.
        versions: The versions of everything that may matter.
        date: When it was measured, as `2026-11-21`.
        seed: The seed of the inputs.
        measurements: The measurements.
        runs_asked: How often each case was to be run; None in results that do not say so.
        stopped: Why the audit stopped before everything was measured; None if it did not.
    """

    framework: str
    version: str
    device: str
    hardware: dict[str, str]
    versions: dict[str, str]
    date: str
    seed: int
    measurements: tuple[Measurement, ...]
    runs_asked: int | None = None
    stopped: str | None = None

    @property
    def most_runs(self) -> int:
        """How often each case was to be run, or at least how often one was run, if that is unknown."""
        return self.runs_asked or max((one.runs for one in self.measurements), default=0)

    def is_short(self, one: Measurement) -> bool:
        """Whether a measurement without a difference is based on fewer runs than were requested."""
        return one.raised is None and not one.varies and one.runs < self.most_runs

    @property
    def title(self) -> str:
        """A description of what was measured."""
        hardware = self.hardware.get("accelerator") or f"{self.hardware['processor']}, {self.hardware['cores']} cores"
        return f"{self.framework} {self.version} on {self.device} ({hardware}), {self.date}"

    @property
    def file_name(self) -> str:
        """The name for a file with these results."""
        hardware = self.hardware.get("accelerator") or self.hardware["processor"]
        text = "-".join((self.framework, self.version.partition("+")[0], self.device, hardware)).lower()
        return re.sub("-+", "-", re.sub(r"[^a-z0-9.]", "-", text)).strip("-") + ".json"

    @property
    def refused(self) -> tuple[Measurement, ...]:
        """The measurements that raise only in deterministic mode; one that also raises without it is not about determinism."""
        always = {_place(one) for one in self.measurements if one.raised is not None and not one.deterministic_mode}
        return tuple(
            one
            for one in self.measurements
            if one.raised is not None and one.deterministic_mode and _place(one) not in always
        )

    def is_for(self, framework: str, version: str | None) -> bool:
        """Whether the results apply to a release: they are of the same minor release.

        Args:
            framework: The framework of the release.
            version: The release; None for any.
        """
        if framework != self.framework:
            return False
        return version is None or version.split(".")[:2] == self.version.split(".")[:2]

    def of(self, op: str) -> tuple[Measurement, ...]:
        """The measurements of one op."""
        return tuple(one for one in self.measurements if one.op == op)

    def text(self) -> str:
        """The file's content: a measurement per line, so that a new audit shows as a change of lines."""
        document = {"schema": SCHEMA, **{name: value for name, value in asdict(self).items() if name != "measurements"}}
        head = json.dumps(document, indent=1)[:-2]
        rows = ",\n".join(f"  {json.dumps(asdict(one))}" for one in self.measurements)
        return f'{head},\n "measurements": [\n{rows}\n ]\n}}\n'


def _place(one: Measurement) -> tuple[object, ...]:
    return one.op, one.case, one.direction, one.dtype, one.threads


def read_audit(path: Path) -> Audit:
    """Read a file of results.

    Raises:
        UsageError: It is not a file of results, or has a newer schema.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        schema = document.pop("schema")
        measurements = tuple(Measurement(**row) for row in document.pop("measurements"))
        audit = Audit(**document, measurements=measurements)
    except OSError as error:
        raise UsageError(
            "audit-unreadable",
            f"{path} cannot be read ({error.strerror or error}). Give a file that `determinism audit --output` wrote.",
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(
            "audit-unreadable",
            f"{path} is not a result of `determinism audit`, or is damaged. Give a file that `determinism audit --output` "
            "wrote.",
        ) from None
    if schema != SCHEMA:
        raise UsageError(
            "audit-unreadable",
            f"{path} says it is {schema!r}; this version reads {SCHEMA!r}. Read it with the version that wrote it.",
        )
    return audit


def check_output(path: Path) -> None:
    """Check, before anything is measured, that the results can be written.

    Raises:
        UsageError: They cannot be written.
    """
    folder = path if path.is_dir() else path.parent
    if not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(
            "output-unwritable",
            f"--output {path} cannot be written, so nothing was measured. Give a file in a folder that exists and that you "
            "may write to.",
        )


def known_audits(framework: str = "") -> Iterator[Audit]:
    """The results that come with this tool.

    Args:
        framework: Only those of this one; names of files begin with it, so that no others are read.
    """
    for path in sorted(MEASURED.glob(f"{framework}*.json")):
        yield read_audit(path)


# Names of ops: one key for all names of the same op.

_PREFIXES = (
    ("torch.ops.aten.", "aten."),
    ("aten::", "aten."),
    ("torch.nn.functional.", "torch."),
    ("torch.nn.", "torch."),
    ("torch.Tensor.", "torch."),
    ("Tensor.", "torch."),
    ("torch.", "torch."),
    ("nn.functional.", "torch."),
    ("nn.", "torch."),
    ("F.", "torch."),
    ("tensorflow.", "tf."),
    ("keras.", "tf.keras."),
)
"""Spellings of the same namespace; the first that matches counts."""


def key_of(name: str) -> str:
    """The key under which a name is looked up.

    `torch.Tensor.scatter_add_`, `torch.scatter_add` and `aten::scatter_add_.default` have the same one, and so have
    `torch.nn.CTCLoss` and `torch.nn.functional.ctc_loss`.
    """
    text = name.strip().strip("`'\"").strip()
    if text.endswith(")"):
        text = text.partition("(")[0]
    for spelling, place in _PREFIXES:
        if text.startswith(spelling):
            text = place + text[len(spelling) :]
            break
    if text.startswith("aten."):
        # The overload follows the op's name.
        text = "torch." + text[len("aten.") :].partition(".")[0]
    text = text.replace("tf.compat.v1.", "tf.").replace("tf.compat.v2.", "tf.")
    return text.lower().replace("_", "")


def last_part(key: str) -> str:
    """The key without its namespace."""
    return key.rpartition(".")[2]


# Releases and ranges of them. Pre-releases and local builds count as the release that they belong to.

_RELEASE = re.compile(r"\s*v?(?:\d+!)?(\d+(?:\.\d+)*)")


def release(version: str) -> tuple[int, ...]:
    """The release that a version belongs to, without trailing zeros: `2.13.0+cpu` and `2.13.0rc1` are both (2, 13).

    The package `packaging` would read the same numbers, but takes too long to load for the command that needs them.

    Raises:
        UsageError: It is not a version.
    """
    match = _RELEASE.match(version)
    if match is None:
        raise UsageError(
            "version-unreadable",
            f"{version!r} is not a version, so nothing was looked up. Give one such as 2.13 or 2.13.0.",
        )
    numbers = [int(number) for number in match[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


@dataclass(frozen=True, slots=True)
class VersionRange:
    """The releases from one, inclusive, to another, exclusive.

    Attributes:
        since: The first release in the range; None for all earlier ones too.
        until: The first release after the range; None if there is none yet.
    """

    since: str | None
    until: str | None

    def __contains__(self, version: str) -> bool:
        numbers = release(version)
        begins = self.since is None or numbers >= release(self.since)
        return begins and (self.until is None or numbers < release(self.until))

    def overlaps(self, other: VersionRange) -> bool:
        """Whether some release is in both."""
        return _before(self.since, other.until) and _before(other.since, self.until)

    def __str__(self) -> str:
        parts = [f">={self.since}"] if self.since is not None else []
        parts += [f"<{self.until}"] if self.until is not None else []
        return ", ".join(parts) or "all"


def _before(since: str | None, until: str | None) -> bool:
    return since is None or until is None or release(since) < release(until)


# The knowledge about one op: statuses, each with the versions for which it holds and its sources.


class OpVerdict(StrEnum):
    """Whether an op is bitwise repeatable, for equal inputs on the same software and hardware."""

    DETERMINISTIC = "deterministic"
    NONDETERMINISTIC = "nondeterministic"
    RAISES = "raises"
    """It refuses to run: calling it raises an error."""
    DEPENDS = "depends"
    """It depends on something that only the condition or the note describes."""
    UNKNOWN = "unknown"
    """There is reason to suspect it, but nobody has shown whether it varies."""


class Direction(StrEnum):
    """The direction through an op that a status is about."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BOTH = "both"


class Device(StrEnum):
    """The device on which an op runs."""

    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"
    XPU = "xpu"
    MPS = "mps"
    TPU = "tpu"
    META = "meta"
    GPU = "gpu"
    """Any GPU that the framework supports; facts about TensorFlow and JAX are rarely more specific."""
    ANY = "any"


class Basis(StrEnum):
    """The basis of a status. If the two differ, both are kept."""

    DOCUMENTED = "documented"
    """The framework's documentation, or that of its vendor, says so."""
    OBSERVED = "observed"
    """Source code, a discussion among its developers, or a measurement shows it."""


class SourceKind(StrEnum):
    """The kind of a source."""

    DOCUMENTATION = "documentation"
    ISSUE = "issue"
    PULL_REQUEST = "pull request"
    COMMIT = "commit"
    SOURCE = "source"
    """Source code, or a binary, that was examined."""
    MEASUREMENT = "measurement"
    """The op was run."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source of a status.

    Attributes:
        kind: The kind of source.
        reference: Where to find it, such as `pytorch/pytorch#101115` or the address of a page.
        date: When it was written or read, as `2023-05` or `2023-05-10`; None if unknown.
    """

    kind: SourceKind
    reference: str
    date: str | None


@dataclass(frozen=True, slots=True)
class Status:
    """One statement about an op.

    Attributes:
        identifier: Unique, and stable from version to version of this tool.
        framework: The framework to which `versions` refers.
        versions: The releases for which it holds.
        device: The device on which the op runs.
        direction: Forward, backward, or both.
        dtype: The dtypes for which it holds; None for all that the op accepts.
        condition: What else must hold, such as an argument's value; None if nothing.
        basis: Whether it was documented or observed.
        default: The verdict without the framework's deterministic mode; None if none is stated.
        deterministic: The verdict with deterministic mode; None if none is stated.
        solution: What to do; None if there is nothing to do or nothing known.
        note: Further information.
        sources: Its sources, at least one.
    """

    identifier: str
    framework: str
    versions: VersionRange
    device: Device
    direction: Direction
    dtype: str | None
    condition: str | None
    basis: Basis
    default: OpVerdict | None
    deterministic: OpVerdict | None
    solution: str | None
    note: str | None
    sources: tuple[Source, ...]

    @property
    def verdicts(self) -> tuple[OpVerdict, ...]:
        """The stated verdicts, without and with deterministic mode."""
        return tuple(verdict for verdict in (self.default, self.deterministic) if verdict is not None)


@dataclass(frozen=True, slots=True)
class Op:
    """An op, or anything else that makes runs differ, with everything that is known about it.

    Attributes:
        name: The name it is listed under.
        framework: The framework of the op.
        names: Other public names: functions, methods, layers that are built on it, overloads.
        kernels: Names that alerts and stack traces show.
        alerts: Texts of error messages about it.
        patches: Identifiers of the replacements of `determinism.patch` that make it deterministic.
        summary: One sentence on what makes it vary.
        statuses: All statuses, of all versions.
    """

    name: str
    framework: str
    names: tuple[str, ...]
    kernels: tuple[str, ...]
    alerts: tuple[str, ...]
    patches: tuple[str, ...]
    summary: str
    statuses: tuple[Status, ...]


# Reads the TOML files of the knowledge; `status.schema.json` describes them.

DATA = Path(__file__).parent / "data"
SCHEMA_FILE = Path(__file__).parent / "status.schema.json"
OP_FOLDERS = ("jax", "libraries", "python", "tensorflow", "torch")
"""The folders whose files hold ops."""

_SOURCE = re.compile(r"(?P<kind>[a-z ]+): (?P<reference>.+?)(?: \((?P<date>\d{4}(?:-\d\d){0,2})\))?", re.DOTALL)


def read_toml(path: Path) -> dict[str, Any]:
    """The content of one file."""
    import tomllib

    with path.open("rb") as file:
        return tomllib.load(file)


def op_files() -> list[str]:
    """Every file that holds ops, as a path within the folder of data."""
    return sorted(path.relative_to(DATA).as_posix() for folder in OP_FOLDERS for path in (DATA / folder).glob("*.toml"))


def ops_of(name: str) -> list[Op]:
    """The ops of one file, in its order.

    Args:
        name: A path from `op_files`.
    """
    document = read_toml(DATA / name)
    framework = str(document["framework"])
    return [_op(entry, framework) for entry in document["op"]]


def source_of(text: str) -> Source:
    """Read a source, such as `issue: pytorch/pytorch#51366 (2021-01)`.

    Raises:
        ValueError: The text does not have this form.
    """
    match = _SOURCE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not written as `kind: reference (date)`")
    return Source(SourceKind(match["kind"]), match["reference"], match["date"])


def _op(entry: dict[str, Any], framework: str) -> Op:
    return Op(
        name=entry["name"],
        framework=framework,
        names=tuple(entry.get("names", ())),
        kernels=tuple(entry.get("kernels", ())),
        alerts=tuple(entry.get("alerts", ())),
        patches=tuple(entry.get("patches", ())),
        summary=entry["summary"],
        statuses=tuple(_status(status, framework) for status in entry["status"]),
    )


def _status(entry: dict[str, Any], framework: str) -> Status:
    return Status(
        identifier=entry["id"],
        framework=entry.get("framework", framework),
        versions=VersionRange(entry.get("since"), entry.get("until")),
        device=Device(entry["device"]),
        direction=Direction(entry["direction"]),
        dtype=entry.get("dtype"),
        condition=entry.get("condition"),
        basis=Basis(entry["basis"]),
        default=_verdict(entry.get("default")),
        deterministic=_verdict(entry.get("deterministic")),
        solution=entry.get("solution"),
        note=entry.get("note"),
        sources=tuple(source_of(text) for text in entry["sources"]),
    )


def _verdict(text: str | None) -> OpVerdict | None:
    return None if text is None else OpVerdict(text)


# The index: which file holds the op of a name. It is made from the data, so that a query need not read all files.

INDEX_FILE = DATA / "index.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """The location of an op.

    Attributes:
        file: The file that holds it.
        position: The position of the op in that file.
        name: The name it is listed under.
        frameworks: The frameworks of its statuses.
    """

    file: str
    position: int
    name: str
    frameworks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Index:
    """The locations of the ops.

    Attributes:
        entries: Every op.
        names: By the key of a name, the numbers of the ops that have it.
        texts: By a kernel's name or an alert's text, in lower case, the numbers of the ops that it is about.
    """

    entries: tuple[Entry, ...]
    names: dict[str, list[int]]
    texts: dict[str, list[int]]


@cache
def index() -> Index:
    """The index as it is stored with the data."""
    document = json.loads(INDEX_FILE.read_text(encoding="utf-8"))
    entries = [
        Entry(file, position, name, tuple(frameworks))
        for file, ops in document["files"].items()
        for position, (name, frameworks) in enumerate(ops)
    ]
    return Index(tuple(entries), document["names"], document["texts"])


def op_at(entry: Entry) -> Op:
    """The op of an entry of the index."""
    return _read(entry.file)[entry.position]


@cache
def _read(file: str) -> list[Op]:
    return ops_of(file)


def index_document() -> dict[str, Any]:
    """The index as it should be, made from all data."""
    files: dict[str, list[Any]] = {}
    names: dict[str, list[int]] = {}
    texts: dict[str, list[int]] = {}
    number = 0
    for file in op_files():
        files[file] = []
        for op in ops_of(file):
            frameworks = sorted({op.framework, *(status.framework for status in op.statuses)})
            files[file].append([op.name, frameworks])
            for key in sorted({key_of(name) for name in (op.name, *op.names)}):
                names.setdefault(key, []).append(number)
            for text in sorted({text.lower() for text in (*op.kernels, *op.alerts)}):
                texts.setdefault(text, []).append(number)
            number += 1
    return {"files": files, "names": names, "texts": texts}


def index_text() -> str:
    """The index file as it should be: one line for each name, so that changes are easy to read."""
    parts = []
    for key, content in sorted(index_document().items()):
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(content.items())]
        parts.append(f"{json.dumps(key)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
