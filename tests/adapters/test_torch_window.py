"""A window of steps is recorded op by op; before it the program runs with a ledger of its steps alone."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from determinism.comparison.runs import compare_runs
from determinism.errors import UsageError
from determinism.frameworks.torch import native_library
from determinism.frameworks.torch.modules import Held, HeldTensors, ModulePaths, _Known
from determinism.golden.ledger import ledger_of
from determinism.launch.record import record_program
from determinism.run_spec import RunSpec
from determinism.session.record import recording
from determinism.trace.ledger import first_parting, read_ledger
from determinism.trace.opening import open_trace
from determinism.types import Role, Verdict

STEPS = 6


def train(*, planted: int | None = None, first: int = 0, seed: float = 0.0) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    data = DataLoader(TensorDataset(torch.arange(STEPS * 16.0).view(STEPS * 4, 4)), batch_size=4)
    loss = torch.zeros(())
    for step, (batch,) in enumerate(data, first):
        extra = seed if step == planted else 0.0
        loss = (model(batch / 100 + extra) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.detach()


def recorded(folder: Path, program: Callable[[], torch.Tensor] = train, **spec: Any) -> torch.Tensor:
    with recording(RunSpec(folder, **spec)) as session:
        result = program()
        session.returned(result)
    return result


def ledger(folder: Path) -> Any:
    return read_ledger(folder / "processes" / "main")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_ops_are_recorded_from_the_start_of_the_window(tmp_path: Path) -> None:
    recorded(tmp_path / "a", window=3)

    (process,) = open_trace(tmp_path / "a").processes
    steps = [int(step) for chunk in process.chunks() for step in chunk.columns["step"]]
    roles = {int(role) for chunk in process.chunks() for role in chunk.columns["role"]}
    assert min(steps) == 3
    assert {Role.OP, Role.BATCH, Role.LOSS, Role.STATE} <= roles
    assert process.extent[1] == STEPS - 3


def test_the_ledger_has_every_step_and_equals_that_of_level_step(tmp_path: Path) -> None:
    recorded(tmp_path / "window", window=3)
    recorded(tmp_path / "step", level="step")

    assert len(ledger(tmp_path / "window")) == STEPS
    assert first_parting(ledger(tmp_path / "window"), ledger(tmp_path / "step")) is None
    assert {"batches", "loss", "gradients", "optimizer", "parameters", "buffers"} <= ledger(tmp_path / "step").digests(
        2
    ).keys()


def test_the_ledger_holds_the_digests_of_a_golden(tmp_path: Path) -> None:
    recorded(tmp_path / "step", level="step")

    (golden,) = ledger_of(open_trace(tmp_path / "step")).processes
    for place, row in enumerate(golden.rows):
        digests = ledger(tmp_path / "step").digests(place)
        for group in ("batches", "loss", "gradients", "optimizer", "parameters", "buffers"):
            assert row.digests[group] == digests[group].hex(), (place, group)


def test_recording_a_window_changes_no_bit(tmp_path: Path) -> None:
    plain = train()
    assert torch.equal(recorded(tmp_path / "a", window=3), plain)
    assert torch.equal(recorded(tmp_path / "b", window=3, first_step=3), plain)


def test_a_difference_in_the_window_is_found_with_its_op(tmp_path: Path) -> None:
    recorded(tmp_path / "a", lambda: train(planted=4), window=3)
    recorded(tmp_path / "b", lambda: train(planted=4, seed=0.5), window=3)

    parting = first_parting(ledger(tmp_path / "a"), ledger(tmp_path / "b"))
    assert parting is not None and parting.step == 4
    comparison = compare_runs([open_trace(tmp_path / "a"), open_trace(tmp_path / "b")])
    assert comparison.verdict is Verdict.DIFFERENT
    first = comparison.first_divergence
    assert first is not None and (first.step, first.op) == (4, "aten::add.Tensor")


def test_equal_windows_are_the_same(tmp_path: Path) -> None:
    recorded(tmp_path / "a", window=3)
    recorded(tmp_path / "b", window=3)

    assert compare_runs([open_trace(tmp_path / "a"), open_trace(tmp_path / "b")]).verdict is Verdict.SAME


def reset_after(step: int, seed: float) -> torch.Tensor:
    """Train with a seed that changes step 0; the weights are reset after the given step."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.ones(8, 4) + (seed if number == 0 else 0.0)).square().mean()
        loss.backward()
        optimizer.step()
        if number == step:
            model.load_state_dict({"weight": torch.ones(2, 4), "bias": torch.zeros(2)})
    return model.weight.detach()


