"""The causes that an investigation names, with a runner that only pretends to run a program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from determinism.comparison.divergence import Diagnosis, Divergence, Evidence, OutputDifference
from determinism.comparison.result import Comparison, Leftover, Recorded
from determinism.diagnose.confirm import EQUAL_HERE
from determinism.diagnose.experiments import BudgetSpent, Hypothesis, Intervention, Rate, Trial, causes
from determinism.diagnose.investigation import Investigation
from determinism.diagnose.sources import LedBy, Source, SourceSite, Unprobed
from determinism.errors import LaunchError
from determinism.factors.catalog import FACTORS, Action
from determinism.op_semantics import Op, OpSemantics
from determinism.run_spec import FixedSource
from determinism.trace.schema import Frame
from determinism.types import Kind, Verdict

SET = FixedSource("/p/train.py", 7, "set-order")
LISTING = FixedSource("/p/data.py", 3, "listing")
CLOCK = FixedSource("/p/train.py", 90, "clock")


def divergence(record: int = 10, kind: Kind = Kind.DATA, line: int = 20, distinct: int | None = None) -> Divergence:
    site = Frame("/p/train.py", line, "main", "x = torch.tensor(y)")
    output = OutputDifference("float32", (4,), "cpu", 4, repeats=None if distinct is None else 100, distinct=distinct)
    return Divergence(
        kind, "0", record, 0, 0, "forward", "aten::add.Tensor", None, site, None, (site,), None, (output,), ""
    )  # fmt: skip


def used(source: FixedSource, *, records: int = 5, differs: bool | None = True) -> Source:
    site = SourceSite(source.file, source.line, 0, source.line, 9, "main", "code()")
    return Source(
        source.source,
        site,
        "main",
        "0",
        "MainThread",
        (1, 1),
        differs,
        0,
        (records, records),
        ("1", "2"),
        records_at_first=records,
    )


@dataclass
class Pretended:
    """A program whose divergences each disappear when all their causes are fixed."""

    divergences: Sequence[tuple[Divergence, Sequence[str | FixedSource]]]
    sources: Sequence[Source] = ()
    runs_left: int = 1000
    made: list[Intervention] = field(default_factory=list)
    early_steps: int | None = None
    """The number of steps after which runs that may be short end; they reach only the first divergence."""
    whole: list[Intervention] = field(default_factory=list)
    records: Mapping[str, int] = field(default_factory=dict)
    """The number of records that each of its processes makes."""

    def compare(
        self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
    ) -> Trial:
        steps = self.early_steps if may_be_short else None
        self.runs_left -= runs
        if self.runs_left < 0:
            raise BudgetSpent
        self.made.append(intervention)
        if steps is None:
            self.whole.append(intervention)
        held = {name for name, action in intervention.factors if action is Action.FIXED} | set(intervention.sources)
        within = self.divergences[: None if steps is None else 1]
        left = [found for found, needed in within if not set(needed) <= held]
        differing: list[Trial] = []
        for number in range(2, runs + 1) if left else ():
            shown = self.in_order(left, intervention)
            if not shown:
                continue
            first, *rest = shown
            others = [one for one in rest if one.process != first.process]
            trial = Trial(
                intervention, number, Verdict.DIFFERENT, first, steps=steps, others=others, records=self.records
            )
            if past is None or not trial.removes(past):
                return trial
            differing.append(trial)
        if differing:
            return replace(differing[0], runs=runs, num_differing=len(differing))
        return Trial(intervention, runs, Verdict.SAME, None, step_seconds=2.0, steps=steps)

    def in_order(self, left: list[Divergence], intervention: Intervention) -> list[Divergence]:
        """The remaining divergences that a pair of runs shows, in the order in which they are reported."""
        return left

    probes_are_short: bool = False
    unprobed: Sequence[Unprobed] = ()
    unseeded: Sequence[str] = ()
    seedings: Mapping[str, Sequence[tuple[SourceSite, int]]] = field(default_factory=dict)

    def probe(self, intervention: Intervention) -> Trial:
        trial = self.compare(intervention, runs=2, may_be_short=self.probes_are_short)
        noted = frozenset(FixedSource(one.site.file, one.site.line, one.source) for one in self.sources)
        return replace(
            trial,
            runs=2,
            step_seconds=1.0,
            sources=self.sources,
            used=noted,
            unprobed=self.unprobed,
            unseeded=self.unseeded,
            seedings=self.seedings,
        )


def investigated(program: Pretended, *, environment: Sequence[tuple[str, str, str]] = (), **options: Any) -> Comparison:
    first = program.divergences[0][0]
    comparison = Comparison(Verdict.DIFFERENT, [], Recorded(), first_divergence=first, environment=environment)
    investigation = Investigation(comparison, program, **options)
    investigation.run()
    return replace(comparison, diagnosis=investigation.diagnosis)


def found(comparison: Comparison) -> list[tuple[str, str]]:
    return [(cause.identifier, cause.status.value) for cause in comparison.causes]


def test_the_source_whose_fixed_value_makes_the_runs_equal_is_the_cause_at_its_line() -> None:
    comparison = investigated(Pretended([(divergence(), [LISTING])], [used(CLOCK), used(LISTING)]))
    assert found(comparison) == [("listing-order", "confirmed")]
    assert comparison.causes[0].sites[0][:2] == ("/p/data.py", 3)
    assert comparison.causes[0].experiments[0].equal is True


def test_two_causes_are_found_one_after_the_other_and_the_fixes_hold_for_both() -> None:
    program = Pretended([(divergence(10), [LISTING]), (divergence(50, line=30), ["torch-seed"])], [used(LISTING)])
    comparison = investigated(program, step_seconds=1.0)
    assert found(comparison) == [("listing-order", "confirmed"), ("seed-missing-torch", "confirmed")]
    torch_fix = next(fix for fix in comparison.fixes if fix.identifier == "seed-missing-torch")
    assert torch_fix.verified and torch_fix.code == "torch.manual_seed(0)" and torch_fix.step_time_ratio == 2.0
    # No line that fixes the listing is known, so runs of the program with this fix alone would still differ.
    assert torch_fix.title.endswith("; not enough on its own while the other causes remain")


def test_two_causes_of_one_divergence_are_both_named() -> None:
    comparison = investigated(Pretended([(divergence(), ["python-seed", "numpy-seed"])]))
    assert found(comparison) == [("seed-missing-python", "confirmed"), ("seed-missing-numpy", "confirmed")]
    assert all(len(cause.experiments) >= 2 for cause in comparison.causes)


@pytest.mark.parametrize(("records", "is_early"), [(30, True), (5, False)])
def test_generators_that_are_seeded_only_after_the_divergence_are_tried_together_first(
    records: int, is_early: bool
) -> None:
    seeding = [(used(FixedSource("/p/train.py", 30, "seed-value")).site, records)]
    program = Pretended([(divergence(kind=Kind.RNG), ["torch-seed", "python-seed"])])
    program.seedings = {"torch": seeding, "random": seeding, "numpy": seeding}
    comparison = investigated(program)
    named = ["seed-too-late"] * 2 if is_early else ["seed-missing-torch", "seed-missing-python"]
    assert {name for name, _ in found(comparison)} == {*named}
    assert not is_early or all(fix.verified for fix in comparison.fixes)
    # Runs in which everything is fixed come only after those in which all three generators are seeded.
    seeds = {("torch-seed", Action.FIXED), ("python-seed", Action.FIXED), ("numpy-seed", Action.FIXED)}
    together = next(made for made in program.made if seeds <= made.factors)
    assert (together.factors == seeds) is is_early


def test_a_generator_of_a_library_and_the_turns_of_threads_are_tried_together_before_anything_unrelated() -> None:
    reseeded = FixedSource("/lib/sampler.py", 20, "unseeded-generator")
    # The main thread had made more records when it made the generator than the worker when it drew; that says nothing about the order.
    beside = replace(divergence(3, kind=Kind.RNG), thread="worker", stream="0.threads")
    library = replace(used(reseeded), is_in_library=True, led_by=(LedBy(used(CLOCK).site, None, False),))
    program = Pretended([(beside, ["thread-schedule", reseeded])], [library])
    comparison = investigated(program)
    assert {name for name, _ in found(comparison)} == {"outside-entropy", "shared-generator"}
    assert not any(("memory", Action.FIXED) in made.factors for made in program.made)


def test_a_seed_is_not_called_late_by_the_records_of_another_thread() -> None:
    beside = replace(divergence(3, kind=Kind.RNG), thread="worker", stream="0.threads")
    program = Pretended([(beside, ["torch-seed"])])
    program.seedings = {"torch": [(used(FixedSource("/p/train.py", 30, "seed-value")).site, 5)]}
    assert found(investigated(program)) == [("seed-missing-torch", "confirmed")]


def test_among_many_sources_the_one_at_fault_is_found_by_halving() -> None:
    many = [FixedSource("/p/train.py", line, "hash") for line in range(1, 33)]
    program = Pretended([(divergence(), [many[20]])], [used(one) for one in many])
    comparison = investigated(program, can_try_fixes=False)
    assert comparison.causes[0].sites[0].line == 21
    assert len(program.made) < 16


def test_sources_in_the_program_are_tried_before_those_in_libraries() -> None:
    libraries = [FixedSource("/site-packages/lib/at_import.py", line, "python-random") for line in (1, 2, 3)]
    seen = [replace(used(one, records=0), is_in_library=True) for one in libraries]
    own = FixedSource("/p/train.py", 7, "numpy-random")
    program = Pretended([(divergence(), ["numpy-seed"])], [*seen, used(own)])
    assert found(investigated(program)) == [("seed-missing-numpy", "confirmed")]
    tried = [made for made in program.made if made.factors or made.sources]
    assert len(tried) == 1


def test_library_sources_reached_from_a_line_of_the_program_are_tried_first() -> None:
    led, unled = (FixedSource("/site-packages/lib/sampler.py", line, "seed-value") for line in (9, 1))
    by = LedBy(SourceSite("/p/train.py", 4, 0, 4, 9, "main", "sampler = Sampler()"))
    sources = [
        replace(used(unled), is_in_library=True),
        replace(used(led), is_in_library=True, led_by=(by,)),
    ]
    program = Pretended([(divergence(), [led])], sources)
    comparison = investigated(program)
    assert found(comparison) == [("outside-entropy", "confirmed")]
    assert comparison.causes[0].sites[0].line == 4
    assert all(unled not in made.sources for made in program.made)


def test_sources_that_changed_nothing_together_are_neither_possible_causes_nor_untried() -> None:
    by = LedBy(SourceSite("/p/train.py", 4, 0, 4, 9, "main", "sampler = Sampler()"))
    lines = [FixedSource("/site-packages/lib/sampler.py", line, "seed-value") for line in (1, 5, 9)]
    sources = [replace(used(one), is_in_library=True, led_by=(by,)) for one in lines]
    comparison = investigated(Pretended([(divergence(), ["nothing that can be fixed"])], sources))
    assert not comparison.causes
    assert "seed-value" not in str(comparison.diagnosis.limit)


def test_an_intervention_covers_what_it_does_and_nothing_else() -> None:
    assert Intervention.fix("hash-seed", "listings").covers(Intervention.fix("listings"))
    assert not Intervention.fix("listings").covers(Intervention.fix("hash-seed", "listings"))
    assert not Intervention.fix("listings").covers(Intervention.perturb("listings"))


@pytest.mark.parametrize("beside", [1, 20])
def test_a_source_that_lint_reports_is_tried_first_and_alone(beside: int) -> None:
    others = [FixedSource("/p/train.py", line, "hash") for line in range(30, 30 + beside)]
    program = Pretended([(divergence(), [LISTING])], [*(used(one) for one in others), used(LISTING)])
    comparison = investigated(program, can_try_fixes=False, is_linted=lambda one: one.cause == "listing-order")
    assert found(comparison) == [("listing-order", "confirmed")]
    tried = [made.sources for made in program.made if made.sources]
    assert tried[0] == {LISTING} and len(set(tried)) == 1

    without = Pretended([(divergence(), [LISTING])], program.sources)
    investigated(without, can_try_fixes=False)
    assert next(made.sources for made in without.made if made.sources) != {LISTING}


@pytest.mark.parametrize("line", [20, 30])
def test_a_source_on_the_line_where_the_runs_diverge_is_tried_first_and_alone(line: int) -> None:
    there = FixedSource("/p/train.py", line, "set-order")
    others = [FixedSource("/p/train.py", other, "set-order") for other in (7, 8, 9)]
    program = Pretended([(divergence(line=20), [there])], [used(one) for one in (*others, there)])
    comparison = investigated(program, can_try_fixes=False)
    assert [cause.sites[0].line for cause in comparison.causes] == [line]
    first = next(made.sources for made in program.made if made.sources)
    assert (first == {there}) == (line == 20)


@pytest.mark.parametrize("elements", ["objects", "text"])
def test_addresses_are_perturbed_while_orders_of_objects_are_distinguished(elements: str) -> None:
    """Objects often keep the addresses of the previous run: fixing the first of several such orders would then seem to help."""

    @dataclass
    class Alike(Pretended):
        def compare(
            self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
        ) -> Trial:
            if intervention.sources and ("addresses", Action.PERTURBED) not in intervention.factors:
                return Trial(intervention, runs, Verdict.SAME, None)
            return super().compare(intervention, runs=runs, may_be_short=may_be_short)

    sets = [FixedSource("/p/train.py", line, "set-order") for line in (7, 9)]
    sources = [replace(used(one), elements=elements) for one in sets]
    comparison = investigated(Alike([(divergence(), [sets[1]])], sources), can_try_fixes=False)
    [cause] = comparison.causes
    assert (cause.identifier, cause.sites[0].line) == (
        ("address-order", 9) if elements == "objects" else ("hash-order", 7)
    )


def test_a_false_lead_from_lint_costs_one_experiment_and_is_not_blamed() -> None:
    sources = [used(CLOCK), used(LISTING), used(SET)]
    plain, linted = (Pretended([(divergence(), [SET])], sources) for _ in range(2))
    investigated(plain)
    comparison = investigated(linted, is_linted=lambda one: one.cause == "listing-order")
    assert [cause.sites[0][:2] for cause in comparison.causes] == [("/p/train.py", 7)]
    assert len(comparison.causes) == 1 and comparison.causes[0].status.value == "confirmed"
    assert [one.equal for one in comparison.experiments][:1] == [False]
    assert len(linted.made) <= len(plain.made) + 1


def test_sources_that_were_used_only_after_the_divergence_are_left_out() -> None:
    program = Pretended([(divergence(10), ["memory"])], [used(LISTING, records=11)])
    assert found(investigated(program)) == [("uninitialized-memory", "confirmed")]
    assert all(LISTING not in made.sources for made in program.made)


def test_a_clock_read_that_is_only_logged_is_not_blamed() -> None:
    begun, limit, logged = (FixedSource("/p/train.py", line, "clock") for line in (17, 19, 25))

    @dataclass
    class Limited(Pretended):
        def compare(
            self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
        ) -> Trial:
            if any(one.source == "shifted clock" and one.line in (17, 19) for one in intervention.sources):
                return Trial(intervention, 2, Verdict.DIFFERENT, divergence())
            return super().compare(intervention, runs=runs, may_be_short=may_be_short)

    looks = [used(begun, records=1), used(limit, records=8), used(logged, records=9)]
    comparison = investigated(Limited([(divergence(), [begun, limit, logged])], looks))
    assert found(comparison) == [("clock", "confirmed")]
    assert [site.line for site in comparison.causes[0].sites] == [19, 17, 20]
    assert "train.py:19" in comparison.fixes[0].title

    # If a shifted clock has no effect at any line, all lines are named.
    comparison = investigated(Pretended([(divergence(), [begun, limit, logged])], looks))
    assert [site.line for site in comparison.causes[0].sites] == [25, 19, 17, 20]


@pytest.mark.parametrize(("line", "sites", "tried"), [(19, [19, 20], [19]), (25, [19, 17, 20], [25, 17, 19])])
def test_the_clock_read_the_code_points_to_is_tried_first_and_suffices_if_it_decides(
    line: int, sites: list[int], tried: list[int]
) -> None:
    begun, limit, logged = (FixedSource("/p/train.py", line, "clock") for line in (17, 19, 25))
    shifted: list[int] = []

    @dataclass
    class Limited(Pretended):
        def compare(
            self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
        ) -> Trial:
            lines = [one.line for one in intervention.sources if one.source == "shifted clock"]
            shifted.extend(lines)
            if lines and lines[0] in (17, 19):
                return Trial(intervention, 2, Verdict.DIFFERENT, divergence())
            return super().compare(intervention, runs=runs, may_be_short=may_be_short)

    looks = [used(begun, records=1), used(limit, records=8), used(logged, records=9)]
    named = Hypothesis("clock", Intervention(), (Frame("/p/train.py", line, "main", "x"),))
    comparison = investigated(Limited([(divergence(), [begun, limit, logged])], looks), likely=[named])
    assert [site.line for site in comparison.causes[0].sites] == sites
    assert shifted == tried


@pytest.mark.parametrize(
    ("source", "differs", "kind", "status"),
    [
        ("queue-order", True, Kind.DATA, "possible"),
        ("queue-order", False, Kind.ORDER, "possible"),
        ("queue-order", False, Kind.DATA, None),
        ("python-random", True, Kind.DATA, None),
    ],
)
def test_a_queue_order_stays_possible_if_fixing_the_thread_schedule_changes_nothing(
    source: str, differs: bool, kind: Kind, status: str | None
) -> None:
    place = FixedSource("/p/train.py", 7, source)
    comparison = investigated(Pretended([(divergence(kind=kind), ["nothing"])], [used(place, differs=differs)]))
    assert [made.equal for made in comparison.experiments if made.factor in ("thread-schedule", "python-seed")] == [
        False
    ] * 2
    assert found(comparison) == ([] if status is None else [(source, status)])


def test_the_string_hash_salt_is_distinguished_from_addresses() -> None:
    @dataclass
    class Salted(Pretended):
        def compare(
            self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
        ) -> Trial:
            if ("hash-seed", Action.FIXED) in intervention.factors:
                return Trial(intervention, runs, Verdict.SAME, None)
            return super().compare(intervention, runs=runs, may_be_short=may_be_short)

    strings = investigated(Salted([(divergence(), [SET])], [used(SET)]))
    assert found(strings) == [("hash-order", "confirmed")]
    assert [(fix.environment, fix.verified) for fix in strings.fixes][-1] == ((("PYTHONHASHSEED", "0"),), True)
    objects = investigated(Pretended([(divergence(), [SET])], [used(SET)]))
    assert found(objects) == [("address-order", "confirmed")]


@pytest.mark.parametrize("elements", ["sortable", "hashed"])
def test_the_salt_is_not_tried_for_sortable_elements_if_the_runs_differ_later_anyway(elements: str) -> None:
    source = replace(used(SET), elements=elements)
    program = Pretended([(divergence(), [SET]), (divergence(50, line=30), ["numpy-seed"])], [source])
    investigated(program)
    assert (Intervention.fix("hash-seed") in program.made) == (elements == "hashed")


@dataclass
class OfAddresses(Pretended):
    """A program that depends on addresses, which happen to be equal while the string hash salt is fixed and nothing moves memory."""

    line: int = 20

    def compare(
        self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
    ) -> Trial:
        self.made.append(intervention)
        fixed = {name for name, action in intervention.factors if action is Action.FIXED}
        if "hash-seed" not in fixed:
            return Trial(intervention, 2, Verdict.DIFFERENT, divergence())
        if ("addresses", Action.PERTURBED) in intervention.factors:
            return Trial(intervention, 2, Verdict.DIFFERENT, divergence(line=self.line))
        return Trial(intervention, runs, Verdict.SAME, None)


def test_a_fixed_salt_does_not_confirm_a_string_order_if_moving_memory_makes_runs_differ() -> None:
    comparison = investigated(OfAddresses([(divergence(), [])]))
    assert found(comparison) == [("address-order", "confirmed")]
    assert comparison.causes[0].experiments[-1].factor == "addresses and hash-seed"
    moved = [one.outcome for one in comparison.experiments if one.factor == "hash-seed with perturbed addresses"]
    assert moved == ["The runs still differed."]


def test_an_address_order_that_cannot_be_fixed_is_named_but_the_salt_is_not_offered_as_its_fix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("determinism.diagnose.investigation.obstacle", lambda name, action: "not permitted")
    comparison = investigated(OfAddresses([(divergence(), [])]))
    assert found(comparison) == [("address-order", "confirmed")]
    assert not any(fix.verified or fix.environment for fix in comparison.fixes)


def test_a_change_at_another_line_from_moved_memory_is_not_an_address_order() -> None:
    comparison = investigated(OfAddresses([(divergence(), [])], line=9))
    assert found(comparison) == [("hash-order", "confirmed")]


def test_a_string_order_does_not_depend_on_addresses() -> None:
    program = Pretended([(divergence(), ["hash-seed"])])
    assert found(investigated(program)) == [("hash-order", "confirmed")]
    assert Intervention.fix("hash-seed").also(Intervention.perturb("addresses")) in program.made


def test_a_cause_is_kept_as_likely_if_time_runs_out_before_it_is_distinguished() -> None:
    @dataclass
    class Ending(Pretended):
        def compare(
            self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
        ) -> Trial:
            if ("hash-seed", Action.FIXED) in intervention.factors:
                raise BudgetSpent
            return super().compare(intervention, runs=runs, may_be_short=may_be_short)

    comparison = investigated(Ending([(divergence(), [SET])], [used(SET), used(CLOCK)]))
    assert found(comparison) == [("hash-order", "likely")]
    assert comparison.causes[0].experiments[0].equal is True
    assert "The time for further runs has run out" in comparison.diagnosis.limit


def test_a_race_that_only_shows_later_is_not_considered_fixed() -> None:
    first, later = divergence(10, Kind.OP, distinct=50), divergence(90, Kind.OP, distinct=50)
    program = Pretended([(first, ["deterministic-algorithms"]), (later, ["threads", "deterministic-algorithms"])])
    comparison = investigated(program)
    assert found(comparison) == [("nondeterministic-op", "confirmed")]
    alone = [made for made in comparison.experiments if made.factor == "deterministic-algorithms"]
    assert alone[0].equal is False


def test_a_fix_without_any_run_is_not_verified() -> None:
    comparison = investigated(Pretended([(divergence(), [CLOCK])], [used(CLOCK)]))
    assert found(comparison) == [("clock", "confirmed")]
    assert [(fix.verified, fix.runs) for fix in comparison.fixes] == [(False, 0)]


def in_a_file(folder: Path, code: str, source: str, column: int, length: int) -> Source:
    file = folder / "read.py"
    file.write_text(f"import os\n{code}\n")
    site = SourceSite(str(file), 2, column, 2, column + length, "main", code)
    return Source(source, site, "main", "0", "MainThread", (1, 1), True, 0, (5, 5), ("1", "2"))


def held(source: Source) -> FixedSource:
    return FixedSource(source.site.file, source.site.line, source.source)


@dataclass
class Changeable(Pretended):
    """A program whose changed lines are actually run."""

    changed_line_helps: bool = True

    def compare(
        self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
    ) -> Trial:
        if intervention.changes and self.changed_line_helps:
            self.made.append(intervention)
            return Trial(intervention, runs, Verdict.SAME, None)
        return super().compare(intervention, runs=runs, may_be_short=may_be_short)


@pytest.mark.parametrize("helps", [True, False])
def test_a_changed_line_is_verified_only_by_runs_of_that_line(tmp_path: Path, helps: bool) -> None:
    listing = in_a_file(tmp_path, "names = os.listdir()", "listing", 8, 12)
    program = Changeable([(divergence(), [held(listing)])], [listing], changed_line_helps=helps)
    comparison = investigated(program)
    [fix] = comparison.fixes
    # A change that was tried and did not help is not recommended.
    assert fix.code == ("names = sorted(os.listdir())" if helps else None)
    assert (fix.verified, fix.runs > 1) == (helps, helps)
    assert not program.made[-1].sources and [change.file for change in program.made[-1].changes] == [listing.site.file]
    last = comparison.causes[0].experiments[-1]
    assert (last.factor, last.equal) == ("line read.py:2", helps)


@pytest.mark.parametrize(
    ("code", "apart", "fixed", "advised"),
    [
        ("seed = int(os.times()) + rank", 2, "seed = 0 + rank", False),
        ("seed = int(os.times())", 1, "seed = 0", False),
        ("seed = int(os.times())", 2, "seed = 0", True),
    ],
)
def test_one_seed_for_many_processes_comes_with_advice(
    tmp_path: Path, code: str, apart: int, fixed: str, advised: bool
) -> None:
    clock = replace(in_a_file(tmp_path, code, "clock", 11, 10), apart=apart)
    comparison = investigated(Changeable([(divergence(), [held(clock)])], [clock]))
    [fix] = comparison.fixes
    assert (fix.code, fix.verified) == (fixed, True)
    assert fix.title.startswith("Seed with a constant, at read.py:2")
    assert ("2 processes run this line" in fix.title) is advised


@pytest.mark.parametrize(("workers", "advised"), [("2", True), ("count", True), ("0", False)])
def test_a_seeded_generator_that_loader_workers_inherit_comes_with_advice(
    tmp_path: Path, workers: str, advised: bool
) -> None:
    generator = in_a_file(tmp_path, "draws = default_rng()", "unseeded-generator", 8, 13)
    file = Path(generator.site.file)
    file.write_text(f"{file.read_text()}\nloader = DataLoader(images, num_workers={workers})\n")
    comparison = investigated(Changeable([(divergence(), [held(generator)])], [generator]))
    [fix] = comparison.fixes
    assert (fix.code, fix.verified) == ("draws = default_rng(0)", True)
    assert ("worker_init_fn=seeds.worker_init_fn" in fix.title) is advised


@pytest.mark.parametrize(
    ("line", "advised"),
    [
        ("from read import draws", True),
        ("import parts.read as parts", True),
        ("from . import read", True),
        ("import reader", False),
    ],
)
def test_a_loader_in_a_file_that_imports_the_generator_counts_too(tmp_path: Path, line: str, advised: bool) -> None:
    generator = in_a_file(tmp_path, "draws = default_rng()", "unseeded-generator", 8, 13)
    loading = Path(generator.site.file).with_name("train.py")
    loading.write_text(f"{line}\nloader = DataLoader(images, num_workers=2)\n")
    comparison = investigated(Changeable([(divergence(), [held(generator)])], [generator]))
    [fix] = comparison.fixes
    assert ("worker_init_fn=seeds.worker_init_fn" in fix.title) is advised


def test_every_cause_says_what_else_its_remedy_changes() -> None:
    assert [name for name, cause in causes().items() if not cause.side_effect] == []
    remedies = {name: factor.remedy for name, factor in FACTORS.items() if factor.remedy is not None}
    assert [name for name, remedy in remedies.items() if not remedy.side_effect] == []


def test_a_fix_says_what_else_it_changes(tmp_path: Path) -> None:
    listing = in_a_file(tmp_path, "names = os.listdir()", "listing", 8, 12)
    [fix] = investigated(Changeable([(divergence(), [held(listing)])], [listing])).fixes
    assert fix.side_effect == "Splits by position differ from those of earlier runs."


@pytest.mark.parametrize("apart", [1, 2])
def test_a_seed_is_fixed_where_it_is_created_so_that_explicit_seeds_and_ranks_still_apply(
    tmp_path: Path, apart: int
) -> None:
    clock = replace(in_a_file(tmp_path, "seed = int(os.times()) + rank", "clock", 11, 10), apart=apart)
    seed = replace(used(FixedSource("/p/train.py", 7, "seed-value")), apart=apart)
    comparison = investigated(Changeable([(divergence(kind=Kind.RNG), [held(clock)])], [clock, seed]))
    assert [(cause.identifier, cause.sites[0].line) for cause in comparison.causes] == [("seed-varies", 2)]
    assert [fix.code for fix in comparison.fixes] == ["seed = 0 + rank"]
    assert len(comparison.experiments) <= 2


def test_the_call_that_sets_a_seed_is_examined_if_a_constant_where_it_is_created_does_not_help(tmp_path: Path) -> None:
    clock = in_a_file(tmp_path, "seed_of_another = int(os.times())", "clock", 22, 10)
    seed = used(FixedSource("/p/train.py", 7, "seed-value"))
    comparison = investigated(Changeable([(divergence(kind=Kind.RNG), [held(seed)])], [clock, seed]))
    assert [(cause.identifier, cause.sites[0].line) for cause in comparison.causes] == [("seed-varies", 7)]


@pytest.mark.parametrize("times", [1, 5])
def test_a_repeatedly_created_generator_gets_a_note_that_one_seed_repeats_its_numbers(
    tmp_path: Path, times: int
) -> None:
    made = in_a_file(tmp_path, "rng = random.Random()", "unseeded-generator", 6, 15)
    made = replace(made, counts=(times, times))
    comparison = investigated(Changeable([(divergence(), [held(made)])], [made]))
    [fix] = comparison.fixes
    assert fix.code == "rng = random.Random(0)"
    assert ("draws the same numbers" in fix.title) == (times > 1)


@pytest.mark.parametrize("elements", ["objects", "text"])
def test_a_fix_of_an_object_order_is_verified_with_perturbed_addresses(elements: str, tmp_path: Path) -> None:
    order = in_a_file(tmp_path, "for one in {*os.sep}: print(one)", "set-order", 11, 9)
    program = Changeable([(divergence(), [held(order)])], [replace(order, elements=elements)])
    investigated(program)
    [changed] = [made for made in program.made if made.changes]
    assert (("addresses", Action.PERTURBED) in changed.factors) == (elements == "objects")


@pytest.mark.parametrize("made", ["elsewhere", "there"])
def test_a_seed_created_on_another_line_gets_no_note_about_repetition(made: str, tmp_path: Path) -> None:
    given = "seed" if made == "elsewhere" else "get()"
    lines = ["import time", "seed = options.seed or int(time.time())", f"for one in (os.nice, os.umask): one({given})"]
    line = in_a_file(tmp_path, "\n".join(lines), "seed-value", 32, len(f"one({given})"))
    seed = replace(line, site=replace(line.site, line=4, end_line=4, code=lines[2]), counts=(2, 2))
    [fix] = investigated(Changeable([(divergence(kind=Kind.RNG), [held(seed)])], [seed])).fixes
    if made == "elsewhere":
        assert fix.code == "seed = options.seed or 0"
        assert fix.title == "Seed with a constant, at read.py:3"
    else:
        assert fix.code == "for one in (os.nice, os.umask): one(0)"
        assert "draws the same numbers" in fix.title


def test_sources_that_no_line_can_change_stay_fixed_while_a_changed_line_is_verified(tmp_path: Path) -> None:
    listing = in_a_file(tmp_path, "names = os.listdir()", "listing", 8, 12)
    program = Changeable([(divergence(), [held(listing), CLOCK])], [listing, used(CLOCK)])
    comparison = investigated(program)
    assert {fix.identifier: fix.verified for fix in comparison.fixes} == {"listing-order": True, "clock": False}
    assert program.made[-1].sources == {CLOCK}


def test_without_fixes_no_line_is_changed(tmp_path: Path) -> None:
    listing = in_a_file(tmp_path, "names = os.listdir()", "listing", 8, 12)
    program = Changeable([(divergence(), [held(listing)])], [listing])
    assert [fix.verified for fix in investigated(program, can_try_fixes=False).fixes] == [False]
    assert not any(made.changes for made in program.made)


def test_if_nothing_helps_no_cause_is_confirmed_and_the_limit_says_so() -> None:
    comparison = investigated(Pretended([(divergence(), ["nothing that can be fixed"])], [used(CLOCK)]))
    assert not comparison.causes and not comparison.fixes
    assert comparison.diagnosis.limit == "No experiment made the difference go away."
    assert len(comparison.experiments) > 10


def test_a_remaining_difference_that_nothing_removes_is_reported_with_its_place() -> None:
    left = divergence(20, line=60)
    program = Pretended([(divergence(), [CLOCK]), (left, ["nothing that can be fixed"])], [used(CLOCK)])
    comparison = investigated(program)
    assert [status for _, status in found(comparison)] == ["confirmed"]
    assert comparison.diagnosis.limit == (
        "With that fixed, the runs still differ, first at train.py:60, and no experiment made that difference go away."
    )


def test_if_nothing_helps_the_limit_names_files_that_could_not_be_observed() -> None:
    @dataclass
    class Unseen(Pretended):
        failure: str | None = None

        def probe(self, intervention: Intervention) -> Trial:
            unprobed = [Unprobed(f"/p/{name}.pyc", name, "it was compiled") for name in ("a", "b", "c", "d")]
            return replace(super().probe(intervention), unprobed=unprobed, failure=self.failure)

    never: list[str | FixedSource] = ["nothing that can be fixed"]
    told = investigated(Unseen([(divergence(), never)])).diagnosis.limit
    assert told is not None and told.startswith(
        "No experiment made the difference go away. Nothing could be observed in a.pyc"
    )
    assert "d.pyc" not in told and told.endswith("The same holds for 1 more file.")
    failed = investigated(
        Unseen([(divergence(), never)], failure="the program ended with signal SIGSEGV.")
    ).diagnosis.limit
    assert failed is not None and failed.endswith("could not be observed: the program ended with signal SIGSEGV.")


def test_a_cause_implied_by_the_kind_is_likely_if_no_experiment_shows_it() -> None:
    never = ["nothing that can be fixed"]
    behind = investigated(Pretended([(divergence(kind=Kind.MUTATION), never)]))
    assert found(behind) == [("changed-behind", "likely")]
    op = investigated(Pretended([(divergence(kind=Kind.OP, distinct=7), never)]))
    assert found(op) == [("nondeterministic-op", "likely")]


def test_a_varying_op_is_confirmed_only_if_it_varied_when_repeated_in_isolation() -> None:
    for distinct, status in ((7, "confirmed"), (1, "likely"), (None, "likely")):
        program = Pretended([(divergence(kind=Kind.OP, distinct=distinct), ["deterministic-algorithms"])])
        assert found(investigated(program)) == [("nondeterministic-op", status)]


@pytest.mark.parametrize("beside", [{"stream": "0.threads", "thread": "judge"}, {"kind": Kind.MUTATION}])
def test_factors_that_may_only_hide_a_race_are_not_tried(beside: dict[str, Any]) -> None:
    racing = replace(divergence(kind=Kind.OP), **beside)
    comparison = investigated(Pretended([(racing, ["threads"])]))
    assert ("nondeterministic-op", "confirmed") not in found(comparison)
    tried = [made.factor for made in comparison.experiments]
    assert tried[0] == "thread-schedule"
    assert not {"threads", "deterministic-algorithms", "patches"} & set(tried)
    varying = replace(divergence(kind=Kind.OP, distinct=7), stream="0.threads", thread="judge")
    assert found(investigated(Pretended([(varying, ["threads"])]))) == [("nondeterministic-op", "confirmed")]


def test_sporadically_equal_runs_confirm_only_what_the_evidence_points_to() -> None:
    @dataclass
    class AtTimes(Pretended):
        """A program whose runs happen to be equal under one factor, and the first time that no factor is set."""

        looked_at: bool = False

        def compare(
            self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
        ) -> Trial:
            if not intervention.factors and not self.looked_at:
                self.looked_at = True
                return Trial(intervention, runs, Verdict.SAME, None)
            return super().compare(intervention, runs=runs, may_be_short=may_be_short)

    beside = replace(divergence(kind=Kind.DATA), stream="0.threads", thread="judge")
    # The evidence runs also had equal values.
    beside = replace(beside, outputs=(replace(beside.outputs[0], elements_different=0),))
    assert found(investigated(AtTimes([(beside, ["hash-seed"])]))) == [("hash-order", "likely")]
    assert found(investigated(AtTimes([(beside, ["thread-schedule"])]))) == [("thread-race", "confirmed")]


@dataclass
class Once(Pretended):
    """A program of which only the first run differed, whatever is fixed afterwards."""

    def compare(
        self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
    ) -> Trial:
        self.made.append(intervention)
        return Trial(intervention, runs, Verdict.SAME, None)


@pytest.mark.parametrize("likely", [(), (Hypothesis("hash-order", Intervention.fix("hash-seed"), ()),)])
def test_a_difference_that_never_recurs_confirms_no_cause(likely: Sequence[Hypothesis]) -> None:
    # The evidence runs had equal values.
    first = replace(divergence(), outputs=(replace(divergence().outputs[0], elements_different=0),))
    comparison = investigated(Once([(first, [SET])], [used(SET)]), likely=likely)

    assert [status for _, status in found(comparison)] == ["likely"] * len(likely)
    assert [(made.factor, made.action, made.equal) for made in comparison.experiments] == [("nothing", "changed", True)]
    assert "did not recur" in str(comparison.diagnosis.limit) and not comparison.fixes


def test_a_difference_that_recurs_with_nothing_changed_is_investigated() -> None:
    @dataclass
    class Seldom(Pretended):
        looked_at: bool = False

        def compare(
            self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
        ) -> Trial:
            if not self.looked_at:
                self.looked_at = True
                return Trial(intervention, runs, Verdict.SAME, None)
            return super().compare(intervention, runs=runs, may_be_short=may_be_short)

    comparison = investigated(Seldom([(divergence(), [LISTING])], [used(LISTING)]))
    assert found(comparison) == [("listing-order", "confirmed")]


def test_a_leftover_file_explains_a_difference_that_does_not_recur() -> None:
    first = divergence()
    left = (Leftover("cache.bin", 1, 2, is_copied=True),)
    comparison = Comparison(Verdict.DIFFERENT, [], Recorded(), first_divergence=first, leftovers=left)
    investigation = Investigation(comparison, Once([(first, [])], [used(SET)]))
    investigation.run()
    assert [(cause.identifier, cause.status.value) for cause in investigation.diagnosis.causes] == [
        ("leftover-file", "confirmed")
    ]


@dataclass
class Streaks(Pretended):
    """A program with one cause that always shows, and a second difference that no factor removes and that is absent from several runs in a row."""

    longest: Mapping[str, int] = field(default_factory=dict)
    """For each factor fixed in addition to the first cause, the number of equal runs before one differs; 1 if not listed."""

    def compare(
        self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
    ) -> Trial:
        trial = super().compare(intervention, runs=runs, may_be_short=may_be_short)
        if trial.divergence is self.divergences[0][0]:
            return trial
        equal = max([1, *(self.longest.get(name, 1) for name, _ in intervention.factors)])
        if runs <= equal:
            return replace(trial, runs=runs, verdict=Verdict.SAME, divergence=None)
        return replace(trial, runs=equal + 1, verdict=Verdict.DIFFERENT, divergence=self.divergences[1][0])


@pytest.mark.parametrize(
    "longest",
    [{"hash-seed": 2, "python-seed": 3}, {"hash-seed": 3, "torch-seed": 3, "python-seed": 5}],
    ids=["seldom after the first cause", "equal runs before one that differs"],
)
def test_a_streak_of_equal_runs_does_not_confirm_a_cause_of_a_rare_second_difference(
    longest: dict[str, int],
) -> None:
    program = Streaks(
        [(divergence(), [LISTING]), (divergence(50, line=30), ["nothing does"])], [used(LISTING)], longest=longest
    )
    assert [name for name, status in found(investigated(program)) if status == "confirmed"] == ["listing-order"]


@pytest.mark.parametrize(("process", "confirmed"), [("main.SpawnPoolWorker-1", 1), ("main.rank-1", 2)])
def test_a_difference_left_by_fixed_values_in_pool_workers_is_tried_twice(process: str, confirmed: int) -> None:
    program = Streaks(
        [(divergence(), [LISTING]), (divergence(50, line=30), ["nothing does"])],
        [replace(used(LISTING), process=process)],
        longest={"python-seed": 5},
    )
    assert [status for _, status in found(investigated(program))].count("confirmed") == confirmed


def test_a_second_cause_that_always_shows_is_still_confirmed() -> None:
    program = Pretended([(divergence(), [LISTING]), (divergence(50, line=30), ["python-seed"])], [used(LISTING)])
    assert ("seed-missing-python", "confirmed") in found(investigated(program))


@dataclass
class Resuming(Pretended):
    """A program for which a fresh copy of its folder acts as a fixed factor."""

    def compare(
        self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
    ) -> Trial:
        fixed = intervention.also(Intervention.fix("listings")) if intervention.fresh_copy else intervention
        return replace(super().compare(fixed, runs=runs, may_be_short=may_be_short), intervention=intervention)


def test_unobserved_file_reads_are_tried_before_factors_that_nothing_points_to() -> None:
    program = Resuming([(divergence(kind=Kind.STRUCTURE), ["listings"])])
    comparison = investigated(program, changed_files=["last.h5", "log.txt"])
    assert found(comparison) == [("leftover-file", "confirmed")]
    assert any(
        "The runs changed last.h5, log.txt; no reads were seen." in text for text in comparison.causes[0].evidence
    )
    assert len(program.made) == 2, "the runs with notes, and those in a copy"


def test_files_that_runs_only_write_are_not_blamed() -> None:
    comparison = investigated(Resuming([(divergence(), ["numpy-seed"])]), changed_files=["log.txt"])
    assert found(comparison) == [("seed-missing-numpy", "confirmed")]
    drawn = Resuming([(divergence(kind=Kind.RNG), ["numpy-seed"])])
    investigated(drawn, changed_files=["log.txt"])
    assert not any(made.fresh_copy for made in drawn.made)


def test_changed_files_without_an_observed_read_do_not_explain_a_difference_that_does_not_recur() -> None:
    first = replace(divergence(), outputs=(replace(divergence().outputs[0], elements_different=0),))
    assert found(investigated(Once([(first, [])]), changed_files=["log.txt"])) == []


@pytest.mark.parametrize("does_help", [True, False])
def test_an_apparent_fix_is_tried_twice_if_timing_decides(does_help: bool) -> None:
    """A program that takes items from a queue: whatever is fixed also changes which item comes first."""

    @dataclass
    class ByChance(Pretended):
        def compare(
            self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
        ) -> Trial:
            is_again = intervention in self.made
            trial = super().compare(intervention, runs=runs, may_be_short=may_be_short)
            if is_again and trial.verdict is Verdict.SAME and not does_help:
                return Trial(intervention, 2, Verdict.DIFFERENT, self.divergences[0][0])
            return trial

    queue = used(FixedSource("/p/train.py", 7, "queue-order"))
    comparison = investigated(ByChance([(divergence(kind=Kind.ORDER), ["hash-seed"])], [queue]))
    assert (("hash-order", "confirmed") in found(comparison)) is does_help
    if not does_help:
        assert found(comparison) == [("queue-order", "possible")]


def test_an_op_that_deterministic_algorithms_do_not_fix_is_replaced_if_a_patch_exists() -> None:
    def tried(op: str) -> Comparison:
        varying = replace(divergence(kind=Kind.OP, distinct=7), op=op)
        return investigated(Pretended([(varying, ["patches"])]))

    backward = tried("aten::grid_sampler_2d_backward.default")
    assert found(backward) == [("nondeterministic-op", "confirmed")]
    assert [(fix.code, fix.verified) for fix in backward.fixes] == [("import determinism\n\ndeterminism.patch()", True)]
    assert "patches" not in [experiment.factor for experiment in tried("aten::add.Tensor").experiments]


def test_no_patch_is_tried_if_deterministic_algorithms_help() -> None:
    varying = replace(divergence(kind=Kind.OP, distinct=7), op="aten::_index_put_impl_.default")
    comparison = investigated(Pretended([(varying, ["deterministic-algorithms"])]))
    assert [fix.verified for fix in comparison.fixes] == [True]
    assert "patches" not in [experiment.factor for experiment in comparison.experiments]


def test_an_environment_difference_is_likely_if_only_the_stored_run_differs() -> None:
    surroundings = [("torch", "2.12.0", "2.13.0")]
    comparison = investigated(Pretended([(divergence(), [])]), environment=surroundings)
    assert found(comparison) == [("environment-difference", "likely")]


def test_confirmed_causes_are_kept_when_the_time_is_up() -> None:
    program = Pretended([(divergence(10), [LISTING]), (divergence(50, line=30), ["memory"])], [used(LISTING)], 12)
    comparison = investigated(program)
    assert found(comparison)[0] == ("listing-order", "confirmed")
    assert comparison.diagnosis.limit is not None and "--budget" in comparison.diagnosis.limit
    assert not any(fix.verified for fix in comparison.fixes)


def two_libraries_that_nobody_seeds(runs_left: int = 1000) -> tuple[Pretended, dict[str, Any]]:
    """A program that draws weights from PyTorch and batches from NumPy, and the causes that its code suggests for each divergence."""
    weights, batches = divergence(0, Kind.RNG, line=10), divergence(50, line=30)
    program = Pretended([(weights, ["torch-seed"]), (batches, ["numpy-seed"])], runs_left=runs_left)

    def named(library: str) -> list[Hypothesis]:
        return [Hypothesis(f"seed-missing-{library}", Intervention.fix(f"{library}-seed"), ())]

    return program, {
        "likely": named("torch"),
        "likely_of": lambda left: named("numpy" if left == batches else "torch"),
    }


def test_a_cause_the_code_suggests_for_a_later_divergence_is_tried_before_any_probe() -> None:
    program, told = two_libraries_that_nobody_seeds()
    comparison = investigated(program, **told)
    assert found(comparison) == [("seed-missing-torch", "confirmed"), ("seed-missing-numpy", "confirmed")]
    assert [sorted(name for name, _ in made.factors) for made in program.made] == [
        ["torch-seed"],
        ["numpy-seed", "torch-seed"],
    ]
    assert all(fix.verified for fix in comparison.fixes)


def test_a_cause_the_code_suggests_stays_likely_if_time_runs_out_on_a_later_divergence() -> None:
    program, told = two_libraries_that_nobody_seeds(runs_left=3)
    comparison = investigated(program, **told)
    assert found(comparison) == [("seed-missing-torch", "confirmed"), ("seed-missing-numpy", "likely")]
    assert not any(fix.verified for fix in comparison.fixes)


def test_a_cause_suggested_for_a_later_divergence_is_dropped_if_fixing_it_changes_nothing() -> None:
    program, told = two_libraries_that_nobody_seeds()
    program.divergences = [program.divergences[0], (program.divergences[1][0], ["python-seed"])]
    comparison = investigated(program, **told)
    assert found(comparison) == [("seed-missing-torch", "confirmed"), ("seed-missing-python", "confirmed")]


@pytest.mark.parametrize("is_needed", [True, False])
def test_suggested_causes_are_tried_together_before_factors_that_nothing_points_to(is_needed: bool) -> None:
    """Neither fix alone removes the first divergence: an environment takes its seed from outside, and Python's generator chooses the actions."""
    seed = FixedSource("/site-packages/env/seeding.py", 9, "seed-value")
    by = LedBy(SourceSite("/p/train.py", 20, 0, 20, 9, "main", "env.reset()"))
    sources = [replace(used(seed), is_in_library=True, led_by=(by,))]
    needed = [seed, "python-seed"] if is_needed else ["memory"]
    python = Hypothesis("seed-missing-python", Intervention.fix("python-seed"), ())
    program = Pretended([(divergence(), needed)], sources)
    comparison = investigated(program, likely=[python])
    together = Intervention(sources=frozenset({seed})).also(python.intervention)
    assert program.made.count(together) == 1
    if is_needed:
        assert found(comparison) == [("seed-missing-python", "confirmed"), ("outside-entropy", "confirmed")]
        # Each alone, with a probe in between, then together: nothing else was tried.
        assert [sorted(name for name, _ in made.factors) for made in program.made] == [
            ["python-seed"],
            [],
            [],
            ["python-seed"],
        ]
    else:
        assert found(comparison) == [("uninitialized-memory", "confirmed")]


