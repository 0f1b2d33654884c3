"""Experiments: runs of the program under one intervention, and what they show about a divergence."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path, PurePath
from typing import Protocol

from determinism.comparison.divergence import (
    Cause,
    Diagnosis,
    Divergence,
    Experiment,
    Status,
    is_before,
    is_later,
    is_same_line,
    is_same_place,
    what_op_does,
)
from determinism.compile_caches import COMPILE_CACHES, FACT
from determinism.diagnose.parsed_module import Module
from determinism.diagnose.sources import ANSWERED, Source, SourceSite, Unprobed, use_text
from determinism.environment import CHOICE_OF_KERNEL
from determinism.factors.catalog import FACTORS, Action
from determinism.op_semantics import OpSemantics
from determinism.run_spec import CodeChange, FixedSource
from determinism.trace.schema import Frame
from determinism.types import Kind, Verdict

# The known causes, with what removes each.

_FILE = Path(__file__).with_name("data") / "causes.toml"


@dataclass(frozen=True)
class CauseEntry:
    """What is known about one cause."""

    identifier: str
    title: str
    why: str
    remedy: str
    code: str | None = None
    """What to write at the start of the program; None where an existing line has to change."""
    env: tuple[tuple[str, str], ...] | None = None
    """Environment variables that remove it."""
    side_effect: str | None = None
    """What else the remedy changes."""


@cache
def causes() -> dict[str, CauseEntry]:
    """Return every cause by its identifier."""
    with _FILE.open("rb") as file:
        entries = tomllib.load(file)
    return {
        identifier: CauseEntry(
            identifier,
            **{**entry, "env": tuple((name, value) for name, value in entry["env"]) if "env" in entry else None},
        )
        for identifier, entry in entries.items()
    }


# What an experiment changes about a run of the program.

_MOST_NAMES = 2
_ENTROPY = "entropy"
"""Name of the factor, and of the source, for random bytes of the operating system."""


@dataclass(frozen=True)
class Intervention:
    """Factors that are fixed or perturbed, and sources that are fixed at their lines."""

    factors: frozenset[tuple[str, Action]] = frozenset()
    sources: frozenset[FixedSource] = field(default=frozenset())
    fresh_copy: bool = False
    """Whether each run starts in a new copy of the working directory."""
    changes: frozenset[CodeChange] = frozenset()
    """Lines of the program that are replaced, in memory."""

    @classmethod
    def fix(cls, *factors: str) -> Intervention:
        """Fix factors."""
        return cls(frozenset((name, Action.FIXED) for name in factors))

    @classmethod
    def perturb(cls, *factors: str) -> Intervention:
        """Perturb factors."""
        return cls(frozenset((name, Action.PERTURBED) for name in factors))

    def also(self, *others: Intervention) -> Intervention:
        """Combine all; what one of them fixes is not perturbed."""
        every = (self, *others)
        factors = frozenset().union(*(one.factors for one in every))
        fixed = {name for name, action in factors if action is Action.FIXED}
        return Intervention(
            frozenset((name, action) for name, action in factors if action is Action.FIXED or name not in fixed),
            frozenset().union(*(one.sources for one in every)),
            any(one.fresh_copy for one in every),
            frozenset().union(*(one.changes for one in every)),
        )

    def without(self, other: Intervention) -> Intervention:
        """Return this intervention, less what the other does."""
        return Intervention(
            self.factors - other.factors,
            self.sources - other.sources,
            self.fresh_copy and not other.fresh_copy,
            self.changes - other.changes,
        )

    def covers(self, other: Intervention) -> bool:
        """Whether this does everything that the other one does."""
        return other.without(self) == Intervention()

    @property
    def in_order(self) -> tuple[FixedSource, ...]:
        """The sources, sorted by file and line."""
        return tuple(sorted(self.sources, key=lambda source: (source.file, source.line, source.source)))

    @property
    def fixes_entropy(self) -> bool:
        """Whether random bytes of the operating system are fixed, and with them the names of temporary files."""
        return (_ENTROPY, Action.FIXED) in self.factors or any(source.source == _ENTROPY for source in self.sources)

    @property
    def name(self) -> str:
        """What it acts on."""
        return (" and ".join(self._names) or "nothing") + self._beside

    @property
    def title(self) -> str:
        """What it acts on, in a few words."""
        # Many clocks are frozen while one is shifted: the shifted one distinguishes one experiment from the next.
        names = sorted(self._names, key=lambda name: not name.startswith("shifted "))
        more = len(names) - _MOST_NAMES
        shown = names if more < 2 else [*names[:_MOST_NAMES], f"{more} more"]
        return " and ".join(shown) or "nothing"

    @property
    def summary(self) -> str:
        """What is done, in a few words."""
        return f"{self.title} {self.action}{self._beside}"

    @property
    def _beside(self) -> str:
        """What is perturbed while other factors are fixed."""
        perturbed = [name for name, action in sorted(self.factors) if action is Action.PERTURBED]
        return f" with perturbed {' and '.join(perturbed)}" if perturbed and self.action == "fixed" else ""

    @property
    def _names(self) -> list[str]:
        names = [name for name, action in sorted(self.factors) if action is Action.FIXED or self.action == "perturbed"]
        names += [f"{source.source} at {_source_place(source)}" for source in self.in_order]
        names += ["fresh copy of the working directory"] * self.fresh_copy
        return names + [f"line {place}" for place in self._changed_places]

    @property
    def ordered_changes(self) -> tuple[CodeChange, ...]:
        """The changes, sorted by file and line."""
        return tuple(sorted(self.changes, key=lambda change: (change.file, change.changes[0].line)))

    @property
    def _changed_places(self) -> list[str]:
        return [f"{PurePath(one.file).name}:{one.changes[0].line}" for one in self.ordered_changes]

    @property
    def action(self) -> str:
        """`perturbed` if it only perturbs, `changed` if it does nothing, else `fixed`."""
        if self == Intervention():
            return "changed"
        actions = {action for _, action in self.factors}
        return (
            "perturbed"
            if actions == {Action.PERTURBED} and not (self.sources or self.fresh_copy or self.changes)
            else "fixed"
        )

    @property
    def phrase(self) -> str:
        """What was done, as a phrase to follow "with"."""
        phrases = []
        for name, action in sorted(self.factors):
            done = FACTORS[name].fixed if action is Action.FIXED else FACTORS[name].perturbed
            phrases.append(f"{name} {action} ({done})")
        phrases += [f"{source.source} fixed at {_source_place(source)}" for source in self.in_order]
        if self.fresh_copy:
            phrases.append("a fresh copy of the working directory for each run")
        phrases += [f"line {place} changed" for place in self._changed_places]
        return " and ".join(phrases) or "nothing changed"


def _source_place(source: FixedSource) -> str:
    return f"{PurePath(source.file).name}:{source.line}"


# What may have made two runs differ, and the lines that a divergence points to.

_STARTS_BACKWARD = re.compile(r"\b(backward|grad)\(")


@dataclass(frozen=True)
class Hypothesis:
    """A cause that would explain a divergence, and the experiment that shows whether it does."""

    cause: str
    intervention: Intervention
    """What removes the cause."""
    sites: tuple[Frame, ...] = ()
    evidence: tuple[str, ...] = ()
    source: Source | None = None
    """The outside source, where that is the cause."""
    calls: tuple[Frame, ...] = ()
    """The first of the sites and its callers, innermost first; empty if unknown."""

    @property
    def makes_seed(self) -> bool:
        """Whether it concerns what a seed is made from, such as the clock, and not the call that sets the seed."""
        return self.cause == "seed-varies" and self.source is not None and self.source.source != "seed-value"


def cause_of(hypothesis: Hypothesis, status: Status, experiments: Sequence[Experiment]) -> Cause:
    """Return a hypothesis as a cause for the report, with the experiments that support it."""
    entry = causes()[hypothesis.cause]
    return Cause(
        hypothesis.cause, entry.title, status, (entry.why, *hypothesis.evidence), tuple(experiments), hypothesis.sites
    )


def as_named(cause: Cause) -> tuple[str, tuple[Frame, ...]]:
    """Return what a report shows of a cause."""
    return cause.identifier, tuple(cause.sites[:1])


def likely_causes_left(
    likely: Sequence[Hypothesis], is_tried: Callable[[Intervention], bool] = lambda intervention: False
) -> list[Cause]:
    """Return as causes what is likely from the records, without what was tried and refuted."""
    return [
        cause_of(one, Status.LIKELY, []) for one in likely if one.cause in ANSWERED or not is_tried(one.intervention)
    ]


def are_tried_together(first: Hypothesis, second: Hypothesis) -> bool:
    """Whether two hypotheses about sources of the program are first tried together, where there are many."""
    sorts = [
        one.source and (one.source.is_in_library, not one.source.led_by, one.makes_seed) for one in (first, second)
    ]
    return sorts[0] is not None and sorts[0] == sorts[1]


def minimal(candidates: Sequence[Hypothesis], removes: Callable[[Sequence[Hypothesis]], bool]) -> Sequence[Hypothesis]:
    """Return a minimal subset of candidates that together remove a divergence; earlier ones are preferred.

    QuickXplain: Junker, "Preferred explanations and relaxations for over-constrained problems", AAAI 2004.
    """

    def among(background: list[Hypothesis], rest: Sequence[Hypothesis], *, is_tested: bool) -> list[Hypothesis]:
        """Return a minimal subset of the rest that suffices together with the background."""
        if not is_tested and removes(background):
            return []
        if len(rest) == 1:
            return list(rest)
        first, second = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        of_second = among([*background, *first], second, is_tested=False)
        of_first = among([*background, *of_second], first, is_tested=not of_second)
        return [*of_first, *of_second]

    return among([], candidates, is_tested=True)


def sites_of(divergence: Divergence, *first: Frame | None) -> tuple[Frame, ...]:
    """Return some lines, and then those that a divergence points to: inside a compiled function, where memory was allocated or saved, the call, its forward call.

    A line that only starts the backward pass says less than the line whose gradient it computes.
    """
    called: tuple[Frame | None, ...] = (divergence.site, divergence.forward_site)
    if divergence.site is not None and _STARTS_BACKWARD.search(divergence.site.code):
        called = (divergence.forward_site, divergence.site)
    inner = None if divergence.inside is None else divergence.inside.site
    found = (*first, inner, divergence.allocated_at, divergence.saved_at, *called)
    return tuple(dict.fromkeys(site for site in found if site is not None))


def calls_of(sites: Sequence[Frame], divergence: Divergence) -> tuple[Frame, ...]:
    """Return the calls that led to the first of some sites; empty if it is not where the divergence is."""
    stack = divergence.stack
    return stack[stack.index(sites[0]) :] if sites and sites[0] in stack else ()


# Stages of a `tf.data` pipeline, as an element's record names them: a line that only takes elements says less.

_STAGE = re.compile(r"(\w+)\(([^()]*)\)")
_PLACE = re.compile(r"(?:^|, )([^,]+):(\d+)(?:,|$)")
_AT_FAULT: dict[str, Callable[[str, str], bool]] = {
    "tensorflow-seed": lambda name, facts: name.startswith("Shuffle") or "draws random numbers" in facts,
    "pipeline-parallel": lambda name, facts: name.startswith("Parallel") and "draws random numbers" in facts,
    "pipeline-order": lambda name, facts: name.startswith("Parallel") and "deterministic=true" not in facts,
}
"""For each factor, whether it fixes a stage, judging by the stage's name and facts."""


