"""What lint says of the lines that an experiment could fix, so that `check` tries those first that a rule names.

Lint leaves alone what cannot change a result: a set that is only counted, a clock that is only logged. Of all that a program took from
outside, what a rule names is therefore the likelier cause. A rule decides nothing but the order: a cause is named only by an experiment.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from determinism.comparison.result import Comparison
from determinism.diagnose.experiments import SEEDED_LIBRARIES, Hypothesis
from determinism.diagnose.likely import recorded_lines
from determinism.diagnose.program_flow import Module
from determinism.lint.findings import Finding, Severity
from determinism.lint.run import findings_of
from determinism.trace.reader import Trace

_MOST_FILES = 8
"""Files of candidates that are read; what is left is tried in the order that it has without lint."""
_MOST_LINES = 20_000
"""Of all of them together: two seconds on a slow machine."""
_BY_HASHES = ("hash-order", "hash-value")
_SAME = ({"hash-order", "address-order"},)
"""Causes that only an experiment can tell apart."""


def foreseen(script: Path, *, has_fixed_hashes: bool, is_seeded: bool) -> list[Finding]:
    """What will make runs of a program differ, as its first file shows; what only may is not among it.

    Args:
        script: The file that is run.
        has_fixed_hashes: Whether strings have the same hashes in each run, by PYTHONHASHSEED.
        is_seeded: Whether the global generators are seeded from outside the program.
    """
    module = Module.read(str(script))
    if module is None or len(module.lines) > _MOST_LINES:
        return []
    settled = {*(_BY_HASHES if has_fixed_hashes else ()), *(SEEDED_LIBRARIES.values() if is_seeded else ())}
    found = findings_of(module)
    return [one for one in found if one.severity is Severity.DIFFERS and one.rule not in settled]


class LintedCandidates:
    """Says of a candidate whether a rule with the identifier of its cause fires at its line."""

    def __init__(self, comparison: Comparison, traces: Sequence[Trace]) -> None:
        """Read nothing yet.

        Args:
            comparison: Of the runs.
            traces: Of the same runs.
        """
        self._divergence = comparison.first_divergence
        self._traces = traces
        self._rules: dict[str, dict[int, set[str]]] = {}
        self._lines_read = 0

    def __call__(self, hypothesis: Hypothesis) -> bool:
        """Whether lint names the line of a candidate."""
        source = hypothesis.source
        if source is None or source.is_in_library:
            return False
        names = next((names for names in _SAME if hypothesis.cause in names), {hypothesis.cause})
        by_line = self._rules_in(source.site.file)
        lines = range(source.site.line, max(source.site.end_line, source.site.line) + 1)
        return any(by_line.get(line, set()) & names for line in lines)

    @cached_property
    def _recorded(self) -> dict[str, set[tuple[int, str]]]:
        return {} if self._divergence is None else recorded_lines(self._divergence, self._traces)

    def _rules_in(self, file: str) -> dict[int, set[str]]:
        """By line the rules that fire in a file; nothing if it is not as it was when it ran."""
        if file not in self._rules:
            self._rules[file] = {}
            if len(self._rules) <= _MOST_FILES and self._lines_read < _MOST_LINES:
                module = Module.read(file)
                if module is not None and len(module.lines) + self._lines_read <= _MOST_LINES:
                    self._lines_read += len(module.lines)
                    if module.has(self._recorded.get(file, set())):
                        for finding in findings_of(module):
                            self._rules[file].setdefault(finding.line, set()).add(finding.rule)
        return self._rules[file]
