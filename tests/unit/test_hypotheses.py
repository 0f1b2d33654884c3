"""Hypotheses that are tried to explain a divergence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from determinism.comparison.divergence import Divergence, OutputDifference, Status
from determinism.diagnose.experiments import Hypothesis, Intervention
from determinism.diagnose.hypotheses import hypotheses, hypotheses_of_kind, open_status, with_likely_lines
from determinism.diagnose.sources import Source, SourceSite
from determinism.op_semantics import Op, OpSemantics, semantics_of
from determinism.trace.schema import Frame
from determinism.types import Kind


def divergence(op: str, kind: Kind, distinct: int | None = None) -> Divergence:
    site = Frame("/p/train.py", 3, "main", "code()")
    output = OutputDifference("float32", (4,), "CPU:0", 4, repeats=None if distinct is None else 100, distinct=distinct)
    return Divergence(
        kind, "0", 1, 0, 0, "forward", Op(op, semantics_of(op)), None, site, None, (site,), None, (output,), ""
    )


def causes(found: Divergence, framework: str) -> list[str]:
    return [one.cause for one in hypotheses(found, (), leftovers=(), frameworks=(framework,))]


@pytest.mark.parametrize(
    ("framework", "tried", "untried"),
    [
        ("torch", "seed-missing-torch", {"seed-missing-tensorflow", "pipeline-order", "varying-op-tensorflow"}),
        ("tensorflow", "seed-missing-tensorflow", {"seed-missing-torch", "worker-order", "nondeterministic-op"}),
    ],
)
def test_only_causes_of_the_framework_of_the_program_are_tried(framework: str, tried: str, untried: set[str]) -> None:
    found = causes(divergence("an::op", Kind.RNG), framework)
    assert found[0] == tried
    assert untried.isdisjoint(found)
    assert "seed-missing-python" in found


def test_a_library_that_draws_from_numpy_is_likelier_than_a_forked_process_that_draws_anew() -> None:
    found = causes(divergence("an::op", Kind.DATA), "torch")
    assert found.index("seed-missing-numpy") < found.index("seed-lost-by-fork")


def test_a_pipeline_batch_points_to_its_order_and_then_to_a_race() -> None:
    found = causes(divergence("tf::IteratorGetNext", Kind.DATA), "tensorflow")
    assert found[:2] == ["pipeline-order", "pipeline-race"]


@pytest.mark.parametrize(
    ("op", "cause"),
    [
        ("tf::DenseBincount", "varying-op-tensorflow"),
        ("aten::index_put", "nondeterministic-op"),
        ("jax::jit(loss)", "varying-op-jax"),
        ("triton::scatter", "varying-triton-kernel"),
    ],
)
def test_an_op_that_varied_when_repeated_is_the_cause(op: str, cause: str) -> None:
    assert [one.cause for one in hypotheses_of_kind(divergence(op, Kind.OP, distinct=7))] == [cause]
    assert hypotheses_of_kind(divergence(op, Kind.OP, distinct=1)) == []


@pytest.mark.parametrize(
    ("kind", "device", "cause"),
    [
        (Kind.OP, "gpu", "varying-op-jax"),
        (Kind.ARGUMENT, "gpu", "compiled-differently"),
        (Kind.ARGUMENT, "cpu", None),
        (Kind.DATA, "gpu", None),
    ],
)
def test_choices_made_by_xla_are_tried_only_on_a_gpu(kind: Kind, device: str, cause: str | None) -> None:
    found = divergence("jax::jit(step)", kind)
    found = replace(found, outputs=(replace(found.outputs[0], device=device),))
    held = Intervention.fix("xla-gpu-ops")
    tried = [one.cause for one in hypotheses(found, (), leftovers=(), frameworks=("jax",)) if one.intervention == held]
    assert tried == ([] if cause is None else [cause])


def test_a_torn_checkpoint_points_to_the_line_that_saved_it() -> None:
    saver = Frame("/p/saver.py", 19, "save", "Thread(target=torch.save)")
    read = divergence("aten::stack", Kind.DATA)
    plain, torn = (
        next(
            one
            for one in hypotheses(found, (), leftovers=())
            if one.intervention == Intervention.fix("thread-schedule")
        )
        for found in (read, replace(read, saved_at=saver))
    )
    assert (plain.cause, plain.sites) == ("thread-race", (read.site,))
    assert (torn.cause, torn.sites) == ("torn-checkpoint", (saver, read.site))


def test_processes_take_turns_only_if_they_share_memory() -> None:
    read = divergence("aten::mm", Kind.MUTATION)
    turns = Intervention.fix("process-schedule")
    assert hypotheses(replace(read, shares_memory=True), (), leftovers=())[0].intervention == turns
    assert turns not in [one.intervention for one in hypotheses(read, (), leftovers=())]


def test_arrival_order_is_tried_first_at_the_receiving_line() -> None:
    receive = Frame("/p/server.py", 7, "serve", "dist.recv(buffer)")
    found = replace(divergence("aten::add", Kind.ORDER), received_at=receive)
    first = hypotheses(found, (), leftovers=())[0]

    assert (first.cause, first.intervention, first.sites[0]) == ("arrival-order", Intervention.fix("arrivals"), receive)
    assert "arrival-order" not in causes(divergence("aten::add", Kind.ORDER), "torch")


def test_in_a_thread_the_thread_schedule_is_tried_before_seeds() -> None:
    beside = replace(divergence("aten::addmm", Kind.DATA), thread="Thread-1")

    assert causes(beside, "torch")[0] == "thread-race"
    assert causes(divergence("aten::addmm", Kind.DATA), "torch")[0] != "thread-race"


def test_in_a_loader_worker_the_worker_order_is_tried_before_seeds() -> None:
    of_worker = replace(divergence("aten::lift_fresh", Kind.DATA), process="main.worker-0")
    found = causes(of_worker, "torch")
    assert found.index("worker-order") < found.index("seed-missing-torch")
    elsewhere = causes(divergence("aten::lift_fresh", Kind.DATA), "torch")
    assert elsewhere.index("worker-order") > elsewhere.index("seed-missing-torch")


@pytest.mark.parametrize(
    ("kind", "is_tried"),
    [
        (Kind.OP, True),
        (Kind.DATA, True),
        (Kind.ARGUMENT, False),
        (Kind.ORDER, False),
        (Kind.STRUCTURE, False),
        (Kind.RNG, False),
    ],
)
def test_nondeterministic_ops_are_tried_only_if_one_can_be_the_cause(kind: Kind, is_tried: bool) -> None:
    assert ("nondeterministic-op" in causes(divergence("aten::mul", kind), "torch")) is is_tried


def test_a_differing_seed_is_tried_before_the_values_that_it_is_made_from() -> None:
    tried = [Hypothesis(cause, Intervention.fix(name)) for cause, name in (
        ("listing-order", "listings"), ("seed-varies", "python-seed"), ("clock", "clock"), ("hash-order", "hash-seed")
    )]  # fmt: skip
    likely = Hypothesis("clock", Intervention.fix("clock"))
    assert [one.cause for one in with_likely_lines(tried, [likely])][:2] == ["seed-varies", "clock"]
    assert with_likely_lines(tried, []) == tried


def test_the_hash_seed_is_tried_with_only_the_first_line_of_a_likely_order() -> None:
    sites = tuple(Frame("/p/train.py", line, "main", "code()") for line in (3, 5, 8))
    likely = Hypothesis("hash-order", Intervention.fix("hash-seed"), sites[:2])
    tried = [Hypothesis("hash-order", Intervention.fix("hash-seed"), sites[2:])]
    (found,) = [one for one in with_likely_lines(tried, [likely]) if one.cause == "hash-order" and one is not likely]
    assert found.sites == (sites[0], sites[2])


@pytest.mark.parametrize(("kind", "comes_first"), [(Kind.DATA, True), (Kind.ARGUMENT, True), (Kind.RNG, False)])
def test_an_unseeded_global_generator_is_tried_before_what_libraries_and_logs_use(
    kind: Kind, comes_first: bool
) -> None:
    made = Source(
        "unseeded-generator", SourceSite("/site-packages/library/random.py", 3, 0, 3, 9, "make", "Random()"), "main", "0",
        "MainThread", (1, 1), True, 0, (0, 0), ("1", "2"), is_in_library=True,
    )  # fmt: skip
    clock = replace(made, source="clock", site=replace(made.site, file="/p/train.py"), is_in_library=False)
    found = divergence("aten::slice.Tensor", kind)
    tried = [one.intervention for one in hypotheses(found, [made, clock], leftovers=(), unseeded=["numpy"])]
    others = [one.intervention for one in hypotheses(found, [made, clock], leftovers=())]
    assert set(tried) == set(others)
    assert (tried[0] == Intervention.fix("numpy-seed")) == comes_first
    assert others[0] != Intervention.fix("numpy-seed")


def test_a_source_of_a_library_that_is_known_to_differ_comes_before_one_that_cannot_be_compared() -> None:
    site = SourceSite("/site-packages/library/random.py", 41, 0, 41, 9, "make", "Random()")
    unknown = Source(
        "seed-value", site, "main", "0", "MainThread", (1, 1), None, 0, (0, 0), (None, None), is_in_library=True
    )
    differs = replace(unknown, source="unseeded-generator", site=replace(site, line=39), differs=True)
    tried = [
        one.source for one in hypotheses(divergence("aten::add.Tensor", Kind.DATA), [unknown, differs], leftovers=())
    ]
    assert tried.index(differs) < tried.index(unknown)


def of_thread(thread: str | None) -> Divergence:
    return replace(divergence("aten::normal_", Kind.RNG), thread=thread)


@pytest.mark.parametrize("thread", [None, "member-1"])
def test_in_a_thread_the_schedule_is_tried_before_entropy_in_libraries(thread: str | None) -> None:
    site = SourceSite("/site-packages/library/random.py", 3, 0, 3, 9, "make", "Random()")
    made = Source(
        "unseeded-generator", site, "main", "0", "MainThread", (1, 1), True, 0, (0, 0), ("1", "2"), is_in_library=True
    )
    tried = [one.cause for one in hypotheses(of_thread(thread), [made], leftovers=())]
    assert (tried.index("shared-generator") < tried.index("outside-entropy")) == (thread is not None)


@pytest.mark.parametrize(
    ("code", "thread", "cause"),
    [
        ("noisy = x + 0.1 * torch.randn(x.shape, generator=self.noise)", "member-1", "shared-generator"),
        ("noisy = x + make(x.shape, generator=self.noise)", "member-1", "shared-generator"),
        ("keep = torch.bernoulli(rate)", "member-1", "shared-generator"),
        ("keep = torch.bernoulli(rate)", None, "thread-race"),
        ("total = total + results.pop()", "member-1", "thread-race"),
        ("grand(total)", "member-1", "thread-race"),
    ],
)
def test_random_numbers_reordered_between_threads_come_from_a_shared_generator(
    code: str, thread: str | None, cause: str
) -> None:
    found = replace(
        divergence("aten::mul.Tensor", Kind.ORDER), thread=thread, site=Frame("/p/train.py", 3, "run", code)
    )
    turns = [
        one for one in hypotheses(found, (), leftovers=()) if one.intervention == Intervention.fix("thread-schedule")
    ]
    assert [one.cause for one in turns] == [cause]


@pytest.mark.parametrize(("is_tried", "is_possible"), [(False, True), (True, False)])
def test_a_thread_race_is_possible_until_an_experiment_is_made(is_tried: bool, is_possible: bool) -> None:
    found = of_thread("member-1")
    race = next(one for one in hypotheses(found, [], leftovers=()) if one.cause == "shared-generator")
    assert (open_status(race, found, lambda intervention: is_tried) is Status.POSSIBLE) is is_possible
    assert not open_status(race, of_thread(None), lambda intervention: is_tried)


@pytest.mark.parametrize(
    ("stage", "cause", "line"),
    [
        ("ParallelMap(deterministic=default, data.py:2, draws random numbers)", "pipeline-race", 2),
        ("ParallelMap(deterministic=default, data.py:2, draws random numbers)", "seed-missing-tensorflow", 2),
        ("Shuffle(data.py:1)", "seed-missing-tensorflow", 1),
        ("Shuffle(data.py:1)", "pipeline-race", 0),
        ("ParallelInterleave(deterministic=false, data.py:2)", "pipeline-order", 2),
        ("ParallelInterleave(deterministic=true, data.py:2)", "pipeline-order", 0),
        ("Shuffle(data.py:9)", "seed-missing-tensorflow", 0),
        ("Shuffle(elsewhere.py:1)", "seed-missing-tensorflow", 0),
    ],
)
def test_the_pipeline_stage_that_a_factor_fixes_is_named_before_the_consuming_line(
    stage: str, cause: str, line: int, tmp_path: Path
) -> None:
    (tmp_path / "data.py").write_text("made = data.shuffle(9)\nmade = made.map(draw, num_parallel_calls=2)\n")
    site = Frame(str(tmp_path / "train.py"), 5, "main", "for batch in made:")
    found = divergence("tf::IteratorGetNext", Kind.DATA)
    found = replace(found, op=Op(found.op, OpSemantics.TAKES_ELEMENT))
    detail = (
        f"The values that entered from outside the framework differ. They entered through Range(data.py:1) > {stage}."
    )
    found = replace(found, site=site, stack=(site,), detail=detail)

    tried = hypotheses(found, (), leftovers=(), frameworks=("tensorflow",))

    sites = next(one.sites for one in tried if one.cause == cause)
    assert [(Path(at.file).name, at.line) for at in sites] == [("data.py", line)] * (line > 0) + [("train.py", 5)]
    assert not line or sites[0].code.startswith("made = ")


@pytest.mark.parametrize("cause", ["thread-race", "torn-checkpoint"])
def test_the_text_gives_the_cause_of_a_race_unless_a_checkpoint_is_torn(cause: str) -> None:
    used, limit = (Frame("/p/train.py", line, "f", "code") for line in (9, 4))
    turns = Intervention.fix("thread-schedule")
    tried, likely = Hypothesis(cause, turns, (used,)), Hypothesis("clock", turns, (limit,))
    (found,) = with_likely_lines([tried], [likely])
    expected = ("clock", (limit, used)) if cause == "thread-race" else (cause, (used,))
    assert (found.cause, found.sites) == expected


@pytest.mark.parametrize(("is_in_library", "first"), [(True, "seed-missing-torch"), (False, "generator-unseeded")])
def test_a_generator_that_a_library_makes_does_not_explain_that_of_the_framework(
    is_in_library: bool, first: str
) -> None:
    site = SourceSite("/p/made.py", 5, 0, 5, 9, "main", "default_rng()")
    made = Source(
        "unseeded-generator", site, "main", "0", "MainThread", (1, 1), True, 0, (0, 0), ("1", "2"), is_in_library=is_in_library
    )  # fmt: skip
    assert hypotheses(divergence("aten::uniform_", Kind.RNG), [made], leftovers=())[0].cause == first