def stages_at_fault(factor: str, divergence: Divergence) -> Iterator[Frame]:
    """Yield the first stage that a factor fixes, among those that the differing element passed through."""
    is_at_fault = _AT_FAULT.get(factor)
    if is_at_fault is None or divergence.site is None or OpSemantics.TAKES_ELEMENT not in what_op_does(divergence.op):
        return
    files = {PurePath(frame.file).name: Path(frame.file) for frame in reversed(divergence.stack)}
    for name, facts in _STAGE.findall(divergence.detail):
        place = _PLACE.search(facts)
        if place is not None and is_at_fault(name, facts):
            # The record has only the file's name.
            module = Module.read(str(files.get(place[1]) or Path(divergence.site.file).with_name(place[1])))
            line = int(place[2])
            if module is not None and line <= len(module.lines):
                yield Frame(module.file, line, "", module.lines[line - 1].strip())
                return


_MOST_ASKING = 3


def entropy_named(one: Hypothesis, asking: Sequence[tuple[Frame, ...]]) -> Hypothesis:
    """Add to the hypothesis that random bytes decide the lines that led to them, and the libraries that requested them."""
    if not asking:
        return one
    evidence = []
    for frames in asking[:_MOST_ASKING]:
        library, line = frames[0], frames[-1]
        place = f"{line.file.rpartition('/')[2]}:{line.line}"
        if len(frames) > 1:
            evidence.append(f"{library.function} at {library.file}:{library.line} requested them, called from {place}.")
        else:
            evidence.append(f"{place} requested them.")
    more = len(asking) - _MOST_ASKING
    if more > 0:
        evidence.append(f"{more} more lines requested such bytes.")
    lines = [frame for frames in asking[:_MOST_ASKING] for frame in reversed(frames)]
    sites = dict.fromkeys([*lines, *one.sites])
    return replace(one, sites=tuple(sites), evidence=(*evidence, *one.evidence))