AT_START, IN_WORKER = divergence(10, Kind.RNG), replace(divergence(0, line=40), process="0.w00")
"""The differences at step 0 in the process that starts workers, and in one of the workers."""


def test_a_remaining_difference_in_another_process_is_a_new_divergence_even_if_it_is_no_later() -> None:
    program = Pretended([(AT_START, ["torch-seed"]), (IN_WORKER, ["entropy"])], records={"0": 20, "0.w00": 5})
    comparison = investigated(program)
    assert found(comparison) == [("seed-missing-torch", "confirmed"), ("outside-entropy", "confirmed")]
    [alone] = [one.outcome for one in comparison.experiments if one.factor == "torch-seed"]
    assert "at step 0, aten::add.Tensor, train.py:20 was gone; the runs diverged in process 0.w00, at step 0" in alone


def test_changing_only_which_process_is_reported_first_removes_nothing() -> None:
    class Reordered(Pretended):
        def in_order(self, left: list[Divergence], intervention: Intervention) -> list[Divergence]:
            return left[::-1] if ("numpy-seed", Action.FIXED) in intervention.factors else left

    program = Reordered([(AT_START, ["memory"]), (IN_WORKER, ["memory"])], records={"0": 20, "0.w00": 5})
    comparison = investigated(program)
    assert ("numpy-seed", "The runs still differed.") in [(one.factor, one.outcome) for one in comparison.experiments]
    assert found(comparison) == [("uninitialized-memory", "confirmed")]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_difference_in_every_trial_is_steady_whichever_process_is_reported_first(is_there: bool) -> None:
    class InTurns(Pretended):
        pairs: ClassVar[Counter[Intervention]] = Counter()

        def in_order(self, left: list[Divergence], intervention: Intervention) -> list[Divergence]:
            self.pairs[intervention] += 1
            is_turned = self.pairs[intervention] % 2 == 1
            ordered = sorted(left, key=lambda one: one.process, reverse=is_turned)
            return ordered if is_there else ordered[:1]

    beside, later = replace(IN_WORKER, process="0.w01"), replace(divergence(3, line=50), process="0.w00")
    program = InTurns([(IN_WORKER, ["entropy"]), (beside, ["entropy"]), (later, ["memory"])])
    comparison = investigated(program)
    assert found(comparison) == [("outside-entropy", "confirmed"), ("uninitialized-memory", "confirmed")]
    assert max(len(made.factors) for made in program.made) == 2


