"""Measures the ops of a framework in separate processes: with one thread and with all, deterministic mode on and off."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import date
from importlib.util import find_spec
from typing import Any

from determinism.errors import LaunchError, UsageError, exit_phrase
from determinism.frameworks.registry import NO_DETERMINISTIC_MODE, OP_AUDITS
from determinism.knowledge.entries import Audit, Measurement

_TAIL = 1500
"""How much of the error stream of a process that failed is shown, in characters."""


@dataclass(frozen=True)
class OpAuditRequest:
    """What to measure.

    Attributes:
        framework: The framework whose ops are measured.
        device: The device on which they run.
        ops: Names of ops; if empty, all that have cases.
        runs: How often each case is run, at most.
        seconds: After this time no further run of a case begins, if it was run at least three times.
        seed: Seed for the inputs.
        database: Use the framework's own small samples of every op instead of the project's cases.
        patched: Also measure with ops replaced as by `determinism.patch`, in deterministic mode.
    """

    framework: str = "torch"
    device: str = "cpu"
    ops: Sequence[str] = ()
    runs: int = 20
    seconds: float = 2.0
    seed: int = 0
    database: bool = False
    patched: bool = False


@dataclass(frozen=True)
class Way:
    """One way to run all cases.

    Attributes:
        threads: How many threads compute; None for as many as there are cores.
        deterministic_mode: Whether the framework's deterministic mode is on.
        patched: Whether ops are replaced.
    """

    threads: int | None
    deterministic_mode: bool
    patched: bool = False

    def __str__(self) -> str:
        """The way in words."""
        threads = "all threads" if self.threads is None else "1 thread"
        mode = "with" if self.deterministic_mode else "without"
        return f"{threads}, {mode} deterministic mode{' and patched' if self.patched else ''}"


INTERRUPTED_AUDIT = "It was interrupted by Ctrl-C."
"""Why an audit stopped that the user interrupted."""
WAYS = tuple(Way(threads, mode) for mode in (False, True) for threads in (None, 1))
PATCHED_WAYS = (Way(None, True, True), Way(1, True, True))


def audit(request: OpAuditRequest, told: Callable[[Way, int, int], None] = lambda way, done, cases: None) -> Audit:
    """Measure ops in every way.

    Args:
        request: What to measure.
        told: Called with the way, how many of its cases are done, and how many there are.

    Returns:
        The measurements; if a process failed or the user pressed Ctrl-C, those made until then.

    Raises:
        UsageError: There are no cases for the request, or the framework or the device is not available.
        LaunchError: A process failed before anything was measured.
        KeyboardInterrupt: The user pressed Ctrl-C before anything was measured.
    """
    _require_packages(request)
    found: list[Measurement] = []
    about: dict[str, Any] = {}
    stopped = None
    try:
        for way in ways_of(request):
            with closing(_lines(request, way)) as lines:
                head = next(lines)
                about, cases = head["about"], head["cases"]
                _require(request, about, cases)
                for done, line in enumerate(lines, 1):
                    found += (Measurement(**one) for one in line["measured"])
                    told(way, done, cases)
    except (KeyboardInterrupt, LaunchError) as error:
        if not found:
            raise
        stopped = INTERRUPTED_AUDIT if isinstance(error, KeyboardInterrupt) else str(error)
    return Audit(
        framework=request.framework,
        version=about["version"],
        device=request.device,
        hardware=about["hardware"],
        versions=about["versions"],
        date=date.today().isoformat(),
        seed=request.seed,
        measurements=tuple(_ordered(found)),
        runs_asked=request.runs,
        stopped=stopped,
    )


def ways_of(request: OpAuditRequest) -> tuple[Way, ...]:
    """The ways that apply to a framework and a device: on a GPU the threads of the CPU do not compute."""
    has_mode = (request.framework, request.device) not in NO_DETERMINISTIC_MODE
    counts_threads = request.device == "cpu"
    return tuple(
        way
        for way in (*WAYS, *(PATCHED_WAYS if request.patched else ()))
        if (has_mode or not way.deterministic_mode) and (counts_threads or way.threads is None)
    )


def _ordered(found: list[Measurement]) -> list[Measurement]:
    return sorted(
        found,
        key=lambda one: (one.op, one.case, one.dtype, one.direction, one.deterministic_mode, one.patched, -one.threads),
    )


def _require_packages(request: OpAuditRequest) -> None:
    """Check, before a process starts, that the framework can be measured here as requested."""
    if request.framework not in OP_AUDITS:
        raise UsageError(
            "audit-impossible",
            f"There are no cases for {request.framework}, so it cannot be measured. Choose from: {', '.join(OP_AUDITS)}.",
        )
    if request.patched and request.framework != "torch":
        raise UsageError(
            "audit-impossible",
            f"Replaced ops can be measured for torch only, not for {request.framework}, so nothing was measured. "
            "Leave --patched out.",
        )
    if find_spec(request.framework) is None:
        raise UsageError(
            "audit-impossible",
            f"{request.framework} is not installed for {sys.executable}, so nothing was measured. Run the audit with the Python "
            f"that has it: python -m determinism audit --framework {request.framework}",
        )
    if request.database and find_spec("expecttest") is None:
        raise UsageError(
            "audit-impossible",
            "--database needs expecttest, as PyTorch's own tests do, and it is not installed, so nothing was measured. Install "
            "it with: pip install expecttest",
        )


def _require(request: OpAuditRequest, about: dict[str, Any], cases: int) -> None:
    if not about["has_device"]:
        raise UsageError(
            "audit-impossible",
            f"{request.framework} {about['version']} has no device {request.device!r} here, so nothing was measured. "
            "Install a build for it on a machine that has one, or use --device cpu.",
        )
    if not cases:
        raise UsageError(
            "audit-impossible",
            f"There is no case for {', '.join(request.ops)}, so nothing was measured. Give the first name that "
            "`determinism status` shows, such as torch.Tensor.scatter_add_; without --ops, all ops are measured.",
        )


def _lines(request: OpAuditRequest, way: Way) -> Generator[dict[str, Any], None, None]:
    """The output of the process, line by line."""
    asked = {**vars(replace(request, ops=list(request.ops))), **vars(way)}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", OP_AUDITS[request.framework]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        with process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(asked))
            process.stdin.close()
            try:
                yield from (json.loads(line) for line in process.stdout)
            except (GeneratorExit, KeyboardInterrupt):
                process.kill()
                raise
        if process.returncode:
            errors.seek(0)
            raise LaunchError(
                "audit-failed",
                f"The process that measures {request.framework} ({way}) ended with {exit_phrase(process.returncode)}, "
                f"so the results are incomplete. Its output ends with: {errors.read()[-_TAIL:].strip()}",
            )