SEEDED_LIBRARIES = {
    "random": "seed-missing-python",
    "numpy": "seed-missing-numpy",
    "torch": "seed-missing-torch",
    "tensorflow": "seed-missing-tensorflow",
}
"""Libraries with a global generator, and the cause if that was not seeded."""


def is_never_seeded(hypothesis: Hypothesis, divergence: Divergence) -> bool:
    """Whether a global generator was drawn from that nobody has seeded: two runs never agree then.

    Either the state of a framework's generator differs, or the differing value is computed from draws from Python's or NumPy's.
    """
    is_drawn = divergence.kind in (Kind.RNG, Kind.DATA) and divergence.step == 0
    return is_drawn and hypothesis.cause in SEEDED_LIBRARIES.values()


_ALWAYS_NOTED = frozenset({"clock", "entropy", "process-id"})
"""Sources of which every use by the program's own code is noted; an order counts only where it is not sorted."""


@dataclass(frozen=True)
class Trial:
    """The result of runs under one intervention."""

    intervention: Intervention
    runs: int
    verdict: Verdict
    divergence: Divergence | None
    step_seconds: float | None = None
    """Duration of one step; None where too few steps ran to measure it."""
    failure: str | None = None
    """Why the runs could not be made or compared."""
    seconds: float | None = None
    """How long all runs took together."""
    seedings: Mapping[str, Sequence[tuple[SourceSite, int]]] = field(default_factory=dict)
    """By library, where its generators were seeded, and how many records preceded that; for probing runs."""
    sources: Sequence[Source] = ()
    """Outside sources whose values differed; for probing runs."""
    entropy: Sequence[tuple[Frame, ...]] = ()
    """Who requested random bytes from the operating system while these were the same in each run: the frame of a library, if there is
    one, and the line of the program that led there."""
    unprobed: Sequence[Unprobed] = ()
    """Modules of the user in which nothing could be noted; for probing runs."""
    used: frozenset[FixedSource] = frozenset()
    """The sources that were used at all, with their lines; for probing runs."""
    unseeded: Sequence[str] = ()
    """The global generators that ended in different states, `numpy` or `python`; for probing runs."""
    steps: int | None = None
    """The step after which the runs ended, soon after the first difference; None where they ran as far as plain runs do."""
    others: Sequence[Divergence] = ()
    """The first divergence of each other process and stream, in any order."""
    records: Mapping[str, int] = field(default_factory=dict)
    """For each process whose records have an order, how many were compared."""
    num_differing: int = 1
    """How many runs differ from the first one at `divergence`; more than one only if runs were made past other differences."""

    @property
    def is_equal(self) -> bool:
        """Whether all runs were bit-identical."""
        return self.verdict is Verdict.SAME

    def never_used(self, hypothesis: Hypothesis) -> bool:
        """Whether probing runs that differed used none of a hypothesis's sources: what the text shows was not reached."""
        sources = hypothesis.intervention.sources
        unseen = {one.file for one in self.unprobed}
        are_noted = all(one.source in _ALWAYS_NOTED and one.file not in unseen for one in sources)
        return bool(sources) and are_noted and self.divergence is not None and sources.isdisjoint(self.used)

    def unseeded_until(self, divergence: Divergence) -> list[str]:
        """Return the global generators that no call had seeded when two runs diverged, as the factors that seed them name them.

        Either they ended in different states, or the program seeded them only later.
        """
        late = []
        for library in SEEDED_LIBRARIES:
            calls = self.seedings.get(library, ())
            is_late = divergence.stream is None and all(records > divergence.record for _, records in calls)
            if calls and is_late:
                late.append("python" if library == "random" else library)
        return [*self.unseeded, *(name for name in late if name not in self.unseeded)]

    def shows(self, divergence: Divergence) -> bool:
        """Whether a divergence recurs, as the first or in another process or stream: which comes first may depend on timing."""
        first = () if self.divergence is None else (self.divergence,)
        return any(is_same_place(one, divergence) for one in (*first, *self.others))

    def is_before(self, divergence: Divergence) -> bool:
        """Whether the runs certainly differ before a divergence, at another line."""
        return self.divergence is not None and is_before(self.divergence, divergence)

    def removes(self, divergence: Divergence) -> bool:
        """Whether a divergence is gone: the runs are equal, or diverge only later or in another process."""
        if self.is_equal:
            return True
        if self.verdict is not Verdict.DIFFERENT or self.divergence is None:
            return False
        return is_later(self.divergence, divergence) or self._is_passed(divergence)

    def _is_passed(self, divergence: Divergence) -> bool:
        """Whether the runs diverge in another process, and the process of a divergence is equal beyond it.

        Processes have no common order, so the other divergence is not later. The same line in another process counts as the same
        divergence: which of several workers reaches it may depend on timing.
        """
        first, process = self.divergence, divergence.process
        if (
            first is None
            or first.process == process
            or divergence.stream is not None
            or is_same_line(first, divergence)
        ):
            return False
        is_left = any(one.process == process and not is_later(one, divergence) for one in self.others)
        return self.records.get(process, 0) > divergence.record and not is_left

    def experiment(self, divergence: Divergence, added: Intervention) -> Experiment:
        """Summarize the trial for the report.

        Args:
            divergence: The one to be removed.
            added: What this intervention does that was not already held.
        """
        if self.failure is not None:
            outcome = f"No conclusion: {self.failure}"
        elif self.is_equal:
            extent = "" if self.steps is None else f" in their first {self.steps:,} steps"
            outcome = f"All {self.runs} runs were bit-identical{extent}."
        elif self.removes(divergence):
            assert self.divergence is not None
            is_later_one = is_later(self.divergence, divergence)
            where = "later" if is_later_one else f"in process {self.divergence.process}"
            outcome = f"The divergence at {_divergence_place(divergence)} was gone; the runs diverged {where}, at {_divergence_place(self.divergence)}."
        else:
            outcome = "The runs still differed."
        equal = None if self.verdict is Verdict.INCONCLUSIVE else self.is_equal
        return Experiment(added.name, added.action, self.runs, equal, outcome, self.seconds)


