"""What was measured: how many different results ops gave on equal inputs, with hardware, versions, date and counts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from determinism.errors import UsageError

SCHEMA = "determinism.audit/1"
MEASURED = Path(__file__).parent / "data" / "measured"


@dataclass(frozen=True, slots=True)
class Measurement:
    """How often one case was run, and how many results were different.

    Attributes:
        op: The name that the op is listed under.
        case: What of the op was run, and on which inputs.
        direction: `forward` or `backward`.
        dtype: Of the inputs.
        threads: How many threads computed on the CPU.
        deterministic_mode: Whether the framework's deterministic mode was on.
        runs: How often it was run on equal inputs; 0 if it raised.
        distinct: How many different bit patterns came out; 0 if it raised.
        raised: The first line of the error, if running it is one; else None.
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
        framework: Whose ops.
        version: Of the framework.
        device: Where they ran.
        hardware: Names of the processor and the accelerator, and the number of cores.
        versions: Of everything that may matter.
        date: When it was measured, as `2026-11-21`.
        seed: That the inputs were made from.
        measurements: What was measured.
    """

    framework: str
    version: str
    device: str
    hardware: dict[str, str]
    versions: dict[str, str]
    date: str
    seed: int
    measurements: tuple[Measurement, ...]

    @property
    def title(self) -> str:
        """What was measured, in words."""
        hardware = self.hardware.get("accelerator") or f"{self.hardware['processor']}, {self.hardware['cores']} cores"
        return f"{self.framework} {self.version} on {self.device} ({hardware}), {self.date}"

    @property
    def file_name(self) -> str:
        """What to call a file with it."""
        hardware = self.hardware.get("accelerator") or self.hardware["processor"]
        text = "-".join((self.framework, self.version.partition("+")[0], self.device, hardware)).lower()
        return re.sub("-+", "-", re.sub(r"[^a-z0-9.]", "-", text)).strip("-") + ".json"

    @property
    def refused(self) -> tuple[Measurement, ...]:
        """The measurements that raise in deterministic mode only; one that raises without it too is not about determinism."""
        always = {_place(one) for one in self.measurements if one.raised is not None and not one.deterministic_mode}
        return tuple(
            one
            for one in self.measurements
            if one.raised is not None and one.deterministic_mode and _place(one) not in always
        )

    def is_for(self, framework: str, version: str | None) -> bool:
        """Whether the results say something about a release: they are of the same minor one.

        Args:
            framework: Whose release.
            version: The release; None for any.
        """
        if framework != self.framework:
            return False
        return version is None or version.split(".")[:2] == self.version.split(".")[:2]

    def of(self, op: str) -> tuple[Measurement, ...]:
        """What was measured of one op."""
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
        UsageError: It is none, or of a newer kind.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        schema = document.pop("schema")
        measurements = tuple(Measurement(**row) for row in document.pop("measurements"))
        audit = Audit(**document, measurements=measurements)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            "audit-unreadable", f"{path} cannot be read as a result of `determinism audit` ({error})."
        ) from None
    if schema != SCHEMA:
        raise UsageError(
            "audit-unreadable",
            f"{path} says it is {schema!r}; this version reads {SCHEMA!r}. Read it with the version that wrote it.",
        )
    return audit


def check_output(path: Path) -> None:
    """See before anything is measured that the results can be written.

    Raises:
        UsageError: They cannot.
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
        framework: Only those of this one; the files begin with its name, so that no other is read.
    """
    for path in sorted(MEASURED.glob(f"{framework}*.json")):
        yield read_audit(path)