def test_a_difference_that_often_does_not_occur_is_not_cured_by_two_equal_runs() -> None:
    class Sometimes(Pretended):
        """Only one of several runs has the set in another order, and few runs never do."""

        def compare(
            self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
        ) -> Trial:
            every = self.divergences
            self.divergences = every[1:] if runs <= 3 else every
            try:
                return super().compare(intervention, runs=runs, may_be_short=may_be_short)
            finally:
                self.divergences = every

    of_set, drawn = divergence(10), divergence(50, line=30)
    comparison = investigated(Sometimes([(of_set, ["hash-seed"]), (drawn, ["numpy-seed"])], unseeded=["numpy"]))
    assert {name for name, _ in found(comparison)} == {"hash-order", "seed-missing-numpy"}


@dataclass
class OnAndOff(Pretended):
    """A program whose first difference shows in every second pair of runs, beside another one that always shows."""

    pairs: int = 0

    def in_order(self, left: list[Divergence], intervention: Intervention) -> list[Divergence]:
        self.pairs += 1
        return [one for one in left if one is not self.divergences[0][0] or self.pairs % 2]


ORDERED, DRAWN = divergence(10), divergence(50, line=30)


@pytest.mark.parametrize("pairs", [0, 1], ids=["shown by the next pair", "not shown by the next pair"])
def test_a_cause_that_shows_only_sometimes_is_told_from_one_that_always_shows_later(pairs: int) -> None:
    program = OnAndOff([(ORDERED, ["hash-seed"]), (DRAWN, ["numpy-seed"])], unseeded=["numpy"], pairs=pairs)
    assert found(investigated(program)) == [("hash-order", "confirmed"), ("seed-missing-numpy", "confirmed")]


