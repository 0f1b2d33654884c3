"""What a checkpoint can lack, and how to save it: for `check-resume`, which tries it, and for lint, which reads it."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable
from typing import NamedTuple

from determinism.diagnose.parsed_module import Function, Module

PUT_BACK_TOO_EARLY = (
    "It was saved and restored, but was drawn from before the first step: creating the iterator of a DataLoader draws, for instance. "
    "Restore it last, or use loader = determinism.state.resumable(loader) and determinism.state.restore(state, loader=loader)."
)

DRAWN_OTHERWISE = (
    "It was saved and restored, but drawn from a different number of times: between the last step and saving, or before the first step, "
    "where the full run does not draw; or something else differs that decides how often, such as the content of a replay buffer. Save it "
    "right after a step, and restore it last."
)

NOT_TAKEN_UP = {
    "model": (
        "It was saved, and loaded from the file, but the run did not continue with it: {}. Check that load_state_dict is called and drops "
        "nothing: with strict=False it skips keys that do not match, such as those with `_orig_mod.` or `module.` before them."
    ),
    "optimizer": (
        "It was saved, and loaded from the file, but the run did not continue with it: {}. Call "
        "optimizer.load_state_dict(...), on the optimizer that steps, after it was created."
    ),
}


NOT_LOADED = (
    "The code that saves contains a call of {save}, but the resumed run did not continue with a result of it. Check that the call is reached "
    "and its result is in the file, and load it with {load}, or use {whole}."
)

_WAYS_TO_SAVE = {
    "rng-torch": r"\bget_rng_state\(",
    "rng-python": r"\bgetstate\(",
    "rng-numpy": r"\brandom\.get_state\(",
    "scheduler": r"sched\w*\.state_dict\(",
    "scaler": r"scaler\w*\.state_dict\(",
}
"""By part, a pattern of the code that saves it."""


class Part(NamedTuple):
    """Something that a checkpoint can lack."""

    title: str
    """Its name within a sentence."""
    lines: str
    """Lines to add where the program saves and where it loads."""
    advice: str = "Save {save} and load it with {load}, or use {whole}."
    save: str = ""
    """What to save."""
    load: str = ""
    """What restores it."""
    state: str = ""
    """What to pass to `determinism.state`."""


def _with_state_dict(name: str, title: str, advice: str = Part._field_defaults["advice"]) -> Part:
    lines = f'saved["{name}"] = {name}.state_dict()\n{name}.load_state_dict(saved["{name}"])'
    return Part(title, lines, advice, f"{name}.state_dict()", f"{name}.load_state_dict(...)", f"{name}={name}")


def _global_generator(name: str, library: str, get: str, put: str) -> Part:
    lines = f'saved["{name}"] = {get}()\n{put}(saved["{name}"])'
    return Part(f"the state of {library}'s generator", lines, save=f"{get}()", load=f"{put}(...)")


PARTS = {
    "model": _with_state_dict("model", "parameters or buffers of the model"),
    "optimizer": _with_state_dict("optimizer", "the state of the optimizer"),
    "scheduler": _with_state_dict(
        "scheduler",
        "the learning rate: the state of its scheduler",
        "Save {save} and load it with {load}, or use {whole}. If you do that already, check that nothing sets or steps the learning "
        "rate again after loading.",
    ),
    "scaler": _with_state_dict("scaler", "the state of the gradient scaler"),
    "rng-torch": _global_generator("rng-torch", "PyTorch", "torch.get_rng_state", "torch.set_rng_state"),
    "rng-python": _global_generator("rng-python", "Python", "random.getstate", "random.setstate"),
    "rng-numpy": _global_generator("rng-numpy", "NumPy", "numpy.random.get_state", "numpy.random.set_state"),
    "rng-generator": Part(
        "the state of a generator of the program's own",
        'saved["generator"] = generator.get_state()\ngenerator.set_state(saved["generator"])',
        save="generator.get_state()",
        load="generator.set_state(...)",
        state="generator=generator",
    ),
    "sampler-position": Part(
        "the position in the epoch: which samples were consumed",
        "loader = determinism.state.resumable(loader)\n"
        'determinism.state.capture(loader=loader, ...).save("last.state")\n'
        'determinism.state.restore(determinism.state.load("last.state"), loader=loader, ...)',
        "Save the position in the epoch: loader = determinism.state.resumable(loader), with {whole}. Check also that "
        "the sampler is given its epoch, that the data set lists its samples in the same order, and that any "
        "generator with which the program draws them itself is saved.",
        state="loader=loader",
    ),
    "number": Part(
        "a number that the program keeps itself",
        'saved["step"] = step\nstep = saved["step"]',
        "Save the numbers that the program keeps itself, such as counts of steps and epochs, a place in the data or the weight of a loss, "
        "without rounding them.",
    ),
    "own-data": Part(
        "something that the program keeps itself, besides tensors",
        'saved["buffer"] = list(buffer)\nbuffer.extend(saved["buffer"])',
        "Save what the program keeps besides tensors: a replay buffer, a queue, a cache, a generator of NumPy or Python of its own. The op "
        "that diverges got something different from outside the framework, and no missing global generator explains it.",
    ),
    "training-mode": Part(
        "the mode of the model: training or evaluation",
        'model.load_state_dict(saved["model"])\nmodel.train()',
        "Call model.train() after loading, and eval() on the parts that are not trained: checkpoints do not store "
        "the mode.",
    ),
    "optimizer-order": Part(
        "the order of the optimizer's parameters",
        "parameters = [p for _, p in sorted(model.named_parameters())]\noptimizer = torch.optim.SGD(parameters, lr=0.1)",
        "A parameter got the state or the learning rate of another one: {{}}. An optimizer saves them by number, not by name: give it the "
        "parameters and groups in the order of the run that saved, such as that of model.named_parameters().",
    ),
    "carried-tensor": Part(
        "a tensor that the program carries from step to step",
        'saved["hidden"] = hidden\nhidden = saved["hidden"]',
        "Save the tensors carried from step to step besides the model, such as the hidden state of a recurrent network, a memory or a "
        "running average, and continue with them; or use {whole}.",
        state="hidden=hidden",
    ),
    "rng-key": Part(
        "a random key that the program carries from step to step",
        'saved["key"] = jax.random.key_data(key)\nkey = jax.random.wrap_key_data(saved["key"])',
        save="jax.random.key_data(key)",
        load="key = jax.random.wrap_key_data(...)",
        state="key=key",
    ),
    "gradients": Part(
        "gradients accumulated since the last step",
        'saved["gradients"] = [p.grad for p in model.parameters()]\n'
        'for p, gradient in zip(model.parameters(), saved["gradients"]):\n    p.grad = gradient',
        "The full run continued with gradients from before the checkpoint: it stopped between two steps of the optimizer, or does not clear "
        "them in between. Save right after gradients are cleared, or save {save} too and restore each: {load}.",
        save="[p.grad for p in model.parameters()]",
        load="p.grad = ...",
    ),
}


CARRIED_ARRAYS = (
    "Save every array carried from step to step (parameters, the state of the optimizer, keys, running averages), and continue with them; or "
    "use determinism.state.capture(values=values) and determinism.state.restore(state, values=values)."
)
"""Advice for a carried tensor in frameworks that cannot distinguish it from other arrays."""

ONLY_READ = (
    "Nothing that was trained or saved differs: only numbers that the program reads do, such as a running loss for its log. If they matter, "
    "save this tensor and continue with it, or save where the program sets it back to zero; with the Trainer of Hugging Face, at a multiple "
    "of logging_steps."
)
"""Advice for a carried tensor that only numbers are read from."""


def fix(identifier: str) -> str:
    """Say what to write to save a part."""
    return _filled(PARTS[identifier].advice, PARTS[identifier])


def fix_of_loading(identifier: str) -> str:
    """Say what to write to load a part that is saved."""
    return _filled(NOT_LOADED, PARTS[identifier])


def _filled(advice: str, part: Part) -> str:
    whole = f"determinism.state.capture({part.state}) and determinism.state.restore(state{', ' if part.state else ''}{part.state})"
    return advice.format(save=part.save, load=part.load, whole=whole)


# Names the callback for the trainer that a program uses.

_GENERATORS = frozenset({"rng-torch", "rng-python", "rng-numpy"})


class _Callback(NamedTuple):
    """A callback that puts the generators into the checkpoints of a trainer."""

    packages: tuple[str, ...]
    module: str
    on_position: str
    """What to say of it if another batch arrived."""


_CALLBACKS = (
    _Callback(
        ("lightning", "pytorch_lightning"),
        "determinism.integrations.lightning",
        "With the {}, the resumable loader is all that you need.",
    ),
    # This trainer skips the batches before the checkpoint itself.
    _Callback(
        ("transformers",),
        "determinism.integrations.hugging_face",
        "If the data set or the collator draws random numbers, as for an augmentation, give the Trainer the {} instead.",
    ),
)
_MOST_FILES = 64


def callback_advice(identifier: str, files: Iterable[str]) -> str:
    """Name our callback if it saves a part for the trainer that a program uses; empty if there is none, or it is used already.

    Args:
        identifier: The part.
        files: The files of the program, the rest of which may be unknown.
    """
    if identifier not in _GENERATORS and identifier != "sampler-position":
        return ""
    imported: set[str] = set()
    has_trainer = False
    for file in itertools.islice(files, _MOST_FILES):
        module = Module.read(file)
        for node in () if module is None else module.nodes:
            if isinstance(node, ast.Import):
                imported.update(one.name for one in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module or "")
            elif isinstance(node, ast.Call):
                has_trainer |= ast.unparse(node.func).endswith("Trainer")
    for callback in _CALLBACKS if has_trainer else ():
        if not any(name.partition(".")[0] in callback.packages for name in imported):
            continue
        if any(name.startswith("determinism.integrations") for name in imported):
            return ""
        name = f"DeterminismCallback of {callback.module}"
        if identifier in _GENERATORS:
            return f" Or give the Trainer the {name}, which saves and restores the generators."
        return f" {callback.on_position.format(name)}"
    return ""


def is_saved_by(identifier: str, file: str, line: int) -> bool:
    """Whether the function around a line that saves, or else its file, also saves the state of a part; False if it cannot be read."""
    written = _WAYS_TO_SAVE.get(identifier)
    if written is None:
        return False
    module = Module.read(file)
    if module is None:
        return False
    around = [
        node for node in module.nodes if isinstance(node, Function) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    code = ast.unparse(max(around, key=lambda node: node.lineno) if around else module.tree)
    return re.search(written, code) is not None
