"""What a resumed run lacks and can be given from outside: tried in further runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from determinism.comparison.origins import Entry, entry_of
from determinism.comparison.result import Comparison, Fix, Missing
from determinism.resume.compare import ResumedProcess, of_step
from determinism.trace.names import OpSemantics, semantics_of
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import LOAD_OP, Table
from determinism.types import Role

MOMENTS = ("batch", "iterator")
"""When generators are put back: before each batch that is asked for until the first step; before each iterator of a data loader."""
WITHOUT_LOADER = "record"
"""The moment where no data loader gives batches: once the last record before the first step was made, so after loading."""

_FROM_OUTSIDE = ("rng-torch", "rng-python", "rng-numpy")
_HASH_SEED = "PYTHONHASHSEED"
_ELSE = "own-data"
"""What is named beside generators that were put back, where the one or the other is so."""
_DEPARTS = "resume-first-departs"


@dataclass(frozen=True)
class ResumeTrial:
    """One way to run the program once more."""

    title: str
    generators: Mapping[str, object] | None = None
    """What the resumed run is asked to put back, without `from`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for all three runs."""
    prefix: Sequence[str] = ()
    """Words that go before each command."""


def last_before_steps(processes: Sequence[ResumedProcess]) -> dict[str, int]:
    """By the key of a process the last record of the resumed run before its first step; empty if data loaders give batches there."""
    found = {}
    for process in processes:
        if process.parts is None:
            continue
        part = process.parts[1]
        first = next((chunk for chunk in part.chunks() if chunk.rows), None)
        if first is not None and first.columns["role"][0] == Role.BATCH:
            return {}
        found[process.full.key] = part.start - 1
    return found


def generator_trials(missing: Sequence[Missing], last: Mapping[str, int]) -> list[ResumeTrial]:
    """How the generators that were not saved can be put back; none if something else lacks too, which only the program can save.

    Args:
        missing: What a checkpoint lacks.
        last: What `last_before_steps` gives.
    """
    names = [one.identifier for one in missing if one.identifier != _ELSE]
    if not names or any(name not in _FROM_OUTSIDE for name in names):
        return []
    if last:
        request = {"which": names, "moment": WITHOUT_LOADER, "after": dict(last)}
        return [ResumeTrial("generators put back before the first step", request)]
    texts = {"batch": "before the first batch", "iterator": "before the loader is iterated over"}
    return [
        ResumeTrial(f"generators put back {texts[moment]}", {"which": names, "moment": moment}) for moment in MOMENTS
    ]


def whole_trials(comparison: Comparison, run: Sequence[str]) -> list[ResumeTrial]:
    """What is worth a try where nothing is known to lack, or the runs depart before the checkpoint.

    Args:
        comparison: How the runs compare.
        run: The command that makes a program deterministic.
    """
    departs = any(trouble.identifier == _DEPARTS for trouble in comparison.trouble)
    if not departs and (comparison.missing or comparison.first_divergence is None):
        return []
    return [
        ResumeTrial("a fixed hash seed", environment={_HASH_SEED: "0"}),
        ResumeTrial("all settings and a seed", prefix=run),
    ]


def fix_of_trial(trial: ResumeTrial) -> Fix:
    """What a trial of whole runs stands for."""
    if trial.environment:
        return Fix("hash-seed", "A fixed hash seed for all runs", None, tuple(trial.environment.items()), verified=True)
    return Fix(
        "run", "All settings, and a seed for every generator", "determinism run --seed 1 -- COMMAND", verified=True
    )


def fixes_of(missing: Sequence[Missing], *, verified: bool) -> list[Fix]:
    """For each thing that lacks what to write.

    Args:
        missing: What a checkpoint lacks.
        verified: Whether the resumed run was equal to the full one once it was given from outside.
    """
    return [Fix(one.identifier, one.fix, _LINES.get(one.identifier), verified=verified) for one in missing]


def after_trials(missing: Sequence[Missing], outcomes: Sequence[bool | None]) -> list[Missing]:
    """What lacks by what came of putting generators back.

    If that made the runs equal, nothing else lacks. If it was in vain, a generator that the program had put back itself only followed
    something else, and is named no more where that is known; of one that was not it is said.

    Args:
        missing: What a checkpoint lacks.
        outcomes: Of each trial whether the runs were equal; None if it could not be made.
    """
    if True in outcomes:
        return [one for one in missing if one.identifier != _ELSE]
    if False not in outcomes:
        return list(missing)
    is_else = any(one.identifier == _ELSE for one in missing)
    return [
        one if one.identifier == _ELSE else replace(one, is_tried_in_vain=True)
        for one in missing
        if not (is_else and one.is_put_back)
    ]


_LINES = {
    "model": 'saved["model"] = model.state_dict()\nmodel.load_state_dict(saved["model"])',
    "optimizer": 'saved["optimizer"] = optimizer.state_dict()\noptimizer.load_state_dict(saved["optimizer"])',
    "scheduler": 'saved["scheduler"] = scheduler.state_dict()\nscheduler.load_state_dict(saved["scheduler"])',
    "scaler": 'saved["scaler"] = scaler.state_dict()\nscaler.load_state_dict(saved["scaler"])',
    "rng-torch": 'saved["rng-torch"] = torch.get_rng_state()\ntorch.set_rng_state(saved["rng-torch"])',
    "rng-python": 'saved["rng-python"] = random.getstate()\nrandom.setstate(saved["rng-python"])',
    "rng-numpy": 'saved["rng-numpy"] = numpy.random.get_state()\nnumpy.random.set_state(saved["rng-numpy"])',
    "number": 'saved["step"] = step\nstep = saved["step"]',
    "gradients": 'saved["gradients"] = [p.grad for p in model.parameters()]\n'
    'for p, gradient in zip(model.parameters(), saved["gradients"]):\n    p.grad = gradient',
    "training-mode": 'model.load_state_dict(saved["model"])\nmodel.train()',
    "optimizer-order": "parameters = [p for _, p in sorted(model.named_parameters())]\noptimizer = torch.optim.SGD(parameters, lr=0.1)",
    "carried-tensor": 'saved["hidden"] = hidden\nhidden = saved["hidden"]',
    "rng-key": 'saved["key"] = jax.random.key_data(key)\nkey = jax.random.wrap_key_data(saved["key"])',
    "own-data": 'saved["buffer"] = list(buffer)\nbuffer.extend(saved["buffer"])',
    "rng-generator": 'saved["generator"] = generator.get_state()\ngenerator.set_state(saved["generator"])',
    "sampler-position": "loader = determinism.state.resumable(loader)\n"
    'determinism.state.capture(loader=loader, ...).save("last.state")\n'
    'determinism.state.restore(determinism.state.load("last.state"), loader=loader, ...)',
}
"""The lines to add where the program saves, and where it loads."""


# Looks up in a whole process what it held, drew and was given.


def digests(process: ProcessTrace, *, upto_step: int, of_loads: bool = False) -> set[bytes]:
    """What records read or gave; or what was loaded from files, which does not mean that it was taken up."""
    ops = process.names.texts(Table.OP)
    load = ops.index(LOAD_OP) if LOAD_OP in ops else -1
    found: set[bytes] = set()
    for chunk in process.chunks():
        rows = int((chunk.columns["step"] <= upto_step).sum())
        is_wanted = (chunk.columns["op"] == load) == of_loads
        for place in ("outputs", "input_digests"):
            children = chunk.children[place]
            owner = np.repeat(np.arange(chunk.rows), np.diff(children.starts))
            wanted = children.columns["digest"][is_wanted[owner] & (owner < rows)]
            found.update(row.tobytes() for row in wanted)
        if rows < chunk.rows:
            break
    return found


def drawn_from(process: ProcessTrace, upto_step: int) -> list[bytes]:
    """The states of generators from which ops drew, in order."""
    found: list[bytes] = []
    for chunk in process.chunks():
        generators = chunk.children["generators"]
        owner = np.repeat(np.arange(chunk.rows), np.diff(generators.starts))
        is_wanted = (chunk.columns["role"] == Role.OP) & (chunk.columns["step"] <= upto_step)
        found += [row.tobytes() for row in generators.columns["digest"][is_wanted[owner]]]
    return found


def seeds_of_epoch(process: ProcessTrace, step: int) -> set[bytes]:
    """The states of generators from which a data loader drew its seeds in a step, before its first batch there."""
    chunk = of_step(process, step)
    if chunk is None:
        return set()
    ops = process.names.texts(Table.OP)
    seeds = [number for number, op in enumerate(ops) if OpSemantics.SEEDS_LOADER in semantics_of(op)]
    batches = np.flatnonzero(chunk.columns["role"] == Role.BATCH)
    rows = np.flatnonzero(np.isin(chunk.columns["op"], seeds))
    generators = chunk.children["generators"]
    return {
        generators.columns["digest"][at].tobytes()
        for row in (rows[rows < batches[0]] if len(batches) else rows)
        for at in range(int(generators.starts[row]), int(generators.starts[row + 1]))
    }


def batches_of(process: ProcessTrace) -> set[tuple[bytes, ...]]:
    """The digests of each batch that a data loader gave."""
    found = set()
    for chunk in process.chunks():
        for row in np.flatnonzero(chunk.columns["role"] == Role.BATCH):
            found.add(tuple(output.digest for output in entry_of(process, chunk, int(row)).outputs))
    return found


def gathered(process: ProcessTrace) -> set[bytes]:
    """The digests of what was taken out of other tensors, as samples are out of the data."""
    names = enumerate(process.names.texts(Table.OP))
    ops = [number for number, op in names if OpSemantics.GATHERS in semantics_of(op)]
    found: set[bytes] = set()
    for chunk in process.chunks():
        outputs = chunk.children["outputs"]
        owner = np.repeat(np.arange(chunk.rows), np.diff(outputs.starts))
        found.update(row.tobytes() for row in outputs.columns["digest"][np.isin(chunk.columns["op"], ops)[owner]])
    return found


def first_of(process: ProcessTrace, step: int, op: str, module: str | None) -> Entry | None:
    """The first record of an op in a step; None if there is none."""
    chunk = of_step(process, step)
    found = () if chunk is None else (entry_of(process, chunk, row) for row in range(chunk.rows))
    return next((one for one in found if one.op == op and one.module == module), None)


def read_by(process: ProcessTrace, record: Entry) -> set[bytes]:
    """The digests of what a record read, as far as they are known."""
    found = set()
    for one in record.reads:
        outputs = entry_of(process, *process.record(one.producer)).outputs if one.producer >= 0 else ()
        digest = outputs[one.output].digest if one.output < len(outputs) else one.digest
        found |= {digest} if digest is not None else set()
    return found


def made(record: Entry) -> list[bytes]:
    """The digests of what a record gave."""
    return [output.digest for output in record.outputs]


def added_to_gradients(process: ProcessTrace, records: Iterable[int]) -> bool:
    """Whether one of some additions of a backward gave something else than what it added: a gradient was there, and not zero.

    Args:
        process: The whole of the run.
        records: Numbers of the additions, and of others, which do not count.
    """
    for number in records:
        one = entry_of(process, *process.record(int(number)))
        if len(one.inputs) != 2 or not one.outputs:
            continue
        added = one.inputs[1]
        given = entry_of(process, *process.record(added.producer)).outputs if added.producer >= 0 else ()
        is_known = added.output < len(given) and given[added.output].layout == added.layout
        if is_known and given[added.output].digest != one.outputs[0].digest:
            return True
    return False


# What to write where a checkpoint lacks something.

PUT_BACK_TOO_EARLY = (
    "It was saved and put back, but was drawn from before the first step: making an iterator of a DataLoader draws, for instance. Put "
    "it back last, or use loader = determinism.state.resumable(loader) and determinism.state.restore(state, loader=loader)."
)

DRAWN_OTHERWISE = (
    "It was saved and put back, but drawn from another number of times: after the last step and before it was saved, or before the first "
    "step, where the full run does not draw; or something else differs that decides how often, such as what is in a replay buffer. Save it "
    "right after a step, and put it back last."
)

NOT_TAKEN_UP = {
    "model": (
        "It was saved, and loaded from the file, but the run did not go on with it: {}. See that load_state_dict is called, and drops "
        "nothing: with strict=False it passes over keys that do not fit, such as those with `_orig_mod.` or `module.` before them."
    ),
    "optimizer": (
        "It was saved, and loaded from the file, but the run did not go on with it: {}. Call optimizer.load_state_dict(...), on the "
        "optimizer that steps, after it was made."
    ),
}

FIXES = {
    "model": ("model.state_dict()", "model.load_state_dict(...)", "model=model"),
    "optimizer": ("optimizer.state_dict()", "optimizer.load_state_dict(...)", "optimizer=optimizer"),
    "scheduler": ("scheduler.state_dict()", "scheduler.load_state_dict(...)", "scheduler=scheduler"),
    "scaler": ("scaler.state_dict()", "scaler.load_state_dict(...)", "scaler=scaler"),
    "rng-torch": ("torch.get_rng_state()", "torch.set_rng_state(...)", ""),
    "rng-python": ("random.getstate()", "random.setstate(...)", ""),
    "rng-numpy": ("numpy.random.get_state()", "numpy.random.set_state(...)", ""),
    "rng-generator": ("generator.get_state()", "generator.set_state(...)", "generator=generator"),
    "sampler-position": ("", "", "loader=loader"),
    "number": ("", "", ""),
    "own-data": ("", "", ""),
    "training-mode": ("", "", ""),
    "optimizer-order": ("", "", ""),
    "carried-tensor": ("", "", "hidden=hidden"),
    "rng-key": ("jax.random.key_data(key)", "key = jax.random.wrap_key_data(...)", "key=key"),
    "gradients": ("[p.grad for p in model.parameters()]", "p.grad = ...", ""),
}
"""What is to be saved, what takes it back, and what `determinism.state` is given."""


CARRIED_ARRAYS = (
    "Save every array that goes on from step to step (parameters, the state of the optimizer, keys, running averages), and go on with them; or "
    "use determinism.state.capture(values=values) and determinism.state.restore(state, values=values)."
)
"""What to write for a tensor that is carried on, where the framework tells none from the others."""


def fix(identifier: str) -> str:
    """What to write so that it is saved."""
    save, load, part = FIXES[identifier]
    whole = f"determinism.state.capture({part}) and determinism.state.restore(state{', ' if part else ''}{part})"
    if identifier == "gradients":
        return (
            "The full run went on with gradients from before the checkpoint: it stopped between two steps of the optimizer, or does not clear "
            f"them in between. Save right after gradients are cleared, or save {save} too and put each back: {load}."
        )
    if identifier == "training-mode":
        return "Call model.train() after loading, and eval() on the parts that are not trained: no checkpoint holds the mode."
    if identifier == "optimizer-order":
        return (
            "A parameter took the state or the learning rate of another one: {}. An optimizer saves them by number, not by name: give it the "
            "parameters and groups in the order of the run that saved, such as that of model.named_parameters()."
        )
    if identifier == "own-data":
        return (
            "Save what the program keeps beside tensors: a replay buffer, a queue, a cache, a generator of NumPy or Python of its own. What "
            "departs was given something else from outside of the framework, and no global generator that lacks explains it."
        )
    if identifier == "carried-tensor":
        return (
            "Save the tensors that go on from step to step beside the model, such as the hidden state of a recurrent network, a memory or a "
            f"running average, and go on with them; or use {whole}."
        )
    if identifier == "number":
        return (
            "Save the numbers that the program keeps itself, such as counts of steps and epochs, a place in the data or the weight of a "
            "loss, without rounding them. The op that departs was given another one."
        )
    if identifier == "scheduler":
        return (
            f"Save {save} and load it with {load}, or use {whole}. If that is done, see that nothing sets or steps the learning rate anew "
            "after loading."
        )
    if identifier == "sampler-position":
        return (
            f"Save how far the epoch has come: loader = determinism.state.resumable(loader), with {whole}. See, too, that the "
            "sampler is given its epoch, that the data set lists its samples in the same order, and that a generator is saved with which the "
            "program draws them itself."
        )
    return f"Save {save} and load it with {load}, or use {whole}."