@pytest.mark.parametrize("pairs", [0, 1])
def test_of_two_causes_the_one_that_other_runs_show_earlier_is_explained_first(pairs: int) -> None:
    program = OnAndOff([(ORDERED, ["hash-seed"]), (DRAWN, ["numpy-seed"])], unseeded=["numpy"], pairs=pairs)
    comparison = Comparison(Verdict.DIFFERENT, [], Recorded(), first_divergence=DRAWN)
    investigation = Investigation(comparison, program)
    investigation.run()
    assert found(replace(comparison, diagnosis=investigation.diagnosis)) == [
        ("hash-order", "confirmed"), ("seed-missing-numpy", "confirmed")
    ]  # fmt: skip


def test_an_earlier_difference_that_came_once_does_not_keep_the_first_from_being_explained() -> None:
    class Once(OnAndOff):
        def in_order(self, left: list[Divergence], intervention: Intervention) -> list[Divergence]:
            self.pairs += 1
            return [one for one in left if one is not ORDERED or self.pairs == 2]

    program = Once([(ORDERED, ["nothing does"]), (DRAWN, ["numpy-seed"])], unseeded=["numpy"])
    comparison = Comparison(Verdict.DIFFERENT, [], Recorded(), first_divergence=DRAWN)
    investigation = Investigation(comparison, program)
    investigation.run()
    [cause] = investigation.diagnosis.causes
    assert cause.identifier == "seed-missing-numpy"