def test_a_difference_before_the_window_is_seen_in_the_ledgers(tmp_path: Path) -> None:
    results = [
        recorded(tmp_path / name, partial(reset_after, 1, seed), window=3) for name, seed in (("a", 0.0), ("b", 0.5))
    ]
    assert torch.equal(*results)

    comparison = compare_runs([open_trace(tmp_path / "a"), open_trace(tmp_path / "b")])
    assert comparison.verdict is Verdict.DIFFERENT
    first = comparison.first_divergence
    assert first is not None and first.step == 0
    assert "Ops were recorded only from step 3 on" in first.detail


def test_windows_that_begin_at_different_steps_are_compared_where_they_overlap(tmp_path: Path) -> None:
    for name, window, seed in (("a", 2, 0.0), ("b", 4, 0.0), ("c", 4, 0.5)):
        recorded(tmp_path / name, partial(train, planted=5, seed=seed), window=window)
    first, later, other = (open_trace(tmp_path / name) for name in "abc")

    assert compare_runs([first, later]).verdict is Verdict.SAME
    divergence = compare_runs([first, other]).first_divergence
    assert divergence is not None and (divergence.step, divergence.op) == (5, "aten::add.Tensor")


def test_a_window_that_no_run_reaches_is_inconclusive_unless_the_ledgers_differ(tmp_path: Path) -> None:
    for name, seed in (("a", 0.0), ("b", 0.0), ("c", 0.5)):
        recorded(tmp_path / name, partial(reset_after, 1, seed), window=99)
    first, again, other = (open_trace(tmp_path / name) for name in "abc")

    comparison = compare_runs([first, again])
    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert "ended before step 99, from which its ops were to be recorded" in comparison.trouble[0].message
    assert compare_runs([first, other]).verdict is Verdict.DIFFERENT


def test_a_windowed_and_a_whole_run_are_inconclusive_without_two_ledgers(tmp_path: Path) -> None:
    recorded(tmp_path / "window", window=3)
    recorded(tmp_path / "whole")

    comparison = compare_runs([open_trace(tmp_path / "window"), open_trace(tmp_path / "whole")])
    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert "are missing in one run (--from-step)" in comparison.trouble[0].message


def test_steps_of_a_resumed_program_are_counted_from_its_first_step(tmp_path: Path) -> None:
    recorded(tmp_path / "a", lambda: train(first=100), first_step=100, window=102)

    found = ledger(tmp_path / "a")
    assert [found.step(place) for place in range(len(found))] == list(range(100, 100 + STEPS))
    (process,) = open_trace(tmp_path / "a").processes
    assert min(int(chunk.columns["step"].min()) for chunk in process.chunks()) == 102


STATE = {"optimizer", "parameters", "buffers"}


def steps_with_state(folder: Path) -> list[int]:
    rows = ledger(folder)
    return [place for place in range(len(rows)) if set(rows.digests(place)) >= STATE]


def test_state_every_limits_the_digests_of_the_state_but_not_of_gradients(tmp_path: Path) -> None:
    recorded(tmp_path / "a", level="step", state_every=4)
    recorded(tmp_path / "window", window=3, state_every=4)

    rows = ledger(tmp_path / "a")
    assert all("gradients" in rows.digests(place) for place in range(STEPS))
    assert steps_with_state(tmp_path / "a") == [0, 3]
    assert not STATE & set(rows.digests(1))
    assert first_parting(rows, ledger(tmp_path / "window")) is None


def test_without_gradients_the_state_is_digested_at_each_step(tmp_path: Path) -> None:
    def train_without() -> torch.Tensor:
        def clear(optimizer: Any, args: Any, keywords: Any) -> None:
            optimizer.zero_grad()

        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters())
        optimizer.register_step_post_hook(clear)
        for _ in range(STEPS):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        return model.weight.detach()

    recorded(tmp_path / "a", train_without, level="step", state_every=4)

    rows = ledger(tmp_path / "a")
    assert all("parameters" in rows.digests(place) or "gradients" in rows.digests(place) for place in range(STEPS))


def test_the_state_after_the_last_step_is_always_compared(tmp_path: Path) -> None:
    kept = []

    def train_and_change(extra: float) -> Callable[[], torch.Tensor]:
        def program() -> torch.Tensor:
            torch.manual_seed(0)
            model = nn.Linear(2, 1)
            kept.append(model)
            optimizer = torch.optim.SGD(model.parameters())
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            with torch.no_grad():
                model.weight.add_(extra)
            return torch.zeros(())

        return program

    for name, extra in (("a", 0.0), ("b", 0.0), ("c", 1e-3)):
        recorded(tmp_path / name, train_and_change(extra), level="step", state_every=8)
    first, again, other = (open_trace(tmp_path / name) for name in "abc")

    assert compare_runs([first, again]).verdict is Verdict.SAME
    assert compare_runs([first, other]).verdict is Verdict.DIFFERENT


