"""Goes on with a check when its runs differ: looks for the causes, and tries the fixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from determinism.comparison.result import Comparison
from determinism.diagnose.intervention import Intervention
from determinism.diagnose.investigation import Investigation
from determinism.diagnose.varying import responsible_factors
from determinism.errors import DeterminismError
from determinism.factors.catalog import Action
from determinism.factors.surroundings import obstacle
from determinism.launch.check_request import CheckRequest
from determinism.launch.laboratory import Laboratory, least_step_seconds
from determinism.launch.output_folder import OutputFolder
from determinism.launch.program import ProgressCallback
from determinism.launch.standard_input import StandardInput
from determinism.trace.reader import Trace
from determinism.types import Verdict

VARIED_RUNS = 3
"""How many runs are made with factors stirred: two may come out alike by chance."""

_RUNS = 30
_LEAST_SECONDS = 60.0
_MOST_SECONDS = 900.0


def explain(
    comparison: Comparison,
    request: CheckRequest,
    output: OutputFolder,
    standard_input: StandardInput,
    announce: Callable[[str, Path | None], ProgressCallback | None],
    warn: Callable[[str], None],
    *,
    traces: Sequence[Trace],
    varied: Sequence[str] = (),
) -> None:
    """Make further runs to find what makes the runs differ; causes, experiments and fixes go into the comparison.

    Args:
        comparison: Of the runs.
        request: How they were made.
        output: Where traces and logs go while they are needed.
        standard_input: What each run reads.
        announce: Called with what comes next and the log of its output.
        warn: Gets what the user has to know.
        traces: Of the plain runs.
        varied: The factors that were stirred on purpose in the runs that differ.
    """
    if comparison.verdict is not Verdict.DIFFERENT or comparison.first_divergence is None:
        return
    run_seconds = max(run.seconds for run in comparison.runs)
    budget = request.budget if request.budget is not None else default_budget(run_seconds)
    warn(f"The runs differ. Looking for the cause with further runs, for at most {budget:.0f} s (--budget).")
    with Laboratory(
        request,
        output,
        standard_input,
        announce,
        budget=budget,
        run_seconds=run_seconds,
        exit_statuses=frozenset(run.exit_status for run in comparison.runs),
    ) as laboratory:
        try:
            plain = Intervention()
            if varied:
                comparison.varied = responsible_factors(comparison, varied, laboratory)
                plain = Intervention.stir(*comparison.varied)
            seconds = least_step_seconds(traces)
            frameworks = {str(p.description.get("framework")) for trace in traces for p in trace.processes}
            Investigation(
                comparison, laboratory, plain, seconds, can_try_fixes=request.fix, frameworks=frameworks
            ).run()
        except (DeterminismError, KeyboardInterrupt) as error:
            # What is known stands.
            comparison.diagnosis = "The search for causes was broken off; what was known until then stands here."
            warn(f"The search for causes was broken off. {getattr(error, 'message', 'Ctrl-C came in.')}")


def default_budget(run_seconds: float) -> float:
    """Seconds for further runs where the user gives none.

    Args:
        run_seconds: How long a run takes.
    """
    return min(max(_RUNS * run_seconds, _LEAST_SECONDS), _MOST_SECONDS)


def possible_factors(names: Sequence[str], warn: Callable[[str], None]) -> list[str]:
    """The factors that can be stirred on this machine.

    Args:
        names: Those that were asked for.
        warn: Gets why another one cannot.
    """
    found = []
    for name in names:
        why_not = obstacle(name, Action.STIRRED)
        if why_not is None:
            found.append(name)
        else:
            warn(f"{name} is not stirred: {why_not}.")
    return found