class ExperimentRunner(Protocol):
    """Makes the runs of experiments."""

    def compare(
        self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
    ) -> Trial:
        """Run the program until two runs differ, at most `runs` times.

        Args:
            intervention: What is changed about each run.
            runs: How many; fewer if two of them differ.
            may_be_short: Whether runs that end soon after the first difference suffice; `Trial.steps` says whether they did.
            past: A divergence that must be absent from all runs: those that differ in another way do not end the trial.

        Raises:
            BudgetSpent: There is no time left for it.
            LaunchError: The user stopped it.
        """

    def probe(self, intervention: Intervention) -> Trial:
        """Run the program twice with its sources noted.

        Raises:
            BudgetSpent: There is no time left for it.
            LaunchError: The user stopped it.
        """


def has_other_surroundings(environment: Sequence[tuple[str, str, str]]) -> bool:
    """Whether environments differed, other than in what the runs themselves made: compile caches and choices of kernels.

    Args:
        environment: What differed, with the values in both runs.
    """
    made = (FACT, CHOICE_OF_KERNEL, *(f"variable {cache.variable}" for cache in COMPILE_CACHES))
    return any(not name.startswith(made) for name, *_ in environment)


# How often runs show a divergence, and how many equal runs then show that it is gone.

_DOUBT = 0.1
"""The accepted probability that a difference that was not cured passes for cured."""
_DOUBT_OF_RACES = 0.02
MOST_RUNS = 6
_MOST_RUNS_PAST = 10
"""The most runs that are made past later differences, to show that one that comes and goes is gone."""
_LEAST_RUNS_OF_RACES = 3
"""How often a repeated op varies only approximates how often it varies in a run."""