@pytest.mark.parametrize(
    ("left", "others", "records", "is_gone"),
    [
        (IN_WORKER, [], {"0": 11}, True),
        (IN_WORKER, [divergence(15, line=30)], {"0": 20}, True),
        (IN_WORKER, [replace(IN_WORKER, process="0.w01")], {"0": 20}, True),
        (IN_WORKER, [AT_START], {"0": 20}, False),
        (IN_WORKER, [divergence(4, line=3)], {"0": 20}, False),
        (IN_WORKER, [replace(divergence(15, line=30), stream="0.threads")], {"0": 20}, False),
        (IN_WORKER, [], {"0": 10}, False),
        (IN_WORKER, [], {"0.w00": 20}, False),
        (replace(AT_START, process="0.w00"), [], {"0": 20}, False),
        (divergence(4, line=3), [], {"0": 20}, False),
    ],
    ids=[
        "equal beyond it",
        "equal up to a later one",
        "another worker differs too",
        "still there",
        "an earlier one there",
        "one there without an order",
        "recorded only up to it",
        "not in both runs",
        "the same line in another process",
        "an earlier one of the same process",
    ],
)
def test_a_divergence_is_gone_if_its_process_stayed_equal_past_it_while_another_differs(
    left: Divergence, others: Sequence[Divergence], records: Mapping[str, int], is_gone: bool
) -> None:
    trial = Trial(Intervention(), 2, Verdict.DIFFERENT, left, others=others, records=records)
    assert trial.removes(AT_START) is is_gone


