"""Runs a program with batches of different sizes, compares their rows, and tries what may make them equal."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from determinism.batch.compare import compare_batches
from determinism.batch.diagnose import CureSearch, Trial, is_cured
from determinism.comparison.result import Comparison, RunSummary
from determinism.errors import DeterminismError, LaunchError, UsageError, exit_phrase
from determinism.launch.interpreter import check_interpreter
from determinism.launch.io import OutputFolder, StandardInput
from determinism.launch.program import Announce, Interrupted, failed_run_text, unannounced
from determinism.launch.record import record_program, require_recorded, summarized_run
from determinism.launch.runs import end_search_early, may_run_further, without_traces
from determinism.run_spec import RunSpec
from determinism.trace.opening import open_trace
from determinism.trace.process import Trace
from determinism.types import Verdict

# The program to run with batches of different sizes.

PLACE = "{batch}"
DEFAULT_SIZES = (1, 16, 64)


@dataclass(frozen=True)
class BatchRequest:
    """A program whose command takes the size of a batch."""

    program: Sequence[str]
    """The words of its command; `{batch}` is replaced with the size."""
    sizes: tuple[int, ...] = DEFAULT_SIZES
    output: Path | None = None
    keep: bool = False
    explain: bool | None = None
    """Whether further runs may try settings; None: if a run took less than a minute."""

    def __post_init__(self) -> None:
        """Check that there is something to compare.

        Raises:
            UsageError: The command lacks `{batch}`, or there are fewer than two sizes.
        """
        sizes = ",".join(map(str, self.sizes))
        if not any(PLACE in word for word in self.program):
            raise UsageError(
                "batch-place-missing",
                f"The command does not contain {PLACE}, so nothing was run: each size needs its own run. Write {PLACE} where the batch "
                f"size goes: determinism check-batch --sizes {sizes} -- python predict.py --batch-size {PLACE}",
            )
        if len(set(self.sizes)) < 2 or min(self.sizes) < 1:
            raise UsageError(
                "batch-sizes",
                f"--sizes {sizes} does not give two sizes of 1 or more, so there is nothing to compare. Give two or more: --sizes 1,16,64",
            )

    def command(self, size: int) -> list[str]:
        """The words of the command for batches of a size."""
        return [word.replace(PLACE, str(size)) for word in self.program]


_PERTURBED = "perturbed"


@dataclass
class BatchCheck:
    """One check of batches, in progress; after an error it still knows which runs were made."""

    request: BatchRequest
    announce: Announce = unannounced
    """Called with what comes next and the log of its output; returns the function that receives the progress."""
    warn: Callable[[str], None] = lambda message: None
    runs: list[RunSummary] = field(default_factory=list)
    interrupt_status: int = field(default=0, init=False)
    """Exit status if the user interrupted the search for causes after the verdict was known; else 0."""

    @property
    def folder(self) -> Path:
        """Where the traces and the report are, once `run` has made the folder."""
        return self._output.path

    def run(self) -> Comparison:
        """Make the runs, compare the rows, and try what may make them equal.

        Raises:
            DeterminismError: The check could not reach a verdict.
        """
        warning = check_interpreter(self.request.program, os.environ)
        if warning is not None:
            self.warn(warning)
        self._output = OutputFolder(self.request.output)
        sizes = sorted(set(self.request.sizes))
        with StandardInput() as self._standard_input:
            traces = [self._make(size) for size in sizes]
            comparison = compare_batches(traces, sizes)
            if comparison.verdict is Verdict.SAME and comparison.batch is not None and comparison.batch.draws:
                comparison = self._perturb(traces, sizes)
            self.runs = list(comparison.runs)
            if comparison.verdict is Verdict.DIFFERENT:
                comparison = self._explained(comparison, sizes)
        if comparison.verdict is Verdict.SAME and not self.request.keep:
            comparison = without_traces(comparison, self._output)
        return comparison

    def _perturb(self, traces: list[Trace], sizes: Sequence[int]) -> Comparison:
        """Run again with different random numbers: those drawn for one row after the other are equal in batches of any size."""
        return compare_batches([*traces, self._make(sizes[-1], perturbed=True)], [*sizes, sizes[-1]])

    def _make(self, size: int, *, perturbed: bool = False) -> Trace:
        """Make the run with batches of one size."""
        name, title = f"batch-{size}", f"run with batches of {size}"
        if perturbed:
            name, title = f"{name}-perturbed", f"{title} and other random numbers"
        trace, log = self._output.trace(name), self._output.log(name) if self.runs else None
        command = self.request.command(size)
        rows = {"batch": size, "settings": [_PERTURBED] * perturbed}
        spec, on_progress = RunSpec(trace, rows=rows), self.announce(title, log)
        make = partial(record_program, command, spec, log=log, on_progress=on_progress, stdin=self._standard_input)
        result = summarized_run(self.runs, command, trace, make)
        if result.exit_status:
            raise LaunchError(
                "batch-run-failed",
                f"{failed_run_text(title, result.exit_status, log)} Fix it, or leave this size out of --sizes. In training mode "
                "batch norm does not accept a batch of 1.",
            )
        require_recorded(trace, result.exit_status)
        return open_trace(trace)

    def _explained(self, comparison: Comparison, sizes: Sequence[int]) -> Comparison:
        """Try settings until one makes all rows equal, in batches of all sizes."""
        may_try = may_run_further(self.request.explain, self.runs)

        def attempt(trial: Trial) -> Comparison | None:
            try:
                return self._try(trial, comparison, sizes) if may_try else None
            except Interrupted:
                raise
            except DeterminismError as error:
                self.warn(f"{trial.fix.title} could not be tried. {error.message}")
                return None

        search = CureSearch(comparison, attempt)
        try:
            search.run()
        except (Interrupted, KeyboardInterrupt) as interrupt:
            comparison, self.interrupt_status = end_search_early(search.comparison, interrupt, self.warn)
            return comparison
        return search.comparison

    def _try(self, trial: Trial, comparison: Comparison, sizes: Sequence[int]) -> Comparison:
        """Run the program with a trial: first with the two sizes that showed the difference, then with all if these are equal."""
        assert comparison.batch is not None and comparison.batch.difference is not None
        shown = comparison.batch.difference.sizes
        traces: dict[int, Trace] = {}
        names = []
        try:
            for wanted in (sorted(shown), sorted(sizes)):
                for size in wanted:
                    if size not in traces:
                        names.append(f"trial-{trial.fix.identifier}-{size}")
                        traces[size] = self._make_trial(names[-1], trial, size)
                outcome = compare_batches([traces[size] for size in wanted], wanted)
                if not is_cured(outcome, comparison):
                    return outcome
            if outcome.batch is not None and outcome.batch.draws:
                names.append(f"trial-{trial.fix.identifier}-perturbed")
                perturbed = self._make_trial(names[-1], trial, wanted[-1], perturbed=True)
                outcome = compare_batches([*(traces[size] for size in wanted), perturbed], [*wanted, wanted[-1]])
            return outcome
        finally:
            for name in names:
                self._output.discard(name, with_log=False)

    def _make_trial(self, name: str, trial: Trial, size: int, *, perturbed: bool = False) -> Trace:
        trace, log = self._output.trace(name), self._output.log(name)
        title = f"batches of {size}, {trial.fix.title[0].lower()}{trial.fix.title[1:]}"
        result = record_program(
            self.request.command(size),
            RunSpec(trace, rows={"batch": size, "settings": [*trial.settings, *[_PERTURBED] * perturbed]}),
            environment={**os.environ, **trial.environment},
            log=log,
            on_progress=self.announce(title, log),
            stdin=self._standard_input,
        )
        if result.exit_status:
            raise LaunchError(
                "batch-run-failed", f"The program ended with {exit_phrase(result.exit_status)}; its output is in {log}."
            )
        require_recorded(trace, result.exit_status)
        return open_trace(trace)
