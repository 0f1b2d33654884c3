"""What to write where a checkpoint lacks something."""

from __future__ import annotations

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
    "gradients": ("[p.grad for p in model.parameters()]", "p.grad = ...", ""),
}
"""What is to be saved, what takes it back, and what `determinism.state` is given."""


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