def test_untried_causes_are_possible_if_the_user_ends_the_search() -> None:
    class Interrupted(Pretended):
        def compare(
            self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
        ) -> Trial:
            if intervention.sources:
                raise LaunchError("interrupted", "It was interrupted.")
            return super().compare(intervention, runs=runs, may_be_short=may_be_short)

    listing = FixedSource("read.py", 3, "listing")
    comparison = Comparison(Verdict.DIFFERENT, [], Recorded(), first_divergence=divergence())
    investigation = Investigation(comparison, Interrupted([(divergence(), [listing])], [used(listing)]))
    with pytest.raises(LaunchError):
        investigation.run()
    assert found(replace(comparison, diagnosis=investigation.diagnosis)) == [("listing-order", "possible")]


def test_what_was_being_tried_is_possible_too_if_the_user_ends_the_search() -> None:
    class Interrupted(Pretended):
        def compare(
            self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
        ) -> Trial:
            if intervention != Intervention():
                raise LaunchError("interrupted", "It was interrupted.")
            return super().compare(intervention, runs=runs, may_be_short=may_be_short)

    listing = FixedSource("read.py", 3, "listing")
    first = divergence(kind=Kind.RNG)
    comparison = Comparison(Verdict.DIFFERENT, [], Recorded(), first_divergence=first)
    investigation = Investigation(comparison, Interrupted([(first, [listing])], [used(listing)]))
    with pytest.raises(LaunchError):
        investigation.run()
    causes = found(replace(comparison, diagnosis=investigation.diagnosis))
    assert causes == [("seed-missing-torch", "possible"), ("listing-order", "possible")]


def test_of_everything_that_was_being_tried_together_nothing_is_named() -> None:
    class Interrupted(Pretended):
        def compare(
            self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
        ) -> Trial:
            if len(intervention.factors) > 4:
                raise LaunchError("interrupted", "It was interrupted.")
            return super().compare(intervention, runs=runs, may_be_short=may_be_short)

    program = Interrupted([(divergence(), [LISTING, "hash-seed"])])
    comparison = Comparison(Verdict.DIFFERENT, [], Recorded(), first_divergence=divergence())
    investigation = Investigation(comparison, program)
    with pytest.raises(LaunchError):
        investigation.run()
    assert len(program.made) > 5 and not investigation.diagnosis.causes


def test_what_was_being_tried_is_not_named_beside_an_op_seen_to_vary_by_itself() -> None:
    class OutOfTime(Pretended):
        def compare(
            self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
        ) -> Trial:
            if intervention != Intervention():
                raise LaunchError("interrupted", "It was interrupted.")
            return super().compare(intervention, runs=runs, may_be_short=may_be_short)

    listing = FixedSource("read.py", 3, "listing")
    first = divergence(kind=Kind.OP, distinct=7)
    comparison = Comparison(Verdict.DIFFERENT, [], Recorded(), first_divergence=first)
    investigation = Investigation(comparison, OutOfTime([(first, [listing])], [used(listing)]))
    with pytest.raises(LaunchError):
        investigation.run()
    assert found(replace(comparison, diagnosis=investigation.diagnosis)) == [("nondeterministic-op", "likely")]


def test_a_rare_difference_needs_more_equal_runs() -> None:
    always, seldom = Rate(), Rate()
    always.add(pairs=20, different=20)
    seldom.add(pairs=4, different=1)
    assert always.runs_needed(is_race=False) == 2
    assert seldom.runs_needed(is_race=False) > always.runs_needed(is_race=True)


def test_an_intervention_says_what_was_done() -> None:
    both = Intervention.perturb("hash-seed", "memory").also(Intervention.fix("hash-seed"))
    assert both.factors == {("hash-seed", Action.FIXED), ("memory", Action.PERTURBED)}
    assert (
        both.also(Intervention(sources=frozenset({SET}))).name
        == "hash-seed and set-order at train.py:7 with perturbed memory"
    )
    assert both.without(Intervention.perturb("memory")) == Intervention.fix("hash-seed")


def test_the_last_of_many_experiments_needs_more_equal_runs_than_the_first() -> None:
    rate = Rate()
    rate.add(pairs=10, different=10)
    assert rate.runs_needed(is_race=False, tried=12) > rate.runs_needed(is_race=False)


def test_a_differing_source_is_still_named_when_the_time_is_used_up() -> None:
    place = FixedSource("/p/train.py", 7, "queue-order")
    program = Pretended([(divergence(kind=Kind.ORDER), ["nothing"])], [used(place)], runs_left=6)
    comparison = investigated(program)
    assert comparison.diagnosis.limit is not None and "--budget" in comparison.diagnosis.limit
    assert found(comparison) == [("queue-order", "possible")]