class Rate:
    """How often two runs of the program differ, judging by those that were made."""

    def __init__(self) -> None:
        """Start without observations."""
        self.pairs = 0
        """How many pairs of runs were compared."""
        self._different = 0

    def add(self, *, pairs: int, different: int) -> None:
        """Count runs with nothing changed, or with a change that made no difference."""
        self.pairs += pairs
        self._different += different

    @property
    def is_always(self) -> bool:
        """Whether pairs were seen, and all of them differed."""
        return 0 < self.pairs == self._different

    @property
    def came_once(self) -> bool:
        """Whether the runs differed in the one pair that revealed the difference, and in no pair since."""
        return self._different == 1 < self.pairs

    def runs_needed(self, *, is_race: bool, tried: int = 0) -> int:
        """Return how many equal runs to make to show that a cure is not due to chance; see `runs_wanted`."""
        return min(self.runs_wanted(is_race=is_race, tried=tried), MOST_RUNS)

    def runs_wanted(self, *, is_race: bool, tried: int = 0) -> int:
        """Return how many equal runs show that a cure is not due to chance, however long they take.

        The rate follows the rule of succession: after d of t pairs differed, it is taken as (d + 1) / (t + 2).

        Args:
            is_race: Whether what differs depends on timing, so that it may well be equal by chance.
            tried: How many other cures were tried before: among many, one may seem to help (Bonferroni's correction).
        """
        doubt = (_DOUBT_OF_RACES if is_race else _DOUBT) / (1 + tried)
        rate = (self._different + 1) / (self.pairs + 2)
        return 1 + math.ceil(math.log(doubt) / math.log(1 - rate))