def test_runs_with_different_values_of_state_every_are_refused(tmp_path: Path) -> None:
    recorded(tmp_path / "a", level="step", state_every=4)
    recorded(tmp_path / "b", level="step", state_every=8)

    with pytest.raises(UsageError, match="--state-every 4 and run 2 with --state-every 8"):
        compare_runs([open_trace(tmp_path / "a"), open_trace(tmp_path / "b")])


def test_a_window_that_the_program_never_reaches_leaves_a_ledger_and_no_ops(tmp_path: Path) -> None:
    recorded(tmp_path / "a", window=50)

    (process,) = open_trace(tmp_path / "a").processes
    assert len(ledger(tmp_path / "a")) == STEPS
    assert not any((chunk.columns["role"] == Role.OP).any() for chunk in process.chunks())


def many_parameters(folder: Path, *, odd: float = 0.0, at: int = 2) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(6)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with recording(RunSpec(folder, level="step")):
        for step in range(4):
            if step == at:
                with torch.no_grad():
                    model[3].weight[0, 0] += odd
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()


def test_many_tensors_have_one_record_per_kind_except_at_both_ends(tmp_path: Path) -> None:
    many_parameters(tmp_path / "a")

    (process,) = open_trace(tmp_path / "a").processes
    counts: dict[int, int] = {}
    for chunk in process.chunks():
        for step in chunk.columns["step"][chunk.columns["role"] == Role.HELD]:
            counts[int(step)] = counts.get(int(step), 0) + 1
    assert counts == {0: 36, 1: 3, 2: 3, 3: 3, 4: 36}


@pytest.mark.parametrize("at", [0, 2])
def test_a_difference_among_many_tensors_is_found(at: int, tmp_path: Path) -> None:
    many_parameters(tmp_path / "a")
    many_parameters(tmp_path / "b", odd=0.5, at=at)

    comparison = compare_runs([open_trace(tmp_path / "a"), open_trace(tmp_path / "b")])
    assert comparison.verdict is Verdict.DIFFERENT
    parting = first_parting(ledger(tmp_path / "a"), ledger(tmp_path / "b"))
    assert parting is not None and parting.step == at and "parameters" in parting.groups


def test_equal_runs_with_many_tensors_are_the_same(tmp_path: Path) -> None:
    many_parameters(tmp_path / "a")
    many_parameters(tmp_path / "b")

    assert compare_runs([open_trace(tmp_path / "a"), open_trace(tmp_path / "b")]).verdict is Verdict.SAME
    assert first_parting(ledger(tmp_path / "a"), ledger(tmp_path / "b")) is None


def test_changes_to_the_tensors_of_a_module_are_noticed() -> None:
    paths = ModulePaths(lambda name: 0)
    held = HeldTensors(paths)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    def known() -> list[tuple[str, int]]:
        return [(one.name, id(one.tensor)) for one in held.tensors() if one.kind in ("parameter", "buffer")]

    def expected() -> list[tuple[str, int]]:
        return [(name, id(tensor)) for name, tensor in (*model.named_parameters(), *model.named_buffers())]

    paths.enter(model, sys._getframe())
    paths.leave(model)
    assert known() == expected()
    model[0].weight = nn.Parameter(torch.zeros(2, 2))
    model[1].running_mean = torch.ones(2)
    assert known() == expected()
    model[0] = nn.Linear(2, 2, bias=False)
    assert known() == expected()
    model.append(nn.Linear(2, 2))
    model[2].weight = model[0].weight
    assert known() == expected()