def test_the_diagnosis_is_kept_apart_from_the_immutable_comparison() -> None:
    comparison = Comparison(Verdict.DIFFERENT, [], Recorded(), first_divergence=divergence())
    investigation = Investigation(comparison, Pretended([(divergence(), [LISTING])], [used(LISTING)]))
    investigation.run()
    assert investigation.diagnosis.causes and not comparison.causes
    with pytest.raises(FrozenInstanceError):
        comparison.verdict = Verdict.SAME  # type: ignore[misc]


def test_many_factors_that_seem_to_help_only_together_are_not_confirmed() -> None:
    """This happens when a set of objects is iterated: its order changes from time to time, whatever is fixed."""
    together = ["hash-seed", "torch-seed", "python-seed", "numpy-seed"]
    comparison = investigated(Pretended([(divergence(kind=Kind.ARGUMENT), together)]))
    assert {status for _, status in found(comparison)} == {"likely"}
    two = investigated(Pretended([(divergence(), together[2:])]))
    assert {status for _, status in found(two)} == {"confirmed"}


def missing_seed() -> Hypothesis:
    return Hypothesis("seed-missing-torch", Intervention.fix("torch-seed"), (Frame("/p/train.py", 20, "main", "x"),))


@pytest.mark.parametrize(("elements", "runs"), [(4, 3), (None, 4), (0, 4)])
def test_the_evidence_runs_affect_how_many_equal_runs_are_enough(elements: int | None, runs: int) -> None:
    random = replace(divergence(kind=Kind.RNG), step=3)
    random = replace(random, outputs=(replace(random.outputs[0], elements_different=elements),))
    comparison = investigated(Pretended([(random, ["torch-seed"])]), likely=[missing_seed()])
    assert [made.runs for made in comparison.experiments] == [runs]


@pytest.mark.parametrize(("has_linted_order", "runs"), [(False, 2), (True, 4)])
def test_two_equal_runs_are_enough_for_an_unseeded_generator_unless_a_set_may_have_another_order(
    has_linted_order: bool, runs: int
) -> None:
    program = Pretended([(divergence(kind=Kind.RNG), ["torch-seed"])], early_steps=None if has_linted_order else 2)
    comparison = investigated(program, likely=[missing_seed()], has_linted_order=has_linted_order)
    assert [(fix.verified, fix.runs, fix.steps) for fix in comparison.fixes] == [(True, runs, None)]


@pytest.mark.parametrize(("note", "runs"), [("Not all tensors were kept, because they are large.", 2), (EQUAL_HERE, 4)])
def test_further_runs_count_as_equal_only_if_their_values_were(note: str, runs: int) -> None:
    random = divergence(kind=Kind.RNG)
    seen = Diagnosis(evidence=Evidence("runs", "/evidence", note))
    comparison = Comparison(Verdict.DIFFERENT, [], Recorded(), first_divergence=random, diagnosis=seen)
    investigation = Investigation(comparison, Pretended([(random, ["torch-seed"])]), likely=[missing_seed()])
    investigation.run()
    assert [made.runs for made in investigation.diagnosis.experiments] == [runs]


def test_experiments_use_short_runs_but_a_fix_is_verified_by_whole_ones(tmp_path: Path) -> None:
    listing = in_a_file(tmp_path, "names = os.listdir()", "listing", 8, 12)
    program = Changeable([(divergence(), [held(listing)])], [used(CLOCK), listing], early_steps=3)
    comparison = investigated(program)
    assert [(one.factor, one.equal) for one in comparison.experiments if one.equal] == [
        ("listing at read.py:2", True),
        ("line read.py:2", True),
    ]
    assert comparison.experiments[-2].outcome.endswith("bit-identical in their first 3 steps.")
    assert comparison.experiments[-1].outcome.endswith("bit-identical.")
    assert not any(made.sources for made in program.whole)
    assert [(fix.verified, fix.steps) for fix in comparison.fixes] == [(True, None)]


def test_whole_runs_with_the_source_fixed_follow_if_a_changed_line_does_not_help(tmp_path: Path) -> None:
    listing = in_a_file(tmp_path, "names = os.listdir()", "listing", 8, 12)
    program = Changeable([(divergence(), [held(listing)])], [listing], changed_line_helps=False, early_steps=3)
    comparison = investigated(program)
    assert found(comparison) == [("listing-order", "confirmed")]
    assert any(made.sources for made in program.whole)
    assert [fix.verified for fix in comparison.fixes] == [False]


def test_a_later_difference_that_short_runs_do_not_reach_is_explained_too() -> None:
    both = [(divergence(10), [LISTING]), (divergence(50, line=30), ["torch-seed"])]
    comparison = investigated(Pretended(both, [used(LISTING)], early_steps=3))
    assert found(comparison) == [("listing-order", "confirmed"), ("seed-missing-torch", "confirmed")]
    assert all(fix.steps is None for fix in comparison.fixes)


def test_without_time_for_whole_runs_a_cause_stays_and_its_fix_says_how_far_the_runs_went() -> None:
    program = Pretended([(divergence(), ["torch-seed"])], early_steps=3, runs_left=8)
    comparison = investigated(program)
    assert found(comparison) == [("seed-missing-torch", "confirmed")]
    assert [(fix.verified, fix.steps) for fix in comparison.fixes] == [(True, 3)]


def test_all_runs_are_whole_if_threads_race() -> None:
    racing = replace(divergence(kind=Kind.MUTATION), thread="worker")
    program = Pretended([(racing, ["thread-schedule"])], early_steps=3)
    investigated(program)
    assert program.made and program.whole == program.made


def test_runs_of_racing_threads_are_short_if_short_ones_differed_and_two_whole_ones_follow() -> None:
    racing = replace(divergence(kind=Kind.MUTATION), thread="worker")
    program = Pretended([(racing, ["thread-schedule"])], early_steps=3, probes_are_short=True)
    comparison = investigated(program)
    assert found(comparison) == [("thread-race", "confirmed")]
    # The pair of runs that determined the end does not show how often runs that end there differ: (1 + 1) / (1 + 2).
    assert [(one.runs, "in their first 3 steps" in one.outcome) for one in comparison.experiments] == [
        (5, True),
        (2, False),
    ]


@pytest.mark.parametrize(("elements", "is_short"), [(4, True), (None, False)])
def test_all_runs_of_a_race_are_whole_if_its_values_were_once_equal(elements: int | None, *, is_short: bool) -> None:
    racing = replace(divergence(kind=Kind.MUTATION), thread="worker")
    racing = replace(racing, outputs=(replace(racing.outputs[0], elements_different=elements),))
    program = Pretended([(racing, ["thread-schedule"])], early_steps=3, probes_are_short=True)
    seen = Diagnosis(evidence=Evidence("runs", "/evidence", EQUAL_HERE))
    comparison = Comparison(Verdict.DIFFERENT, [], Recorded(), first_divergence=racing, diagnosis=seen)
    investigation = Investigation(comparison, program)
    investigation.run()
    assert ("in their first 3 steps" in investigation.diagnosis.experiments[0].outcome) is is_short


def test_a_cause_the_code_suggests_is_tried_first_and_two_whole_runs_verify_its_line(
    tmp_path: Path,
) -> None:
    listing = in_a_file(tmp_path, "names = os.listdir()", "listing", 8, 12)
    program = Changeable([(divergence(), [held(listing)])], [listing], early_steps=3)
    likely = Hypothesis(
        "listing-order", Intervention(sources=frozenset({held(listing)})), (listing.site.frame,), ("By the text.",)
    )
    comparison = investigated(program, likely=[likely])
    assert found(comparison) == [("listing-order", "confirmed")]
    assert Intervention() not in program.made, "no probing"
    assert [(one.factor, one.runs) for one in comparison.experiments] == [
        ("listing at read.py:2", 4),
        ("line read.py:2", 2),
    ]
    assert [(fix.verified, fix.runs, fix.steps) for fix in comparison.fixes] == [(True, 2, None)]


def test_a_wrong_suggestion_from_the_code_is_tried_once_before_the_program_is_probed(tmp_path: Path) -> None:
    listing = in_a_file(tmp_path, "names = os.listdir()", "listing", 8, 12)
    program = Changeable([(divergence(), ["torch-seed"])], [listing], early_steps=3)
    likely = Hypothesis("listing-order", Intervention(sources=frozenset({held(listing)})), (listing.site.frame,))
    comparison = investigated(program, likely=[likely])
    assert found(comparison) == [("seed-missing-torch", "confirmed")]
    assert [one.factor for one in comparison.experiments].count("listing at read.py:2") == 1


def test_a_seed_that_is_likely_missing_is_tried_before_anything_else() -> None:
    program = Pretended([(divergence(kind=Kind.RNG), ["torch-seed"])], [used(CLOCK)])
    assert found(investigated(program, likely=[missing_seed()])) == [("seed-missing-torch", "confirmed")]
    assert program.made == [Intervention.fix("torch-seed")]


def test_generators_left_unseeded_are_tried_together_with_what_else_is_likely() -> None:
    likely = Hypothesis("hash-order", Intervention.fix("hash-seed"), (Frame("/p/train.py", 11, "main", "set"),))
    needed = ["hash-seed", "numpy-seed"]
    program = Pretended([(divergence(), needed)], unseeded=["numpy", "python"])
    comparison = investigated(program, likely=[likely])
    assert {name for name, _ in found(comparison)} == {"hash-order", "seed-missing-numpy"}
    assert len(program.made) < len(investigated_without(needed, likely).made)


def investigated_without(needed: Sequence[str], likely: Hypothesis) -> Pretended:
    """The same search where the states of the generators are not known."""
    program = Pretended([(divergence(), needed)])
    investigated(program, likely=[likely])
    return program


def test_a_likely_cause_that_does_not_hold_is_dropped() -> None:
    program = Pretended([(divergence(kind=Kind.RNG), [LISTING])], [used(LISTING)])
    assert found(investigated(program, likely=[missing_seed()])) == [("listing-order", "confirmed")]
    never = Pretended([(divergence(kind=Kind.RNG), ["nothing that can be fixed"])])
    assert found(investigated(never, likely=[missing_seed()])) == []