class Occurrence:
    """How often two runs show the divergence under investigation."""

    def __init__(self, *, is_race: bool) -> None:
        """Start without observations.

        Args:
            is_race: Whether it depends on timing, so that it may well be absent by chance.
        """
        self.is_race = is_race
        self.is_steady = True
        """Whether runs with nothing changed always diverge at the same record."""
        self.whole = Rate()
        self.short = Rate()
        """For runs that end soon after the first difference, excluding those used to choose where they end."""

    def note_repeats(self, repeats: int, distinct: int, executions: int) -> None:
        """Count how often the op gave another result when it was repeated: two runs agree only if every execution of it does."""
        pairs = repeats - 1
        is_alike_each_time = (1 - (distinct - 1) / pairs) ** executions if pairs else 1.0
        self.whole.add(pairs=pairs, different=int(pairs * (1 - is_alike_each_time)))

    def note(self, *, pairs: int = 1, different: int, is_short: bool) -> None:
        """Count runs from which no cause of their differences was removed.

        Args:
            pairs: How many runs were compared with the first.
            different: How many of them differ from it.
            is_short: Whether the runs end soon after the first difference.
        """
        for rate in [self.whole, self.short] if is_short else [self.whole]:
            rate.add(pairs=pairs, different=different)

    def runs_needed(self, *, tried: int, are_short: bool = False) -> tuple[int, bool]:
        """Return how many equal runs to make to show that the divergence is not absent by chance, and whether they suffice.

        Args:
            tried: How many other cures were tried before.
            are_short: Whether the runs end soon after the first difference.
        """
        rate = self.short if are_short and self.is_race else self.whole
        wanted = rate.runs_wanted(is_race=self.is_race, tried=tried)
        runs = min(wanted, MOST_RUNS if self.is_steady or self.is_race else _MOST_RUNS_PAST)
        return max(runs, _LEAST_RUNS_OF_RACES) if self.is_race else runs, runs >= wanted

    def begin(self, trial: Trial) -> None:
        """Restart the rates with runs that still differ: by the causes that remain, runs may differ much less often."""
        self.is_steady, self.whole, self.short = True, Rate(), Rate()
        self.note(pairs=trial.runs - 1, different=trial.num_differing, is_short=trial.steps is not None)

    def earlier(self) -> Occurrence:
        """Return the occurrence of an earlier divergence, which showed in one of the pairs of runs made so far."""
        found = Occurrence(is_race=self.is_race)
        found.is_steady = False
        found.whole.add(pairs=self.whole.pairs + 1, different=1)
        return found


