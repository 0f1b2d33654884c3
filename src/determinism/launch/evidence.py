"""Makes the further runs that look closely at the record where two runs diverge, and keeps what they saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from determinism.comparison.divergence import Divergence, Evidence
from determinism.comparison.result import Comparison
from determinism.diagnose.confirm import MOST_BYTES, REPEATS, capture_request, confirm, needs_confirmation, read_capture
from determinism.diagnose.further_values import add_values, needs_values
from determinism.diagnose.reproducer import NotReproducible, write_reproducer
from determinism.errors import DeterminismError
from determinism.launch.output_folder import OutputFolder
from determinism.launch.program import ProgressCallback
from determinism.launch.run_series import RunSeries
from determinism.trace.reader import Trace
from determinism.trace.schema import CAPTURED_INPUTS_FILE, CAPTURED_OUTPUTS_FILE, PROCESSES_FOLDER

EVIDENCE_FOLDER = "evidence"
REPRODUCER_FOLDER = "reproducer"
_SECONDS, _TIMES_AS_LONG = 60.0, 3
"""A further run is stopped after so many seconds and so many times what the longest run took."""


class EvidenceRuns:
    """The further runs of one check."""

    def __init__(
        self,
        series: RunSeries,
        output: OutputFolder,
        announce: Callable[[str, Path | None], ProgressCallback | None],
        warn: Callable[[str], None],
    ) -> None:
        """Nothing is run yet.

        Args:
            series: Makes the runs.
            output: Where traces, logs and what is kept go.
            announce: Called with what comes next and the log of its output; gives what is told the progress.
            warn: Called with what could not be done.
        """
        self._series = series
        self._output = output
        self._announce = announce
        self._warn = warn
        self._most_bytes = min(MOST_BYTES, series.max_disk or MOST_BYTES)
        self._seconds = 0.0
        self.was_interrupted = False
        """Whether the user ended a run; then no more are made."""

    def gather(self, comparison: Comparison, traces: Sequence[Trace], *, with_values: bool = True) -> None:
        """Look at the first divergence again, and put what was seen into the comparison.

        Args:
            comparison: Of the runs.
            traces: Of the same runs.
            with_values: Whether two runs may be made for the values at a divergence that is not an op's own.
        """
        self._seconds = _SECONDS + _TIMES_AS_LONG * max(run.seconds for run in comparison.runs)
        first = comparison.first_divergence
        if first is not None and needs_confirmation(first):
            self._confirm(comparison, first, traces)
        first = comparison.first_divergence
        if first is not None and with_values and needs_values(first) and not self.was_interrupted:
            self._compare_values(comparison, first, traces)

    def _confirm(self, comparison: Comparison, first: Divergence, traces: Sequence[Trace]) -> None:
        name = "confirming-run"
        try:
            found = self._capture(name, "confirming run", first, traces, repeats=REPEATS)
            confirm(comparison, found)
            if found is not None and comparison.first_divergence is not None and not found["changed_inputs"]:
                kept = self._keep(name, first.process, self._output.path / EVIDENCE_FOLDER)
                comparison.evidence = self._evidence(found.get("saved"), comparison.first_divergence, kept)
        except DeterminismError as error:
            # What the runs have shown stands without it.
            self.was_interrupted |= error.identifier == "interrupted"
            self._warn(f"The confirming run was not finished, so its evidence is missing. {error.message}")
        self._output.discard(name, with_log=False)

    def _compare_values(self, comparison: Comparison, first: Divergence, traces: Sequence[Trace]) -> None:
        """Let two further runs keep the tensors of the record."""
        folders: list[Path] = []
        reason = None
        for number in (1, 2):
            name = f"evidence-run-{number}"
            try:
                found = self._capture(name, f"evidence run {number} of 2", first, traces, repeats=0)
                kept = self._keep(name, first.process, self._output.path / EVIDENCE_FOLDER / f"run-{number}")
            except DeterminismError as error:
                self.was_interrupted |= error.identifier == "interrupted"
                self._warn(f"The values that differ were not compared, because a run was not finished. {error.message}")
                return
            finally:
                self._output.discard(name, with_log=False)
            reason = reason or (found or {}).get("saved", {}).get("left_out")
            if kept is None:
                break
            folders.append(kept)
        add_values(comparison, folders, reason)

    def _capture(
        self, name: str, title: str, first: Divergence, traces: Sequence[Trace], *, repeats: int
    ) -> dict[str, Any] | None:
        process = next(p for p in traces[first.records_of].processes if p.key == first.process)
        log = self._output.log(name)
        request = capture_request(process, first, repeats=repeats, most_bytes=self._most_bytes)
        on_progress = self._announce(title, log)
        self._series.make_capturing(name, title, on_progress, log=log, capture=request, seconds=self._seconds)
        return read_capture(self._output.trace(name), first.process)

    def _keep(self, name: str, process: str, folder: Path) -> Path | None:
        """Take the tensors out of a trace that will be removed; gives their folder if there are any."""
        source = self._output.trace(name) / PROCESSES_FOLDER / process
        found = [source / file for file in (CAPTURED_INPUTS_FILE, CAPTURED_OUTPUTS_FILE) if (source / file).is_file()]
        for file in found:
            folder.mkdir(parents=True, exist_ok=True)
            file.replace(folder / file.name)
        return folder if found else None

    def _evidence(self, saved: dict[str, Any] | None, first: Divergence, kept: Path | None) -> Evidence:
        """What the confirming run leaves: the tensors, and a script if the op varied."""
        left_out = None if saved is None else saved["left_out"]
        note = f"Not all tensors were kept, because {left_out}." if left_out else ""
        evidence = Evidence("repeats", None if kept is None else str(kept), note)
        moves = all((output.distinct or 0) < 2 for output in first.outputs)
        if moves and all((output.distinct_alignments or 0) < 2 for output in first.outputs):
            return evidence
        try:
            if saved is None or saved["call"] is None or kept is None:
                raise NotReproducible((saved or {}).get("reason") or "the call was not written down")
            path = write_reproducer(
                self._output.path / REPRODUCER_FOLDER,
                kept / CAPTURED_INPUTS_FILE,
                saved["call"],
                origin=_origin(first),
                seen=_seen(first, moves=moves),
                repeats=REPEATS,
                moves=moves,
            )
            return replace(evidence, reproducer=str(path))
        except (NotReproducible, OSError) as error:
            return replace(evidence, note=f"No script that reproduces it was written, because {error}.")


def _origin(first: Divergence) -> str:
    """Where the op is, without the folders that nobody else has."""
    place = f"step {first.step}, {first.phase}"
    return place if first.site is None else f"{Path(first.site.file).name}:{first.site.line}, {place}"


def _seen(first: Divergence, *, moves: bool) -> str:
    counts = [output.distinct_alignments if moves else output.distinct for output in first.outputs]
    repeats = max((output.repeats or 0) for output in first.outputs)
    return f"there it gave {max(count or 0 for count in counts)} distinct results in {repeats} repeats"