def test_the_likely_line_of_many_sources_is_tried_first() -> None:
    many = [FixedSource("/p/train.py", line, "unseeded-generator") for line in range(1, 9)]
    likely = Hypothesis("generator-unseeded", Intervention(sources=frozenset({many[5]})))
    program = Pretended([(divergence(), [many[5]])], [used(one) for one in many])
    comparison = investigated(program, likely=[likely], can_try_fixes=False)
    assert found(comparison) == [("generator-unseeded", "confirmed")]
    tried = [made for made in program.made if made.sources]
    assert many[5] in tried[0].sources


def test_a_likely_cause_is_not_named_again_as_possible() -> None:
    site = used(LISTING).site.frame
    likely = Hypothesis("listing-order", Intervention(sources=frozenset({LISTING})), (site,))
    program = Pretended([(divergence(), [LISTING])], [used(LISTING)], runs_left=2)
    assert found(investigated(program, likely=[likely])) == [("listing-order", "likely")]


@pytest.mark.parametrize(
    ("used_lines", "unprobed", "stays"),
    [
        ((CLOCK.line, 80), (), True),
        ((80,), (), False),
        ((), (), False),
        ((), (Unprobed(CLOCK.file, "data", "it could not be parsed"),), True),
    ],
)
def test_a_likely_cause_at_a_line_that_was_never_reached_is_dropped(
    used_lines: Sequence[int], unprobed: Sequence[Unprobed], stays: bool
) -> None:
    likely = Hypothesis("clock", Intervention(sources=frozenset({CLOCK})), (used(CLOCK).site.frame,))
    equal = [used(replace(CLOCK, line=line), differs=False) for line in used_lines]
    program = Pretended([(divergence(), ["nothing that can be fixed"])], equal, runs_left=2, unprobed=unprobed)
    assert (("clock", "likely") in found(investigated(program, likely=[likely]))) == stays


def test_without_time_the_likely_cause_stays_and_untried_factors_are_listed() -> None:
    program = Pretended([(divergence(kind=Kind.RNG), ["torch-seed"])], runs_left=1)
    comparison = investigated(program, likely=[missing_seed()], command="determinism check --budget 120 -- python x.py")
    assert found(comparison) == [("seed-missing-torch", "likely")]
    limit = comparison.diagnosis.limit
    assert limit is not None and "Not tried: torch-seed" in limit
    assert limit.endswith("To continue: determinism check --budget 120 -- python x.py")


def test_causes_the_code_suggests_come_before_those_that_equal_runs_may_show_by_chance() -> None:
    together = ["hash-seed", "torch-seed", "python-seed", "numpy-seed"]
    program = Pretended([(divergence(kind=Kind.ARGUMENT), together)])
    site = Frame("/p/train.py", 11, "main", "for one in some_set:")
    likely = Hypothesis("address-order", Intervention(sources=frozenset({FixedSource(*site[:2], "id")})), (site,))
    named = found(investigated(program, likely=[likely]))
    assert named[0] == ("address-order", "likely")
    assert {status for _, status in named} == {"likely"}


def test_a_difference_in_arguments_is_not_blamed_on_varying_ops() -> None:
    by_chance = Pretended([(divergence(kind=Kind.ARGUMENT), ["deterministic-algorithms"])])
    assert found(investigated(by_chance)) == []


def test_addresses_are_tried_at_the_same_line_if_the_string_hash_salt_does_not_decide_an_order() -> None:
    site = Frame("/p/train.py", 11, "main", "for listener in self.listeners:")
    likely = Hypothesis("hash-order", Intervention.fix("hash-seed"), (site,))
    program = Pretended([(divergence(kind=Kind.ARGUMENT), ["addresses", "hash-seed"])])
    comparison = investigated(program, likely=[likely])
    assert found(comparison) == [("address-order", "confirmed")]
    assert comparison.causes[0].sites[0] == site
    assert any("the line comes from the program's source" in text for text in comparison.causes[0].evidence)
    assert [made.factor for made in comparison.experiments] == ["hash-seed", "addresses and hash-seed"]


def test_without_observed_sources_addresses_come_before_seeds_and_are_tried_twice() -> None:
    program = Pretended([(divergence(kind=Kind.ARGUMENT), ["addresses", "hash-seed"])])
    comparison = investigated(program)
    assert found(comparison) == [("address-order", "confirmed")]
    # A seed may seem to help by chance, and so may anything else that no line points to.
    tried = [made.factor for made in comparison.experiments]
    assert tried == ["hash-seed", "addresses and hash-seed", "addresses and hash-seed"]


def test_draws_in_a_different_order_are_blamed_on_a_shared_generator_not_on_a_queue() -> None:
    queue = used(FixedSource("/p/data.py", 3, "queue-order"))
    program = Pretended([(divergence(kind=Kind.RNG), ["thread-schedule"])], [queue])
    assert found(investigated(program)) == [("shared-generator", "confirmed")]
    of_items = Pretended([(divergence(kind=Kind.DATA), ["thread-schedule"])], [queue])
    assert found(investigated(of_items)) == [("queue-order", "confirmed")]


def varying(distinct: int) -> Divergence:
    return divergence(kind=Kind.OP, distinct=distinct)


def test_an_op_that_varied_in_isolation_is_made_deterministic_before_anything_else() -> None:
    program = Pretended([(varying(50), ["deterministic-algorithms"])], [used(CLOCK)])
    comparison = investigated(program)
    assert found(comparison) == [("nondeterministic-op", "confirmed")]
    assert program.made == [Intervention.fix("deterministic-algorithms")]
    never = investigated(Pretended([(varying(50), [LISTING])], [used(LISTING)]))
    assert found(never) == [("listing-order", "confirmed")]


@pytest.mark.parametrize(
    ("distinct", "executions", "runs"), [(50, 1, 6), (50, 10, 3), (2, 1, 6), (2, 10_000, 3), (1, 10_000, 6)]
)
def test_the_more_often_an_op_runs_the_rarer_runs_are_equal_by_chance(
    distinct: int, executions: int, runs: int
) -> None:
    comparison = investigated(Pretended([(varying(distinct), ["deterministic-algorithms"])]), executions=executions)
    assert comparison.experiments[0].runs == runs


@dataclass
class Salted(Changeable):
    """A program whose runs a fixed salt also makes equal."""

    def compare(
        self, intervention: Intervention, *, runs: int, may_be_short: bool = False, past: Divergence | None = None
    ) -> Trial:
        trial = super().compare(intervention, runs=runs, may_be_short=may_be_short)
        if ("hash-seed", Action.FIXED) not in intervention.factors:
            return trial
        return replace(trial, runs=runs, verdict=Verdict.SAME, divergence=None)


def test_distinguishing_string_hashes_from_address_hashes_takes_no_more_runs_than_the_fix(tmp_path: Path) -> None:
    hashed = in_a_file(tmp_path, "value = hash('x')", "hash", 8, 9)
    comparison = investigated(Salted([(divergence(), [held(hashed)])], [hashed], early_steps=3))
    assert found(comparison) == [("hash-value", "confirmed")]
    runs = {one.factor: one.runs for one in comparison.experiments}
    assert runs == {"hash at read.py:2": 3, "hash-seed": 3, "line read.py:2": 2}


def test_deterministic_algorithms_are_tried_first_for_a_compiled_graph_with_equal_inputs() -> None:
    graph = replace(divergence(kind=Kind.OP), op=Op("inductor::graph", OpSemantics.NOT_ONE_OP))
    comparison = investigated(Pretended([(graph, ["deterministic-algorithms"])], [used(CLOCK)]))
    assert found(comparison) == [("nondeterministic-op", "likely")]
    assert comparison.experiments[0].factor == "deterministic-algorithms"
    assert comparison.fixes[0].verified


def test_a_kernel_of_the_program_that_varies_is_confirmed_without_an_experiment() -> None:
    scatter = Op("triton::scatter", OpSemantics.WRITES_IN_PART)
    kernel = replace(divergence(kind=Kind.OP, distinct=7), op=scatter)
    comparison = investigated(Pretended([(kernel, ["threads"])], [used(CLOCK)]))
    assert found(comparison) == [("varying-triton-kernel", "confirmed")]
    assert (comparison.experiments, comparison.fixes[0].verified) == ((), False)
    assert "No setting makes the kernel deterministic" in comparison.diagnosis.limit
    once = replace(divergence(kind=Kind.OP, distinct=1), op=scatter)
    assert found(investigated(Pretended([(once, [CLOCK])], [used(CLOCK)]))) == [("clock", "confirmed")]


READS_A_PROGRAM = """
import subprocess
def drawn(n):
    print(subprocess.check_output(["date"]))
    cur = con.cursor()
    cur.execute("SELECT x FROM t WHERE n < ?", (n,))
    found = subprocess.check_output(["sample", str(n)], text=True)
    return [float(x) for x in found.split()], [x for x, in cur]
x, y = (torch.tensor(values) for values in drawn(3))
"""


@pytest.mark.parametrize(
    ("line", "column", "source", "status"),
    [(4, 10, "program-output", None), (6, 4, "query-result", "likely"), (7, 12, "program-output", "likely")],
)
def test_an_answer_that_no_experiment_can_fix_is_likely_only_if_the_code_leads_to_it(
    line: int, column: int, source: str, status: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "read.py"
    file.write_text(READS_A_PROGRAM)
    lines = READS_A_PROGRAM.splitlines()
    site = SourceSite(str(file), line, column, line, column + 9, "drawn", lines[line - 1].strip())
    use = replace(used(FixedSource(str(file), line, source)), site=site, program="sample")
    at = Frame(str(file), 9, "", lines[8])
    one = replace(divergence(), site=at, stack=(at,))
    comparison = investigated(Pretended([(one, ["nothing does"])], [use]))
    assert found(comparison) == ([] if status is None else [(source, status)])
    for cause in comparison.causes:
        assert cause.sites[0].line == line and "something different in two further runs" in cause.evidence[1]