class EarlierDivergence(Exception):
    """Runs of a trial differ before the divergence under investigation."""

    def __init__(self, divergence: Divergence) -> None:
        """Take the earlier divergence."""
        super().__init__()
        self.divergence = divergence


class BudgetSpent(Exception):
    """There is no time left for another experiment."""


def _divergence_place(one: Divergence) -> str:
    where = "" if one.site is None else f", {one.site.file.rpartition('/')[2]}:{one.site.line}"
    return f"step {one.step}, {one.op}{where}"


# Separates the clock reads that decide something from those whose time is only logged.

CLOCK = "clock"
_SHIFTED = "shifted clock"
_MOST_LINES = 6


def deciding_inspections(
    one: Hypothesis,
    sources: Sequence[Source],
    held: Intervention,
    compare: Callable[[Intervention], Trial],
    likely: Collection[tuple[str, int]] = (),
) -> Hypothesis:
    """Return the cause with only those lines where shifting the clock makes runs differ, while it is frozen elsewhere.

    All clock reads are fixed together, because a time must not be compared with one of another clock. That the runs are
    then equal says nothing about a single line.

    Args:
        one: The hypothesis that the clock decides.
        sources: What the program took from outside.
        held: What makes the runs equal, this cause among it.
        compare: Makes runs with an intervention.
        likely: Lines, by file and number, that the program's text names. Where one of them decides, no other is tried.

    Returns:
        The cause; unchanged where the lines cannot be separated.

    Raises:
        BudgetSpent: There is no time left for the runs.
    """
    looks = [source for source in sources if source.source == CLOCK]
    lines = list(dict.fromkeys((look.site.file, look.site.line) for look in looks))
    if not 1 < len(lines) <= _MOST_LINES:
        return one
    idle: set[tuple[str, int]] = set()
    for line in sorted(lines, key=lambda line: line not in likely):
        if compare(_shifted(held, *line)).is_equal:
            idle.add(line)
        elif line in likely:
            idle = {other for other in lines if other != line}
            break
    deciding = [look for look in looks if (look.site.file, look.site.line) not in idle]
    if not idle or not deciding:
        return one
    sites = tuple(site for site in one.sites if (site.file, site.line) not in idle)
    order = {(site.file, site.line): position for position, site in enumerate(one.sites)}
    first = min(deciding, key=lambda look: order.get((look.site.file, look.site.line), len(order)))
    return replace(one, sites=sites, evidence=(use_text(first),), source=first)