def test_changes_to_optimizer_states_and_gradients_are_noticed() -> None:
    paths = ModulePaths(lambda name: 0)
    held = HeldTensors(paths)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    paths.enter(model, sys._getframe())
    paths.leave(model)
    held.add_optimizer(optimizer)

    def kinds() -> list[str]:
        return [f"{one.kind} {one.name}" for one in held.tensors()]

    def train() -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    parameters = ["parameter weight", "parameter bias"]
    assert kinds() == parameters
    train()
    with_gradients = ["parameter weight", "gradient weight", "parameter bias", "gradient bias"]
    state = [f"optimizer state momentum_buffer of {name}" for name in ("bias", "weight")]
    assert kinds() == with_gradients + state
    optimizer.zero_grad()
    assert kinds() == parameters + state
    assert len(held.gradients()) == 0
    train()
    assert [one.name for one in held.gradients()] == ["weight", "bias"]

    # As `load_state_dict` does: new tensors under the same names.
    for of_parameter in optimizer.state.values():
        of_parameter["momentum_buffer"] = of_parameter["momentum_buffer"].clone()
    kept = {id(one.tensor) for one in held.tensors()}
    assert all(id(of_parameter["momentum_buffer"]) in kept for of_parameter in optimizer.state.values())
    optimizer.state.clear()
    assert kinds() == with_gradients


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("by", ["python", pytest.param("native", marks=pytest.mark.native_recorder)])
def test_the_held_tensors_equal_those_of_a_fresh_search(seed: int, by: str) -> None:
    choose = random.Random(seed)
    paths = ModulePaths(lambda name: 0)
    held, optimizers = HeldTensors(paths, native_library.load().identities if by == "native" else None), []
    roots = [nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)) for _ in range(2)]

    def call() -> None:
        root = choose.choice(roots)
        paths.enter(root, sys._getframe())
        paths.leave(root)
        for layer in root:
            if isinstance(layer, nn.Linear) and choose.random() < 0.7:
                layer.weight.grad = torch.ones(2, 2)

    def replace_parameter() -> None:
        choose.choice(roots)[0].weight = nn.Parameter(torch.zeros(2, 2))

    def replace_buffer() -> None:
        choose.choice(roots)[1].running_mean = torch.ones(2)

    def rename() -> None:
        held_by_name = choose.choice(roots)[0]._parameters
        renamed = [(f"{name}_" if name != "weight" else name, tensor) for name, tensor in held_by_name.items()]
        held_by_name.clear()
        held_by_name.update(renamed)

    def add_layer() -> None:
        choose.choice(roots).append(nn.Linear(2, 2, bias=choose.random() < 0.5))

    def share() -> None:
        first, second = roots
        first[0].weight = second[0].weight

    def replace_root() -> None:
        roots[choose.randrange(2)] = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    def optimize() -> None:
        optimizers.append(torch.optim.Adam(choose.choice(roots).parameters()))
        held.add_optimizer(optimizers[-1])

    def add_group() -> None:
        for optimizer in optimizers:
            if choose.random() < 0.5:
                optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
            else:
                optimizer.param_groups[-1]["params"].append(nn.Parameter(torch.zeros(1)))

    def step() -> None:
        for optimizer in optimizers:
            optimizer.step()

    def forget() -> None:
        if optimizers:
            optimizers.pop(choose.randrange(len(optimizers)))

    def add_leaf() -> None:
        leaves.append(torch.ones(3, requires_grad=True))
        held.add_leaf(leaves[-1])

    def clear_gradients() -> None:
        for layer in choose.choice(roots):
            if isinstance(layer, nn.Linear):
                layer.weight.grad = None

    def names(found: Iterable[Held]) -> list[tuple[str, str, int]]:
        # Kept alive, so that no new tensor gets the id of a removed one.
        kept.extend(one.tensor for one in found)
        return [(one.kind, one.name, id(one.tensor)) for one in found]

    leaves: list[torch.Tensor] = []
    kept: list[torch.Tensor] = []
    changes = (
        call, replace_parameter, replace_buffer, rename, add_layer, share, replace_root, optimize, add_group, step, forget, add_leaf,
        clear_gradients,
    )  # fmt: skip
    num_held = 0
    for _ in range(150):
        choose.choice(changes)()
        anew = HeldTensors(paths)
        anew._optimizers, anew._leaves = held._optimizers, held._leaves
        known = names(held.tensors())
        assert known == names(anew.tensors())
        assert names(held.gradients()) == names(anew.gradients())
        num_held += len(known)
    assert num_held > 1000


def test_a_freed_tensor_is_not_recognized_by_its_id() -> None:
    # A new tensor may get its address, and hence its id.
    tensors = [torch.zeros(1), torch.zeros(1)]
    known = _Known([], [Held("parameter", str(number), tensor) for number, tensor in enumerate(tensors)])
    assert [*map(id, known.tensors() or ())] == [*map(id, tensors)]

    del tensors[0]
    assert known.tensors() is None


def test_a_module_that_overrides_named_parameters_is_asked() -> None:
    class Renamed(nn.Linear):
        def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
            return iter([("mine", self.weight)])

    paths = ModulePaths(lambda name: 0)
    held = HeldTensors(paths)
    model = Renamed(2, 2)
    paths.enter(model, sys._getframe())
    paths.leave(model)
    assert [one.name for one in held.tensors()] == ["mine"]


KILLED = """
import os, signal, sys, torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    if step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


def test_the_ledger_of_a_killed_program_is_whole(tmp_path: Path) -> None:
    spec = RunSpec(tmp_path / "a", level="step")
    result = record_program([sys.executable, "-c", KILLED], spec, log=tmp_path / "log")

    assert result.stopped_by == "SIGKILL"
    assert [ledger(tmp_path / "a").step(place) for place in range(5)] == [0, 1, 2, 3, 4]
    assert len(ledger(tmp_path / "a")) == 5
