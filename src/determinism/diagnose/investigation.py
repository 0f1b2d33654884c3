"""Search for causes: evidence first, then experiments, until the runs are equal or the time is up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from determinism.comparison.divergence import (
    Cause,
    Diagnosis,
    Divergence,
    Experiment,
    Fix,
    Status,
    is_before,
    is_same_line,
)
from determinism.comparison.result import ORDER_OF_SETS, Comparison
from determinism.diagnose.confirm import EQUAL_HERE
from determinism.diagnose.experiments import (
    CLOCK,
    MOST_RUNS,
    SEEDED_LIBRARIES,
    BudgetSpent,
    EarlierDivergence,
    ExperimentRunner,
    Hypothesis,
    Intervention,
    Occurrence,
    Trial,
    are_tried_together,
    as_named,
    cause_of,
    deciding_inspections,
    entropy_named,
    has_other_surroundings,
    is_never_seeded,
    likely_causes_left,
    minimal,
    unexplained_text,
    unseen_text,
)
from determinism.diagnose.fixes import code_change, fixes_for, outside_fix, with_fixes
from determinism.diagnose.hypotheses import (
    KERNEL_LIMIT,
    VARYING_OPS,
    hypotheses,
    hypotheses_of_kind,
    is_beside,
    is_same,
    is_used_at,
    is_varying_kernel,
    may_vary_alone,
    open_status,
    varies_alone,
    with_likely_lines,
)
from determinism.diagnose.program_text import program_of
from determinism.diagnose.sources import TIMED, Source, is_interchangeable
from determinism.errors import LaunchError, first_few
from determinism.factors.catalog import Action, obstacle
from determinism.process_name import is_sent_functions
from determinism.trace.schema import Frame
from determinism.types import Kind

_MOST_CAUSES = 5
_SHIFTED_RUNS = 3
_MOST_UNTRIED = 4
_MOST_PROBES = 3
_FEW = 2
"""Up to this many hypotheses are tried one by one; if there are more, all are tried together first."""
_LEAST_RUNS = 2
"""Whole runs that show a program to be bit-identical, once other runs have ruled out that the divergence vanished by chance."""

_SCHEDULES = frozenset({
    "thread-race", "shared-generator", "process-race", "queue-order", "torn-checkpoint", "arrival-order", "worker-order", "pipeline-order",
    "pipeline-race",
})  # fmt: skip
"""Causes in which timing decides: the only ones to expect where runs differ only occasionally."""

_ADDRESSES = "addresses"
_CACHES, _CACHES_CAUSE = "compile-caches", "warm-compile-cache"
_STAYING = frozenset({_CACHES_CAUSE, "leftover-file"})
"""Causes that make only the first run differ from all others."""
_CAME_ONCE = (
    "The difference did not recur: {} further runs with nothing changed were bit-identical, so fixing something would "
    "prove nothing. Either the first run left something behind that was not seen, such as the state of a service or "
    "of another program, or the difference is rare: -n 10 compares ten runs."
)


class _Found(NamedTuple):
    """A cause whose removal made a divergence disappear."""

    hypothesis: Hypothesis
    experiments: list[Experiment]
    status: Status


@dataclass
class Investigation:
    """A search for causes, which keeps what it has found if it is interrupted."""

    comparison: Comparison
    runner: ExperimentRunner
    plain: Intervention = field(default_factory=Intervention)
    """What all runs have in common: nothing, or what is perturbed on purpose."""
    step_seconds: float | None = None
    """How long a step takes in a plain run; None if that was not measured."""
    can_try_fixes: bool = True
    """Whether the whole program may be run with fixes, beyond what an experiment needs."""
    frameworks: Collection[str] = ("torch",)
    """The frameworks that were recorded."""
    likely: Sequence[Hypothesis] = ()
    """What most likely made the runs differ, judging by what was known before any experiment."""
    likely_of: Callable[[Divergence], Sequence[Hypothesis]] = lambda divergence: ()
    """The same for a later divergence, which appears once the cause of the first one is removed."""
    is_linted: Callable[[Hypothesis], bool] = lambda hypothesis: False
    """Whether a lint rule fires on the line of a candidate, which is then tried first."""
    has_linted_order: bool = False
    """Whether lint names an order of a set: two runs may have the same one by chance, which hides a second cause."""
    command: str = ""
    """The command that continues the search."""
    changed_files: Sequence[str] = ()
    """Files that the plain runs changed in the working directory."""
    executions: int = 1
    """How often the op of the first divergence ran at its line in a plain run."""

    def __post_init__(self) -> None:
        self._held = self.plain
        first = self.comparison.first_divergence
        evidence = self.comparison.evidence
        are_equal = evidence is not None and EQUAL_HERE in evidence.note
        is_race = bool({*self.comparison.racy} - {ORDER_OF_SETS})
        is_race |= first is not None and _may_depend_on_timing(first)
        self._occurrence = Occurrence(is_race=is_race)
        self._occurrence.note(different=1, is_short=False)
        for output in first.outputs[:1] if first is not None else ():
            if output.repeats and output.distinct:
                self._occurrence.note_repeats(output.repeats, output.distinct, self.executions)
            elif output.elements_different is not None or are_equal:
                self._occurrence.is_steady = bool(output.elements_different)
                self._occurrence.note(different=self._occurrence.is_steady, is_short=True)
        self._found: list[_Found] = []
        self._trials: dict[Intervention, Trial] = {}
        self._likely_now: Sequence[Hypothesis] = self.likely
        """What most likely causes the divergence under investigation."""
        self._unexplained: Divergence | None = None
        """The divergence under investigation, until something makes it disappear."""
        self._untried: list[Hypothesis] = []
        """What remains to be tried for the divergence under investigation."""
        self._examined: Sequence[Hypothesis] = ()
        """What the current trial removes."""
        self._too_few: set[Intervention] = set()
        """Interventions that would need more runs than are made, to rule out that their runs were equal by chance."""
        self._made_again: set[Intervention] = set()
        """Interventions for which a second series of runs was made."""
        self._alternatives: list[tuple[str, Trial]] = []
        """Trials of settings outside the program that replace a change to a line, each with the cause it removes."""
        self._probed: Trial | None = None
        self._changed: Trial | None = None
        """Runs with the changed lines."""
        self._experiments_with_changes: list[Experiment] = []
        self._counted: set[Intervention] = set()
        """Interventions whose runs were made past all that is not the divergence under investigation."""
        self._may_be_earlier = False
        """Whether a divergence that some runs show before the one under investigation is explained first."""
        self._causes: list[Cause] = []
        self._fixes: list[Fix] = []
        self._experiments: list[Experiment] = list(self.comparison.experiments)
        self._limit = self.comparison.diagnosis.limit

    @property
    def diagnosis(self) -> Diagnosis:
        """The earlier diagnosis, with what has been found so far."""
        return replace(
            self.comparison.diagnosis,
            causes=tuple(self._causes),
            fixes=tuple(self._fixes),
            experiments=tuple(self._experiments),
            limit=self._limit,
        )

    def run(self) -> None:
        """Investigate, and leave the findings in `diagnosis`.

        Raises:
            LaunchError: The user stopped it; what had been found by then is in `diagnosis`.
        """
        divergence = self.comparison.first_divergence
        try:
            while divergence is not None and len(self._found) < _MOST_CAUSES:
                divergence = self._explain_earliest(divergence)
            self._change_lines()
        except BudgetSpent:
            unseen = "" if self._found or self._probed is None else unseen_text(self._probed)
            left = self._left_text(divergence)
            self._limit = f"The time for further runs has run out; --budget SECONDS allows more.{left}{unseen}"
            self._suppose_what_was_probed(divergence)
        except LaunchError:
            self._suppose_what_was_probed(divergence)
            raise
        finally:
            self._conclude()

    def _explain_earliest(self, divergence: Divergence) -> Divergence | None:
        """Explain a divergence; if other runs differ before it, that is explained first: only then can its own cause make runs equal."""
        try:
            return self._explain(divergence, may_be_earlier=True)
        except EarlierDivergence as found:
            kept, limit, num_found = self._occurrence, self._limit, len(self._found)
            self._occurrence, self._unexplained, self._may_be_earlier = kept.earlier(), found.divergence, False
            if self._probe(found.divergence).shows(found.divergence):
                if (left := self._explain(found.divergence, may_be_earlier=False)) or len(self._found) > num_found:
                    return left
            self._occurrence, self._limit = kept, limit
            # Trials that differed earlier show nothing about this divergence.
            self._trials = {made: one for made, one in self._trials.items() if not one.is_before(divergence)}
            return self._explain(divergence, may_be_earlier=False)

    def _explain(self, divergence: Divergence, *, may_be_earlier: bool) -> Divergence | None:
        """Find the causes of a divergence; return the next one, or None if there is none or this one was not explained.

        If `may_be_earlier` is set, raise `EarlierDivergence` if some runs differ before it.
        """
        self._unexplained, self._may_be_earlier = divergence, may_be_earlier
        if is_varying_kernel(divergence):
            self._found += [_Found(one, [], Status.CONFIRMED) for one in hypotheses_of_kind(divergence)]
            self._limit, self._unexplained = KERNEL_LIMIT, None
            return None
        if self._found:
            self._likely_now = self.likely_of(divergence)
        if cheapest := self._confirmed_at_once(divergence):
            return self._next(cheapest)
        probed = self._probe(divergence)
        if not self._found:
            self.likely = self._likely_now = [one for one in self.likely if not probed.never_used(one)]
        leftovers = self.comparison.leftovers if not self._found else []
        environment = self.comparison.environment if not self._found else []
        if probed.is_equal and has_other_surroundings(self.comparison.environment) and not self._found:
            self._blame_surroundings()
            return None
        candidates = hypotheses(
            divergence,
            probed.sources,
            leftovers=leftovers,
            environment=environment,
            frameworks=self.frameworks,
            changed_files=self.changed_files if not self._found else (),
            unseeded=probed.unseeded_until(divergence),
        )
        candidates = [hypothesis for hypothesis in candidates if self._held.also(hypothesis.intervention) != self._held]
        # What lint names may just as well be the second cause; likely causes apply only to the first divergence.
        named = [one for one in candidates if is_used_at(one, divergence)]
        named += [one for one in candidates if self.is_linted(one) and one not in named]
        candidates = [*named, *(one for one in candidates if one not in named)]
        candidates = with_likely_lines(candidates, self._likely_now)
        # One constant where a seed is made covers every generator seeded with it.
        candidates.sort(key=lambda one: not one.makes_seed)
        named += [one for one in candidates if any(is_same(one, other) for other in self._likely_now)]
        seeds = [Intervention.fix(f"{name}-seed") for name in probed.unseeded_until(divergence)]
        named += [one for one in candidates if one.intervention in seeds and one not in named]
        candidates = self._with_caches_in_place(candidates, probed, divergence)
        is_of_addresses = any(one.cause == "address-order" and one.source is not None for one in candidates)
        if is_of_addresses and obstacle(_ADDRESSES, Action.PERTURBED) is None:
            # Objects often have the same addresses as in the previous run. Fixing any one of several such orders would then seem to help.
            self._held = self._held.also(Intervention.perturb(_ADDRESSES))
        if probed.is_equal and self._occurrence.whole.came_once and not self._found:
            candidates = self._left_behind(candidates, divergence)
            if not candidates:
                return None
        self._untried = candidates
        needed = self._needed(candidates, divergence, named)
        if not needed:
            self._limit = unexplained_text(None if not self._found else divergence, probed)
            self._suppose(divergence, probed.sources)
            return None
        self._take(needed, divergence)
        return self._next(self._trials[self._held])

    def _next(self, trial: Trial) -> Divergence | None:
        """Return the divergence that remains without the causes found; None if there is none."""
        self._unexplained = trial.divergence
        if not trial.is_equal:
            self._occurrence.begin(trial)
            self._counted.clear()
        return trial.divergence

    def _with_caches_in_place(
        self, candidates: list[Hypothesis], probed: Trial, divergence: Divergence
    ) -> list[Hypothesis]:
        """Put compile caches first among the candidates if they make runs differ, and drop them if not: perhaps only the first found none."""
        caches = [one for one in candidates if one.cause == _CACHES_CAUSE]
        if not (caches and probed.is_equal):
            return candidates
        perturbed = Intervention.perturb(_CACHES)
        trial = self.runner.compare(perturbed, runs=2)
        self._experiments.append(trial.experiment(divergence, perturbed))
        others = [one for one in candidates if one not in caches]
        return [*caches, *others] if trial.divergence is not None else others

    def _left_behind(self, candidates: list[Hypothesis], divergence: Divergence) -> list[Hypothesis]:
        """Return the candidates that can still be tested; usually none, where all runs after the first one were equal.

        Such runs would be equal with anything fixed. That changes if further runs differ again, and does not apply to persistent state.
        """
        left = [one for one in candidates if one.cause in _STAYING]
        # That a program changes files does not show that anything reads them.
        if left and self.comparison.leftovers:
            return left
        self._untried = candidates
        trial = self.runner.compare(self._held, runs=self._occurrence.whole.runs_needed(is_race=self._is_race))
        if trial.failure is None and not trial.is_equal:
            self._occurrence.note(pairs=trial.runs - 1, different=1, is_short=False)
            return candidates
        self._untried = []
        self._experiments.append(trial.experiment(divergence, Intervention()))
        self._limit = _CAME_ONCE.format(trial.runs + 2)
        return []

    def _take(self, removed: Sequence[Hypothesis], divergence: Divergence) -> None:
        """Record causes whose joint removal made a divergence disappear."""
        self._may_be_earlier = False
        removed, named = self._all_told_apart(removed, divergence)
        trial = self._trial(removed)
        self._held = trial.intervention
        self._untried = []
        try:
            trial = self._to_the_end(trial, [*(one.hypothesis for one in self._found), *named])
        finally:
            self._found += [
                _Found(
                    name,
                    self._experiments_with(hypothesis, removed),
                    self._status(hypothesis, trial, divergence, len(removed)),
                )
                for name, hypothesis in zip(named, removed, strict=True)
            ]

    def _confirmed_at_once(self, divergence: Divergence) -> Trial | None:
        """Return the trial without a likely cause, if that removes the divergence: no other experiment costs so little."""
        if self._occurrence.whole.came_once:
            # Two further runs were equal, and perhaps all are: equal runs with something fixed then prove nothing.
            return None
        for hypothesis in (*self._varying(divergence), *filter(self._may_be_tried_first, self._likely_now)):
            # Where few runs are conclusive, whole runs cost less than short runs followed by whole ones.
            self._trial([hypothesis], may_be_short=not self._is_certain(self._held.also(hypothesis.intervention)))
            if self._removes([hypothesis], divergence):
                self._take([hypothesis], divergence)
                return self._trials[self._held]
        return None

    def _varying(self, divergence: Divergence) -> list[Hypothesis]:
        """Return the fix for an op that was seen to vary by itself: nothing that the program takes from outside explains that."""
        if (
            not may_vary_alone(divergence)
            or self.comparison.leftovers
            or has_other_surroundings(self.comparison.environment)
        ):
            return []
        candidates = hypotheses(divergence, (), leftovers=(), frameworks=self.frameworks)
        return [one for one in candidates if one.cause in VARYING_OPS][:1]

    def _may_be_tried_first(self, likely: Hypothesis) -> bool:
        return likely.cause in SEEDED_LIBRARIES.values() or self._can_change_line(likely)

    def _can_change_line(self, hypothesis: Hypothesis) -> bool:
        """Whether the text shows a use of a likely cause on a line that can be changed; not if timing decides or a time is compared."""
        sources = {held.source for held in hypothesis.intervention.sources}
        is_alone = bool(sources) and (hypothesis.makes_seed or sources.isdisjoint({*TIMED, CLOCK}))
        return is_alone and self.can_try_fixes and not self._is_race and code_change(hypothesis) is not None

    def _left_text(self, divergence: Divergence | None) -> str:
        """Say what was not tried and which command would try it; begins with a space."""
        if divergence is None:
            return ""
        untried = self._untried or hypotheses(divergence, (), leftovers=(), frameworks=self.frameworks)
        interventions = [
            hypothesis.intervention for hypothesis in untried if not self._is_tried(hypothesis.intervention)
        ]
        names = list(dict.fromkeys(hypothesis.title for hypothesis in interventions))
        if not names:
            return ""
        text = f" Not tried: {first_few(names, _MOST_UNTRIED)}."
        return f"{text} To continue: {self.command}" if self.command else text

    def _status(self, hypothesis: Hypothesis, trial: Trial, divergence: Divergence, num_needed: int) -> Status:
        """Return how certain a cause is whose removal made a divergence disappear.

        That an op varies by itself is confirmed only if it varied when repeated by itself. Of runs that differ only occasionally,
        some are equal whatever is fixed: a few equal runs confirm only what the divergence itself points to. The same holds where
        many factors that nothing points to had to be fixed together: one difference hardly has so many causes.
        """
        if hypothesis.cause in VARYING_OPS:
            return Status.CONFIRMED if varies_alone(divergence) else Status.LIKELY
        is_pointed_to = hypothesis.source is not None or hypothesis.cause in _SCHEDULES
        is_doubtful = trial.intervention in self._too_few or num_needed > _FEW
        return Status.LIKELY if is_doubtful and not is_pointed_to else Status.CONFIRMED

    def _blame_surroundings(self) -> None:
        """Blame the environment: two further runs agree, and the runs that differ had different environments."""
        apart = self.comparison.environment
        differing = [f"{name} was {value} in one run and {another} in the other." for name, value, another in apart]
        if not self._likely_now:
            # Where something is likely, the program was seen to choose these settings itself.
            likely = Hypothesis("environment-difference", Intervention(), (), tuple(differing[:5]))
            self._causes.append(cause_of(likely, Status.LIKELY, []))
        self._limit = "Two further runs in the same environment were equal, so no experiment was made."

    def _probe(self, divergence: Divergence) -> Trial:
        """Observe what two runs take from outside, and again if these two do not show a divergence that comes and goes."""
        known = self._probed
        if known is not None and known.intervention == self._held and known.shows(divergence):
            return known
        for _ in range(_MOST_PROBES):
            trial = self.runner.probe(self._held)
            if trial.failure is not None:
                return trial
            self._raise_if_earlier(trial)
            # What differs elsewhere, without this divergence, says nothing about how often it occurs; in a race, any place may be the first.
            is_shown = trial.divergence is not None and trial.shows(divergence)
            is_counted = not trial.is_equal if self._is_race else is_shown
            self._occurrence.note(different=is_counted, is_short=trial.steps is not None)
            if trial.divergence is not None and not is_shown:
                self._occurrence.is_steady = False
            self._probed = trial
            if is_counted or self._is_race or trial.divergence is None:
                break
        return trial

    @property
    def _is_race(self) -> bool:
        """Whether the first divergence depends on timing."""
        return self._occurrence.is_race

    def _raise_if_earlier(self, trial: Trial) -> None:
        """Raise `EarlierDivergence` if a trial differs before the divergence under investigation; not if timing or a perturbation may explain that."""
        at, found = self._unexplained, trial.divergence
        if not self._may_be_earlier or self._is_race or at is None or found is None or not is_before(found, at):
            return
        added = trial.intervention.without(self.plain).factors
        if not any(action is Action.PERTURBED for _, action in added):
            raise EarlierDivergence(found)

    def _needed(
        self, candidates: Sequence[Hypothesis], divergence: Divergence, named: Collection[Hypothesis]
    ) -> Sequence[Hypothesis]:
        """Return a minimal set of causes whose removal makes a divergence disappear.

        Candidates are tried one by one in their order, but a stretch of many sources is first taken as a whole: those of the program
        apart from those of libraries, and those that the program's text names apart from the others. Finally all are tried together.
        All candidates that something points to are tried together before those that nothing points to.
        """
        turns = Intervention.fix("thread-schedule") if is_beside(divergence) else None
        pointed = [one for one in candidates if one.source or one in named or one.intervention == turns]
        alone = [one for one in pointed if self._held.also(one.intervention) not in self._trials]
        may_be_several, rest = len(pointed) > 1, list(candidates)
        while rest:
            if may_be_several and not any(one in rest for one in alone):
                may_be_several = False
                if self._removes(pointed, divergence):
                    return minimal(pointed, lambda some: self._removes(some, divergence))
            stretch = [rest.pop(0)]
            is_named = stretch[0] in named
            while rest and (rest[0] in named) is is_named and are_tried_together(stretch[0], rest[0]):
                stretch.append(rest.pop(0))
            if len(stretch) <= _FEW:
                for hypothesis in stretch:
                    if self._removes([hypothesis], divergence):
                        return [hypothesis]
            elif self._removes(stretch, divergence):
                return minimal(stretch, lambda some: self._removes(some, divergence))
        if len(candidates) > 1 and self._removes(candidates, divergence):
            return minimal(candidates, lambda some: self._removes(some, divergence))
        return []

    def _removes(self, together: Sequence[Hypothesis], divergence: Divergence) -> bool:
        """Whether a divergence disappears when some causes are removed."""
        trial = self._trial(together)
        if trial.is_equal and self._may_be_chance(together, divergence):
            trial = self._again(trial, divergence)
        if not trial.removes(divergence) or trial.is_equal or trial.divergence is None:
            return trial.is_equal
        if self._is_race and is_same_line(trial.divergence, divergence):
            return False
        if self._occurrence.is_steady and (
            self._is_certain(trial.intervention) or self._is_seen_again(trial, divergence)
        ):
            return True
        return not self._occurrence.is_steady and self._stays_away(trial, together, divergence)

    def _may_be_chance(self, together: Sequence[Hypothesis], divergence: Divergence) -> bool:
        """Whether the program takes in what timing decides, or nothing seen to vary, and nothing points to what was fixed instead.

        The same holds if workers that share their work were given the same values: timing decides which of them takes what.
        """
        if divergence.kind in (Kind.RNG, Kind.UNINITIALIZED):
            return False
        sources = self._probed.sources if self._probed is not None else ()
        likely = {site for one in self._likely_now for site in one.sites}
        is_pointed_to = all(
            one.source is not None or one.cause in _SCHEDULES or likely & {*one.sites[:1]} or self.is_linted(one)
            for one in together
        )
        removed = [found.hypothesis.source for found in self._found]
        is_shared = any(source is not None and is_interchangeable(source.process) for source in removed)
        is_unexplained = not sources and divergence.kind in (Kind.ARGUMENT, Kind.ORDER)
        return not is_pointed_to and (is_shared or is_unexplained or any(source.source in TIMED for source in sources))

    def _again(self, trial: Trial, divergence: Divergence) -> Trial:
        """Repeat a trial with the most runs ever made, unless that was done before: fixing something unrelated also changes the timing."""
        if trial.intervention not in self._made_again:
            again = self.runner.compare(trial.intervention, runs=MOST_RUNS)
            self._made_again.add(trial.intervention)
            self._trials[trial.intervention] = again
            self._experiments.append(again.experiment(divergence, trial.intervention.without(self._held)))
        return self._trials[trial.intervention]

    def _is_seen_again(self, trial: Trial, divergence: Divergence) -> bool:
        """Whether new runs diverge where they did before, both with what was held so far and with what is held now.

        Two runs of a program whose threads race may diverge later by chance, whatever is fixed.
        """
        before = self.runner.compare(self._held, runs=2, may_be_short=self._may_end_early)
        if not before.shows(divergence):
            self._occurrence.is_steady = False
            if not self._is_race:
                self._occurrence.note(different=0, is_short=before.steps is not None)
            return False
        return self.runner.compare(trial.intervention, runs=2, may_be_short=self._may_end_early).removes(divergence)

    def _stays_away(self, trial: Trial, together: Sequence[Hypothesis], divergence: Divergence) -> bool:
        """Whether a divergence that comes and goes is absent from as many runs as show that this is not by chance, whatever differs later."""
        if self._is_race or self._may_be_chance(together, divergence):
            return False
        if trial.intervention not in self._counted:
            runs = self._runs_needed(trial.intervention, may_be_short=True)
            added = trial.intervention.without(self._held)
            trial = self._made(trial.intervention, added, may_be_short=True, runs=runs, past=divergence)
        return trial.removes(divergence)

    def _trial(self, together: Sequence[Hypothesis], *, may_be_short: bool = True, tried: int | None = None) -> Trial:
        """Run the program with some causes removed, unless that was done before; see `_runs_needed`."""
        intervention = self._held.also(*(one.intervention for one in together))
        if intervention not in self._trials:
            self._examined = together
            runs = self._runs_needed(intervention, may_be_short=may_be_short, tried=tried)
            past = None if self._occurrence.is_steady or self._is_race else self._unexplained
            self._made(intervention, intervention.without(self._held), may_be_short=may_be_short, runs=runs, past=past)
            self._examined = ()
        self._raise_if_earlier(self._trials[intervention])
        return self._trials[intervention]

    def _made(
        self,
        intervention: Intervention,
        added: Intervention,
        *,
        may_be_short: bool,
        runs: int,
        past: Divergence | None = None,
    ) -> Trial:
        """Make the runs of a trial; see `ExperimentRunner.compare`."""
        trial = self.runner.compare(
            intervention, runs=runs, may_be_short=may_be_short and self._may_end_early, past=past
        )
        self._trials[intervention] = trial
        if past is not None:
            self._counted.add(intervention)
        about = self._unexplained or self.comparison.first_divergence
        if about is not None:
            self._experiments.append(trial.experiment(about, added))
        is_shown = self._is_race or self._unexplained is None or trial.shows(self._unexplained)
        if trial.failure is None and not trial.is_equal and is_shown:
            self._occurrence.note(pairs=trial.runs - 1, different=1, is_short=trial.steps is not None)
        return trial

    def _runs_needed(self, intervention: Intervention, *, may_be_short: bool, tried: int | None = None) -> int:
        """Return how many equal runs show that the intervention, and not chance, removed a divergence.

        Args:
            intervention: The intervention.
            may_be_short: Whether runs that end soon after the first difference suffice.
            tried: How many others were tried; if None, the number of trials so far.
        """
        tried = len(self._trials) if tried is None else tried
        runs, are_enough = self._occurrence.runs_needed(tried=tried, are_short=may_be_short and self._may_end_early)
        if not are_enough:
            self._too_few.add(intervention)
        return _LEAST_RUNS if self._is_certain(intervention) else runs

    @property
    def _may_end_early(self) -> bool:
        """Whether runs that end soon after the first divergence show as much as whole ones.

        They end before any later divergence. And the shorter the runs of a race, the more often they are equal by chance: they
        suffice only where such runs, with nothing removed, were seen to differ.
        """
        return not self._found and (not self._is_race or self._occurrence.short.is_always)

    def _is_certain(self, intervention: Intervention) -> bool:
        """Whether two runs without it never agree: a generator that nobody seeded starts from random bytes of the operating system."""
        at = self._unexplained if self._occurrence.whole.is_always and not self.has_linted_order else None
        return at is not None and any(
            self._held.also(one.intervention) == intervention and is_never_seeded(one, at) for one in self._likely_now
        )

    def _to_the_end(self, trial: Trial, found: Sequence[Hypothesis]) -> Trial:
        """Return the trial; if its runs were equal but ended early, one of whole runs, unless runs with the changed lines show as much."""
        if trial.steps is None or not trial.is_equal:
            return trial
        fixed = with_fixes(found, self._surroundings)
        if self.can_try_fixes and fixed.changes and self._with_lines_changed(fixed).is_equal:
            return trial
        added = trial.intervention.without(self.plain)
        is_proof = any(fix.verified for fix in fixes_for(found, trial, None, None))
        needs_all = self._is_race and is_proof
        runs = self._runs_needed(trial.intervention, may_be_short=False) if needs_all else _LEAST_RUNS
        return self._made(trial.intervention, added, may_be_short=False, runs=runs)

    def _all_told_apart(
        self, removed: Sequence[Hypothesis], divergence: Divergence
    ) -> tuple[Sequence[Hypothesis], Sequence[Hypothesis]]:
        """Return what to remove, and the causes by their correct names; if that is interrupted, keep them as likely, as they were named."""
        try:
            named = [self._by_addresses(hypothesis, removed, divergence) for hypothesis in removed]
            can_be_fixed = named != removed and obstacle(_ADDRESSES, Action.FIXED) is None
            if can_be_fixed and self._removes(named, divergence):
                removed = named
            return removed, [self._told_apart(hypothesis, removed, divergence) for hypothesis in named]
        except (BudgetSpent, LaunchError):
            self._held, self._untried = self._trial(removed).intervention, []
            self._found += [_Found(one, self._experiments_with(one, removed), Status.LIKELY) for one in removed]
            raise

    def _by_addresses(
        self, hypothesis: Hypothesis, removed: Sequence[Hypothesis], divergence: Divergence
    ) -> Hypothesis:
        """Blame the order of addresses instead of that of hashes, where the runs differ by addresses.

        The salt of strings also changes what is allocated. With a fixed salt, a few runs may be equal by chance: so memory is moved.
        """
        if hypothesis.cause != "hash-order" or hypothesis.intervention != Intervention.fix("hash-seed"):
            return hypothesis
        moving = replace(hypothesis, intervention=hypothesis.intervention.also(Intervention.perturb(_ADDRESSES)))
        moved = self._trial([moving if one is hypothesis else one for one in removed], tried=0)
        if moved.failure is not None or moved.divergence is None or not is_same_line(moved.divergence, divergence):
            return hypothesis
        return replace(hypothesis, cause="address-order", intervention=Intervention.fix(_ADDRESSES, "hash-seed"))

    def _told_apart(self, hypothesis: Hypothesis, removed: Sequence[Hypothesis], divergence: Divergence) -> Hypothesis:
        """Return the cause by its correct name, where what removes it leaves that open.

        A generator may be seeded, but too late. An order or a hash depends on strings, which a fixed salt makes equal, or on addresses.
        """
        probed = self._probed if self.can_try_fixes else None
        if hypothesis.cause == CLOCK and probed is not None and self._trial(removed).is_equal:
            return self._deciding(hypothesis, removed, probed.sources)
        if hypothesis.cause == "outside-entropy" and hypothesis.source is None:
            return entropy_named(hypothesis, self._trial(removed).entropy)
        if seeded_later := self._seeded_later(hypothesis, divergence):
            return replace(hypothesis, cause="seed-too-late", sites=(*seeded_later, *hypothesis.sites))
        is_salted = hypothesis.cause in ("hash-order", "hash-value") and bool(hypothesis.intervention.sources)
        # Nothing is left open about sortable elements, and a salt can be offered as another fix only if it makes runs equal.
        is_sortable = hypothesis.source is not None and hypothesis.source.elements == "sortable"
        if not (is_salted and self.can_try_fixes) or (is_sortable and not self._trial(removed).is_equal):
            return hypothesis
        salted = replace(hypothesis, intervention=Intervention.fix("hash-seed"))
        instead = [salted if other is hypothesis else other for other in removed]
        # This does not count as another candidate cure: the cure is known by now.
        self._trial(instead, tried=0)
        if not self._removes(instead, divergence):
            return replace(hypothesis, cause="address-order")
        self._alternatives.append((hypothesis.cause, self._trial(instead)))
        return hypothesis

    def _deciding(self, hypothesis: Hypothesis, removed: Sequence[Hypothesis], sources: Sequence[Source]) -> Hypothesis:
        try:
            held = self._trial(removed).intervention
            return deciding_inspections(
                hypothesis,
                sources,
                held,
                lambda shifted: self.runner.compare(shifted, runs=_SHIFTED_RUNS, may_be_short=self._may_end_early),
                {(site.file, site.line) for one in self._likely_now if one.cause == CLOCK for site in one.sites[:1]},
            )
        except BudgetSpent:
            return hypothesis

    def _seeded_later(self, hypothesis: Hypothesis, divergence: Divergence) -> list[Frame]:
        """Return where a cause's generator was seeded after it had been drawn from."""
        library = next((name for name, cause in SEEDED_LIBRARIES.items() if cause == hypothesis.cause), None)
        if library is None or self._probed is None or divergence.stream is not None:
            return []
        drawn = divergence.record if hypothesis.source is None else hypothesis.source.records[0]
        calls = self._probed.seedings.get(library, ())
        return [site.frame for site, records in calls if records > drawn][:1]

    def _change_lines(self) -> None:
        """Run the program with the changed lines themselves, where changing lines is what removes a cause."""
        last = self._trials.get(self._held)
        fixed = with_fixes([one.hypothesis for one in self._found], self._surroundings)
        first = self.comparison.first_divergence
        if not (self.can_try_fixes and fixed.changes and last is not None and last.is_equal) or first is None:
            return
        if self._changed is None or self._changed.intervention != fixed:
            self._with_lines_changed(fixed)
        for one in self._found:
            if code_change(one.hypothesis) is not None:
                one.experiments.append(self._experiments_with_changes[-1])

    @property
    def _surroundings(self) -> Intervention:
        """What all runs have in common, and what is perturbed so that they are not equal by chance."""
        moving = Intervention.perturb(_ADDRESSES)
        return self.plain.also(moving) if self._held.covers(moving) else self.plain

    def _with_lines_changed(self, fixed: Intervention) -> Trial:
        # The trial without the causes already showed that the divergence does not vanish by chance.
        runs = self._occurrence.whole.runs_needed(is_race=True) if self._is_race else _LEAST_RUNS
        self._changed = self.runner.compare(fixed, runs=runs)
        if self.comparison.first_divergence is not None:
            made = self._changed.experiment(self.comparison.first_divergence, fixed.without(self.plain))
            self._experiments.append(made)
            self._experiments_with_changes.append(made)
        return self._changed

    def _experiments_with(self, hypothesis: Hypothesis, removed: Sequence[Hypothesis]) -> list[Experiment]:
        """Return the experiments that support a cause: with all causes removed, and with all but this one."""
        others = [one for one in removed if one is not hypothesis]
        names = [Intervention().also(*(one.intervention for one in part)).name for part in (removed, others)]
        return [experiment for experiment in self._experiments if experiment.factor in names]

    def _suppose_what_was_probed(self, divergence: Divergence | None) -> None:
        """After an interruption, name an op that was seen to vary, or list what the search was trying, and was about to try."""
        if divergence is None or self._found:
            return
        if self._probed is None:
            kinds = hypotheses_of_kind(divergence) if varies_alone(divergence) else []
            self._causes += [cause_of(one, Status.LIKELY, []) for one in kinds]
            return
        if len(self._examined) <= _FEW and not varies_alone(divergence):
            self._causes += [cause_of(one, Status.POSSIBLE, []) for one in self._examined]
        self._suppose(divergence, self._probed.sources)

    def _suppose(self, divergence: Divergence, sources: Sequence[Source]) -> None:
        """Add causes that something points to but no experiment showed, and untried outside sources."""
        self._causes += [cause_of(one, Status.LIKELY, []) for one in hypotheses_of_kind(divergence)]
        named = {as_named(cause) for cause in self._causes}
        for one in hypotheses(divergence, sources, leftovers=()):
            status = open_status(one, divergence, self._is_tried)
            if status and as_named(cause := cause_of(one, status, [])) not in named:
                self._causes.append(cause)

    def _is_tried(self, intervention: Intervention) -> bool:
        """Whether runs with an intervention were made, alone or with others; in the latter case they still differed."""
        refuted = (made for made, trial in self._trials.items() if trial.failure is None and not trial.is_equal)
        return (
            intervention in self._trials
            or self._held.also(intervention) in self._trials
            or any(made.covers(intervention) for made in refuted)
        )

    def _conclude(self) -> None:
        named: dict[tuple[str, tuple[Frame, ...]], Cause] = {}
        for one in self._found:
            cause = cause_of(one.hypothesis, one.status, one.experiments)
            key = as_named(cause)
            known = named.get(key)
            named[key] = cause if known is None else replace(known, experiments=(*known.experiments, *one.experiments))
        self._causes = [*named.values(), *self._causes]
        if not any(cause.status is Status.CONFIRMED for cause in self._causes):
            # What the program's text shows comes before what runs that were equal by chance may have shown.
            shown = {as_named(cause) for cause in self._causes if cause.status is not Status.POSSIBLE}
            left = likely_causes_left(self.likely, self._is_tried)
            likely = [cause for cause in left if as_named(cause) not in shown]
            said = {as_named(cause) for cause in likely}
            self._causes = [*likely, *(cause for cause in self._causes if as_named(cause) not in said)]
        elif self._unexplained is not None and self._found:
            # The causes found do not explain everything, and the search ended before it reached the rest.
            self._causes += likely_causes_left(self._likely_now, self._is_tried)
        last, first = self._trials.get(self._held), self.comparison.first_divergence
        self._fixes = [
            *fixes_for(
                [one.hypothesis for one in self._found],
                last,
                self._changed,
                self.step_seconds,
                program_of(self.comparison),
                is_in_task=first is not None and is_sent_functions(first.process),
            ),
            *(outside_fix(cause, trial, self.step_seconds) for cause, trial in self._alternatives),
        ]


def _may_depend_on_timing(divergence: Divergence) -> bool:
    """Whether what differs may well be equal by chance."""
    is_at_once = divergence.kind in (Kind.OP, Kind.MUTATION) or divergence.received_at is not None
    return is_at_once or is_beside(divergence)