def _shifted(held: Intervention, file: str, line: int) -> Intervention:
    return held.also(Intervention(sources=frozenset({FixedSource(file, line, _SHIFTED)})))


# Finds out which of the deliberately perturbed factors made runs differ.

RUNS = 3
"""A perturbed factor may have the same effect twice by chance: a listing of two files has two orders."""


@dataclass
class FactorSearch:
    """A search for the perturbed factors that make runs differ, which keeps what it has found if it is interrupted."""

    factors: Sequence[str]
    """The factors that were perturbed together."""
    runner: ExperimentRunner

    def __post_init__(self) -> None:
        self.diagnosis = Diagnosis(varied=tuple(self.factors))
        """The experiments so far; `varied` holds the factors that alone make runs differ, or all of them if none does."""

    def run(self) -> None:
        """Perturb one factor after another.

        Raises:
            LaunchError: The user stopped it.
        """
        if len(self.factors) == 1:
            return
        responsible = []
        try:
            for name in self.factors:
                trial = self.runner.compare(Intervention.perturb(name), runs=RUNS)
                is_known = trial.verdict is not Verdict.INCONCLUSIVE
                outcome = (
                    f"No conclusion: {trial.failure}" if not is_known
                    else f"All {trial.runs} runs were bit-identical." if trial.is_equal
                    else "The runs differed."
                )  # fmt: skip
                equal = trial.is_equal if is_known else None
                made = Experiment(name, "perturbed", trial.runs, equal, outcome, trial.seconds)
                self.diagnosis = replace(self.diagnosis, experiments=(*self.diagnosis.experiments, made))
                if trial.verdict is Verdict.DIFFERENT:
                    responsible.append(name)
        except BudgetSpent:
            limit = "The time for further runs has run out; --budget SECONDS allows more."
            self.diagnosis = replace(self.diagnosis, limit=limit)
        self.diagnosis = replace(self.diagnosis, varied=tuple(responsible or self.factors))


# Parts of the program that could not be searched for sources, as reported where no cause was found.

_MOST_NAMED = 3


def unexplained_text(left: Divergence | None, probed: Trial) -> str:
    """Return sentences on what differs without the causes found, if any were, and on the user's modules in which nothing could be noted."""
    if left is None:
        return f"No experiment made the difference go away.{unseen_text(probed)}"
    place = "" if left.site is None else f", first at {PurePath(left.site.file).name}:{left.site.line}"
    return f"With that fixed, the runs still differ{place}, and no experiment made that difference go away.{unseen_text(probed)}"


def unseen_text(probed: Trial) -> str:
    """Return sentences on the user's modules in which nothing could be noted, each after a space; may be empty."""
    if probed.failure is not None:
        return f" What the program takes from outside could not be observed: {probed.failure.rstrip('.')}."
    named = [f" Nothing could be observed in {PurePath(one.file).name}: {one.reason}." for one in probed.unprobed]
    more = len(named) - _MOST_NAMED
    return "".join(named[:_MOST_NAMED]) + (
        f" The same holds for {more:,} more {'file' if more == 1 else 'files'}." if more > 0 else ""
    )
