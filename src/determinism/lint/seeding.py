"""Rules on random numbers: no seed before the first draw, a seed that comes too late or differs between runs, generators without a
seed, a JAX key that is used again, and loader workers that all draw the same.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from determinism.diagnose.experiments import SEEDED_LIBRARIES
from determinism.diagnose.parsed_module import (
    Function,
    Module,
    given_to,
    is_none,
    last_part,
    parameters,
    place_of,
    within,
)
from determinism.diagnose.program_flow import GENERATORS, SEEDS, Found
from determinism.lint.execution import (
    CUDA_SEEDS,
    SEEDED_IN_WORKERS,
    Event,
    Execution,
    asks_for_main,
    becomes_seed,
    drawn_library,
    draws_by_keras,
    has_workers,
    is_loader,
    is_number,
    is_program,
    seeded_libraries,
)
from determinism.lint.findings import Finding, Fix, Severity, Text

_VARYING = frozenset({"clock", "entropy", "process-id", "hash"})
_TRAINS = frozenset(
    {"backward", "step", "fit", "minimize", "apply_gradients", "train_on_batch", "value_and_grad", "grad", "train"}
)
"""Calls that show that a program trains."""


def of_order(text: Text) -> Iterator[Finding]:
    """Yield draws without a seed, and seeds after a draw; only for files that are run, since a library is seeded by its program."""
    if not is_program(text.module):
        return
    execution = Execution(text.module)
    events = execution.events()
    for library, cause in SEEDED_LIBRARIES.items():
        own = [event for event in events if event.library == library and not _is_seeded_on_gpu(text, event)]
        draw = next((event for event in own if not event.is_seed and not _is_printed(text, event.node)), None)
        trains = text.calls & _TRAINS
        if draw is None and trains and not _seedings(text, library):
            draw = _drawn_anywhere(text, library, execution)
        seed = next((event for event in own if event.is_seed), None)
        if draw is None or (not trains and _is_demonstration(text)):
            continue
        if seed is None:
            if not _seeds_elsewhere(text, library) and not _has_own_generators(text, draw):
                # Keras has backends other than TensorFlow.
                title = "Keras" if draws_by_keras(text.module, draw.node) else draw.title
                message = f"{title} draws here, and the program never seeds it."
                severity = Severity.DIFFERS
                if _is_overwritten(text, draw):
                    severity = Severity.MAY_DIFFER
                    message = f"{message} Runs may differ, unless all that it draws is overwritten."
                yield text.finding(cause, severity, message, draw.node)
        elif own.index(draw) < own.index(seed) and not _has_own_generators(text, draw):
            yield _too_late(text, draw, seed)


def of_keras(text: Text) -> Iterator[Finding]:
    """Yield Keras weights and dropout where TensorFlow is seeded but Python is not: Keras 3 takes their seeds from Python's generator."""
    if not is_program(text.module) or not _seedings(text, "tensorflow") or _seedings(text, "random"):
        return
    calls = (node for node in text.module.nodes if isinstance(node, ast.Call))
    draw = next((call for call in calls if draws_by_keras(text.module, call)), None)
    if draw is not None and not _is_printed(text, draw) and not _seeds_elsewhere(text, "random"):
        message = (
            "Keras takes the seed of these random numbers from Python's generator, which nothing seeds: tf.random.set_seed does not. "
            "Use keras.utils.set_random_seed."
        )
        yield text.finding(SEEDED_LIBRARIES["random"], Severity.DIFFERS, message, draw)


def _is_seeded_on_gpu(text: Text, event: Event) -> bool:
    """Whether a draw is made on a GPU, and the file seeds the generators of GPUs."""
    device = next((ast.unparse(one.value) for one in event.node.keywords if one.arg == "device"), "cpu")
    return "cpu" not in device and bool(text.names & CUDA_SEEDS)


def _is_demonstration(text: Text) -> bool:
    """Whether all that a module runs itself is a `__main__` part that tries out its classes and functions."""
    body = text.module.tree.body
    parts = [one for one in body if isinstance(one, ast.If) and asks_for_main(one.test)]
    has_definitions = any(isinstance(one, ast.ClassDef | Function) for one in body)
    has_classes = any(isinstance(one, ast.ClassDef) for one in body)
    calls_functions = all(
        isinstance(one, ast.Expr)
        and isinstance(one.value, ast.Call)
        and last_part(one.value.func) in text.program.functions
        # A file of models often ends with a call of `test()`, which prints the shape of an output.
        and not (has_classes and last_part(one.value.func).startswith("test") and not given_to(one.value))
        for part in parts
        for one in part.body
    )
    return bool(parts) and has_definitions and not calls_functions


_OVERWRITES = frozenset({"constant_", "zeros_", "ones_", "eye_", "dirac_"})
"""Functions of `torch.nn.init` that draw nothing."""


def _is_overwritten(text: Text, draw: Event) -> bool:
    """Whether a draw only initializes the weights of layers, and the file gives weights other values."""
    if not text.module.dotted(draw.node.func).startswith("torch.nn."):
        return False
    is_init = any(name.startswith("torch.nn.init.") and last in _OVERWRITES for name, last in _split(text.names))
    return is_init or "load_state_dict" in text.calls


def _split(names: frozenset[str]) -> Iterator[tuple[str, str]]:
    return ((name, name.rpartition(".")[2]) for name in names)


def _seedings(text: Text, library: str) -> list[ast.Call]:
    calls = (node for node in text.module.nodes if isinstance(node, ast.Call))
    return [call for call in calls if library in seeded_libraries(text.module, call) and not _is_own(text, call)]


def _is_own(text: Text, call: ast.Call) -> bool:
    """Whether a function of the file itself is called, whatever its name: its body shows what it seeds."""
    name = call.func.id if isinstance(call.func, ast.Name) else None
    return any(owner is text.module for owner, _ in text.program.functions.get(name or "", ()))


def _drawn_anywhere(text: Text, library: str, execution: Execution) -> Event | None:
    """Return the first draw in a method that the walk did not reach, such as a model's forward."""
    for node in text.module.nodes:
        if isinstance(node, ast.Call) and drawn_library(text.module, node) == library:
            draw = Event(library, False, node)
            is_seeded = _is_seeded_on_gpu(text, draw) or _is_seeded_in_worker(text, draw, execution)
            if not _is_printed(text, node) and not is_seeded:
                return draw
    return None


def _is_seeded_in_worker(text: Text, draw: Event, execution: Execution) -> bool:
    """Whether a draw is made for the items of a data set, and all loaders have workers, whose generators PyTorch seeds."""
    calls = (node for node in text.module.nodes if isinstance(node, ast.Call))
    loaders = [call for call in calls if is_loader(text.module, call)]
    if draw.library not in SEEDED_IN_WORKERS or not loaders or not all(has_workers(call) for call in loaders):
        return False
    scope = text.module.scope_of(draw.node)
    # A transform is an object that the data set calls.
    return scope in execution.in_workers or (isinstance(scope, Function) and scope.name == "__call__")


def _is_printed(text: Text, node: ast.AST) -> bool:
    """Whether a draw is only displayed."""
    return any(
        isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "print"
        for one in text.module.within_statement(node)
    )


def _has_own_generators(text: Text, draw: Event) -> bool:
    """Whether layers get their first values from a generator passed to `torch.nn.init`."""
    return text.module.dotted(draw.node.func).startswith("torch.nn.") and any(
        isinstance(node, ast.Call)
        and text.module.dotted(node.func).startswith("torch.nn.init.")
        and any(one.arg == "generator" for one in node.keywords)
        for node in text.module.nodes
    )


def _too_late(text: Text, draw: Event, seed: Event) -> Finding:
    if becomes_seed(text.module, draw.node):
        message = (
            f"The seed is drawn from {draw.title}'s generator, which nothing has seeded yet, so it differs in each run."
        )
        return text.finding("seed-varies", Severity.DIFFERS, message, draw.node)
    message = f"{draw.title} is seeded here, after line {draw.node.lineno} has drawn from its generator"
    purpose = (
        "warm up" if _is_without_gradients(text, draw.node) else "test" if _stays_inside(text, draw.node) else None
    )
    if purpose is not None:
        message = f"{message}, perhaps only to {purpose}: runs may differ. Seed before the first draw."
        return text.finding("seed-too-late", Severity.MAY_DIFFER, message, seed.node)
    return text.finding("seed-too-late", Severity.DIFFERS, f"{message}. Seed before the first draw.", seed.node)


def _stays_inside(text: Text, node: ast.AST) -> bool:
    """Whether a function only assigns what it draws to names and makes assertions about it."""
    function = next((one for one in text.module.outwards(node) if isinstance(one, Function)), None)
    return function is not None and all(
        isinstance(one, ast.Assert) or (isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name))
        for one in function.body
        if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
    )


def _is_without_gradients(text: Text, node: ast.AST) -> bool:
    """Whether a draw is used only where gradients are disabled, so that nothing is trained with it directly."""
    expressions: list[ast.expr] = []
    for at in text.module.outwards(node):
        expressions += [one.context_expr for one in at.items] if isinstance(at, ast.With) else []
        expressions += at.decorator_list if isinstance(at, Function) else []
    return any(word in ast.unparse(one) for one in expressions for word in ("no_grad", "inference_mode"))


def _seeds_elsewhere(text: Text, library: str) -> bool:
    """Whether something not followed, such as a function passed to a launcher or one in a module next to the file, may seed a library."""
    return any(
        (isinstance(node, ast.Call) and len(seeded_libraries(text.module, node)) > 1 and not _is_own(text, node))
        or (isinstance(node, ast.Attribute) and _is_handed_on(text, node))
        for node in text.module.nodes
    ) or any(_names_seeding(module, library) for module in _imported_beside(text.module))


def _imported_beside(module: Module) -> Iterator[Module]:
    """Yield the modules that a file imports from its folder, and from packages in its folder."""
    folder = Path(module.file).parent
    files = {
        folder.joinpath(*parts[:count]).with_suffix(".py")
        for parts in (name.split(".") for name in module.imports.values())
        for count in range(1, len(parts) + 1)
        if all(parts[:count])
    }
    for file in sorted(files):
        found = Module.read(str(file))
        if found is not None:
            yield found


def _names_seeding(module: Module, library: str) -> bool:
    """Whether a module names a function that seeds a library, to call it or to pass it on."""
    return any(isinstance(node, ast.Attribute) and module.dotted(node) in SEEDS[library] for node in module.nodes)


def _is_handed_on(text: Text, node: ast.Attribute) -> bool:
    """Whether a function that seeds is passed on, to be called elsewhere."""
    parent = text.module.parents.get(node)
    is_called = isinstance(parent, ast.Call) and parent.func is node
    return not is_called and any(text.module.dotted(node) in calls for calls in SEEDS.values())


def of_values(text: Text) -> Iterator[Finding]:
    """Yield seeds taken from the clock, the process or random bytes, and generators made without a seed."""
    for node in text.module.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = text.module.dotted(node.func)
        given = given_to(node)
        is_generator = name in GENERATORS or name.endswith((".PRNGKey", ".nnx.Rngs")) or name == "jax.random.key"
        if is_generator and (not given or is_none(given[0])) and name.startswith(("numpy.", "random.")):
            if name != "numpy.random.Generator" and not _is_harmless(text, node):
                fix = _seed_argument(text, node) if not given and _runs_once(text, node) else None
                message = f"{name} is created without a seed, so it starts from random bytes of the operating system."
                again = _replaced_at(text, node)
                if again is not None:
                    message = f"{message} Runs may differ, unless line {again} always replaces it by one with a seed."
                severity = Severity.DIFFERS if again is None else Severity.MAY_DIFFER
                yield text.finding("generator-unseeded", severity, message, node, fix)
            continue
        if (
            name in ("random.seed", "numpy.random.seed", "torch.seed", "torch.cuda.seed", "torch.random.seed")
            and not given
        ):
            message = f"{name}() without a value seeds from the operating system, differently in each run."
            again = _seeded_again(text, node)
            if again is not None:
                message = f"{message} Runs may differ by what is drawn before line {again} seeds it again."
            severity = Severity.DIFFERS if again is None else Severity.MAY_DIFFER
            yield text.finding("generator-unseeded", severity, message, node)
            continue
        if name == "tensorflow.random.Generator.from_non_deterministic_state":
            message = "The generator takes its seed from the operating system. Use from_seed."
            yield text.finding("generator-unseeded", Severity.DIFFERS, message, node)
            continue
        if last_part(node.func) == "seed" and not given and _is_torch_generator(text, node):
            message = "Generator.seed() takes a seed from the operating system. Use manual_seed."
            yield text.finding("generator-unseeded", Severity.DIFFERS, message, node)
            continue
        if name in GENERATORS and isinstance(given[0], ast.Name):
            found = _unset_parameter(text, node, given[0])
            if found is not None:
                yield found
                continue
        if last_part(node.func) == "add_argument":
            # The default of an option named like a seed is the seed of every run that does not pass one.
            named = any(isinstance(one, ast.Constant) and "seed" in str(one.value).lower() for one in node.args)
            given = [one.value for one in node.keywords if one.arg == "default" and named]
        if given and (is_generator or _is_seeding(text, node) or last_part(node.func) == "add_argument"):
            origin = text.program.back_from([(text.module, one) for one in given])
            if origin is not None and origin.source in _VARYING and not _is_hash_of_numbers(text, origin):
                what = "this line" if origin.line == node.lineno else f"line {origin.line}"
                is_default = last_part(node.func) == "add_argument"
                subject = "The default seed" if is_default else "The seed"
                message = f"{subject} comes from a value that differs in each run ({origin.source}, at {what})."
                if is_alternative := not is_default and _is_alternative(text, origin):
                    message = f"{message[:-1]}, if the condition there holds."
                severity = Severity.MAY_DIFFER if is_default or is_alternative else Severity.DIFFERS
                yield text.finding("seed-varies", severity, message, node)


def _is_alternative(text: Text, origin: Found) -> bool:
    """Whether a value is used only under a condition, such as that the user gave no seed: `seed or time.time()`."""
    module = text.module if origin.file == text.module.file else Module.read(origin.file)
    places = {place_of(call) for _, call in origin.beside}
    calls = () if module is None else (one for one in module.nodes if isinstance(one, ast.Call))
    used = next((one for one in calls if place_of(one) in places), None)
    if module is None or used is None:
        return False
    for inner, outer in itertools.pairwise(module.outwards(used)):
        if isinstance(outer, Function | ast.Lambda):
            return False
        if isinstance(outer, ast.BoolOp) and inner is not outer.values[0]:
            return True
        if isinstance(outer, ast.If | ast.IfExp) and inner is not outer.test:
            if not asks_for_main(outer.test):
                return True
    return False


_ENVIRONMENTS = frozenset({"gym", "gymnasium"})


def of_environments(text: Text) -> Iterator[Finding]:
    """Yield reinforcement-learning environments that start from random bytes, because no reset is given a seed."""
    if not text.module.packages & _ENVIRONMENTS or not is_program(text.module):
        return
    calls = [node for node in text.module.nodes if isinstance(node, ast.Call)]
    resets = [call for call in calls if last_part(call.func) == "reset" and isinstance(call.func, ast.Attribute)]
    # `environment.seed(0)` and `environment.action_space.seed(0)`, but not `numpy.random.seed(0)`.
    seeds = any(
        last_part(call.func) == "seed" and text.module.dotted(call.func).partition(".")[0] not in text.module.packages
        for call in calls
        if given_to(call)
    )
    if (
        seeds
        or any(call.args or call.keywords for call in resets)
        or any(_passes_on_seed(text, call) for call in calls)
    ):
        return
    for call in resets:
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        values = text.program.values_of(text.module, owner, as_whole=True) if isinstance(owner, ast.Name) else ()
        if any(_makes_environment(text, module, one) for module, one in values):
            message = "The environment is never given a seed, so it starts from random bytes of the operating system. Use reset(seed=...)."
            yield text.finding("generator-unseeded", Severity.DIFFERS, message, call)
            return


_SEEDS_SPACES = frozenset({"stable_baselines3", "sb3_contrib", "tianshou", "torchrl"})
"""Libraries that seed the spaces of an environment with a seed that they are given."""


def of_spaces(text: Text) -> Iterator[Finding]:
    """Yield samples of an environment's space that starts from random bytes: no seed of `reset` reaches it."""
    imported = text.module.packages
    if not imported & _ENVIRONMENTS or imported & _SEEDS_SPACES or not is_program(text.module):
        return
    calls = [node for node in text.module.nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    spaces = [
        (call, call.func.value) for call in calls if isinstance(call.func, ast.Attribute) and _is_space(call.func.value)
    ]
    if any(last_part(call.func) == "seed" for call, _ in spaces) or any(
        _passes_on_seed(text, node) for node in text.module.nodes if isinstance(node, ast.Call)
    ):
        return
    for call, space in spaces:
        owner = space.value if isinstance(space, ast.Attribute) else None
        if last_part(call.func) != "sample" or not isinstance(owner, ast.Name):
            continue
        values = text.program.values_of(text.module, owner, as_whole=True)
        if any(_makes_environment(text, module, one) for module, one in values):
            name = ast.unparse(space)
            message = (
                f"The space is never given a seed, and that of reset() does not reach it, so its samples start from random bytes of the "
                f"operating system. Call {name}.seed(...)."
            )
            yield text.finding("generator-unseeded", Severity.DIFFERS, message, call)
            return


def of_samplers(text: Text) -> Iterator[Finding]:
    """Yield studies of Optuna whose sampler starts from random bytes."""
    calls = [node for node in text.module.nodes if isinstance(node, ast.Call)]
    if "optuna" not in text.module.packages or not any(last_part(call.func) in ("optimize", "ask") for call in calls):
        return
    # Trials whose values are given need no sampler.
    is_given = any(last_part(call.func) == "enqueue_trial" for call in calls)
    attributes = (node for node in text.module.nodes if isinstance(node, ast.Attribute))
    is_replaced = any(one.attr == "sampler" and isinstance(one.ctx, ast.Store) for one in attributes)
    for call in calls:
        name = text.module.dotted(call.func)
        is_study = name in ("optuna.create_study", "optuna.study.create_study") and not is_replaced
        is_sampler = name.startswith("optuna.samplers.") and name.endswith("Sampler")
        option, given = ("sampler", "optuna.samplers.TPESampler(seed=...)") if is_study else ("seed", "...")
        is_set = any(
            one.arg in (None, "base_sampler") or (one.arg == option and not is_none(one.value)) for one in call.keywords
        )
        # `RandomSampler` takes its seed by position.
        if (is_study or is_sampler) and not is_set and not call.args:
            message = "Optuna's sampler starts from random bytes of the operating system, so it suggests other values in each run."
            severity = Severity.MAY_DIFFER if is_given else Severity.DIFFERS
            yield text.finding("generator-unseeded", severity, f"{message} Pass {option}={given}.", call)


def _is_space(node: ast.expr) -> bool:
    """Whether an expression is called the space of an environment, such as `env.action_space`."""
    return last_part(node).endswith(("action_space", "observation_space"))


def _passes_on_seed(text: Text, call: ast.Call) -> bool:
    """Whether a function of another file that makes an environment is given a seed, and may set it."""
    is_own = isinstance(call.func, ast.Name) and call.func.id in text.program.functions
    is_of_library = text.module.dotted(call.func).partition(".")[0] in _ENVIRONMENTS
    if is_own or is_of_library or "env" not in last_part(call.func).lower():
        return False
    given = [*call.args, *(one.value for one in call.keywords)]
    names = [one.arg or "" for one in call.keywords]
    names += [
        last_part(node) for value in given for node in ast.walk(value) if isinstance(node, ast.Name | ast.Attribute)
    ]
    return any("seed" in name.lower() for name in names)


def _makes_environment(text: Text, module: Module, value: ast.AST) -> bool:
    """Whether a value is an environment created there, or by a `lambda` passed for that purpose."""
    if not isinstance(value, ast.Call):
        return False
    made = [value]
    if isinstance(value.func, ast.Name):
        functions = text.program.values_of(module, value.func, as_whole=True)
        made += [one.body for _, one in functions if isinstance(one, ast.Lambda) and isinstance(one.body, ast.Call)]
    return any(module.dotted(call.func).partition(".")[0] in _ENVIRONMENTS for call in made)


def _seeded_again(text: Text, node: ast.Call) -> int | None:
    """Return the later line of the same function that gives a generator seeded by the operating system a fixed seed."""
    (library, *_) = text.module.dotted(node.func).split(".")
    scope = text.module.scope_of(node)
    later = (
        call.lineno
        for call in _seedings(text, library)
        if call.lineno > node.lineno and text.module.scope_of(call) is scope
        if any(isinstance(one, ast.Constant) and one.value is not None for one in given_to(call))
    )
    return min(later, default=None)


def _is_harmless(text: Text, node: ast.Call) -> bool:
    """Whether a generator without a seed is given one later, or its draws are only displayed."""
    holder = text.module.parents.get(node)
    if not isinstance(holder, ast.Assign) or len(holder.targets) != 1:
        return False
    target = holder.targets[0]
    name = last_part(target)
    uses = [
        one
        for one in text.module.nodes
        if isinstance(one, ast.Name | ast.Attribute) and last_part(one) == name and isinstance(one.ctx, ast.Load)
    ]
    calls = [text.module.parents.get(one) for one in uses]
    if any(isinstance(one, ast.Attribute) and one.attr in ("seed", "setstate") for one in calls):
        return True
    return bool(uses) and all(_is_only_shown(text, one) for one in uses)


def _replaced_at(text: Text, node: ast.Call) -> int | None:
    """Return the line that assigns a generator with a seed to the same attribute; None if there is none."""
    holder = text.module.parents.get(node)
    if not isinstance(holder, ast.Assign) or not isinstance(holder.targets[0], ast.Attribute):
        return None
    for one in text.module.nodes:
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Call) and one is not holder:
            is_seeded = text.module.dotted(one.value.func) in GENERATORS and any(map(_is_value, given_to(one.value)))
            if is_seeded and ast.unparse(one.targets[0]) == ast.unparse(holder.targets[0]):
                return one.lineno
    return None


def _is_value(node: ast.expr) -> bool:
    return not is_none(node)


def _is_only_shown(text: Text, use: ast.AST) -> bool:
    """Whether the result of an expression is only printed, directly or through the name it is assigned to."""
    if _is_printed(text, use):
        return True
    at = text.module.statement_of(use)
    if not isinstance(at, ast.Assign) or len(at.targets) != 1 or not isinstance(at.targets[0], ast.Name):
        return False
    scope, name = text.module.scope_of(at), at.targets[0].id
    later = [
        one for one in ast.walk(scope) if isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Load)
    ]
    return bool(later) and all(_is_printed(text, one) for one in later)


def _is_hash_of_numbers(text: Text, origin: Found) -> bool:
    """Whether a seed comes from a hash that is the same in each run."""
    hashes = [
        one
        for one in text.module.nodes
        if isinstance(one, ast.Call)
        and one.lineno == origin.line
        and text.module.dotted(one.func) == "hash"
        and one.args
    ]
    return origin.source == "hash" and bool(hashes) and all(is_number(text.module, one.args[0]) for one in hashes)


def _is_seeding(text: Text, node: ast.Call) -> bool:
    return bool(seeded_libraries(text.module, node)) or last_part(node.func) in (
        "manual_seed",
        "seed_all",
        "manual_seed_all",
    )


def _is_torch_generator(text: Text, node: ast.Call) -> bool:
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    if not isinstance(owner, ast.Name | ast.Attribute):
        return False
    values = (
        list(text.program.values_of(text.module, owner))
        if isinstance(owner, ast.Name)
        else text.program.attributes.get(owner.attr, [])
    )
    return any(
        isinstance(value, ast.Call) and text.module.dotted(value.func) == "torch.Generator" for _, value in values
    )


def _unset_parameter(text: Text, node: ast.Call, name: ast.Name) -> Finding | None:
    """Return a generator whose seed is a parameter with default None, where a call in the file omits it."""
    function = text.module.scope_of(node)
    if not isinstance(function, Function):
        return None
    names = [*function.args.posonlyargs, *function.args.args]
    defaults = dict(zip([one.arg for one in reversed(names)], reversed(function.args.defaults), strict=False))
    defaults |= {
        one.arg: value for one, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if value
    }
    default = defaults.get(name.id)
    if default is None or not is_none(default) or text.module.bound(function, name.id):
        return None
    owner = text.module.parents.get(function)
    called = owner.name if function.name == "__init__" and isinstance(owner, ast.ClassDef) else function.name
    calls = text.program.callers.get(called, [])
    position = [one.arg for one in names].index(name.id) if name.id in [one.arg for one in names] else None
    if isinstance(owner, ast.ClassDef) and position is not None:
        position -= 1
    for _, call in calls:
        by_keyword = any(one.arg in (name.id, None) for one in call.keywords)
        by_place = position is not None and len(call.args) > position
        if not by_keyword and not by_place and not any(isinstance(one, ast.Starred) for one in call.args):
            message = f"`{name.id}` is None by default, and line {call.lineno} does not pass it: the generator starts from random bytes."
            return text.finding("generator-unseeded", Severity.DIFFERS, message, node)
    return None


def _runs_once(text: Text, node: ast.AST) -> bool:
    """Whether a line runs only once; given a constant seed, each iteration of a loop and each call of a function would draw the same."""
    return isinstance(text.module.scope_of(node), ast.Module) and not text.module.loops_of(node)


def _seed_argument(text: Text, call: ast.Call) -> Fix | None:
    """Return the fix that adds a seed argument, where its name is known."""
    name = text.module.dotted(call.func)
    named = {"numpy.random.default_rng": "seed=0", "numpy.random.RandomState": "seed=0", "random.Random": "0"}.get(name)
    line, column = call.end_lineno or call.lineno, (call.end_col_offset or 0) - 1
    return None if named is None else Fix("Give the generator a seed", ((line, column, line, column, named),))


# Numbers drawn twice are the same where they should differ. That makes no run differ from another, so `check` cannot see it.

_MAKES_KEYS = frozenset(
    {"PRNGKey", "key", "fold_in", "clone", "key_data", "wrap_key_data", "key_impl", "default_prng_impl"}
)
_TELLS_WORKERS_APART = frozenset(
    {"get_worker_info", "initial_seed", "getpid", "urandom", "randint", "random_", "seed", "time", "get_rank", "uuid4"}
)

# Each JAX key should be used once, by a draw or a split.


def of_keys(text: Text) -> Iterator[Finding]:
    """Yield keys used by a second draw, or by each iteration of a loop."""
    if "jax" not in text.module.packages:
        return
    scopes = [node for node in text.module.nodes if isinstance(node, Function)]
    for body in [text.module.tree.body, *(scope.body for scope in scopes)]:
        yield from _Keys(text).found_in(body)


class _Keys:
    """Follows the statements of one function, through both branches of a condition and twice through a loop."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._found: dict[int, Finding] = {}

    def found_in(self, body: Sequence[ast.stmt]) -> Iterator[Finding]:
        self._block(body, {})
        yield from self._found.values()

    def _block(self, body: Sequence[ast.stmt], used: dict[str, int]) -> dict[str, int] | None:
        """Return the lines of used keys after these statements; None if they end the function or the iteration."""
        for statement in body:
            if isinstance(statement, Function | ast.ClassDef):
                continue
            if isinstance(statement, ast.If | ast.Try | ast.With | ast.AsyncWith | ast.Match):
                self._expressions(statement, used)
                after = [self._block(part, dict(used)) for part in _branches(statement)]
                going_on = [one for one in after if one is not None]
                if not going_on:
                    return None
                used = {name: line for one in going_on for name, line in one.items()}
            elif isinstance(statement, ast.For | ast.AsyncFor | ast.While):
                self._expressions(statement, used)
                for _ in range(2):
                    self._forget(statement, used)
                    used = self._block(statement.body, dict(used)) or used
                used = self._block(statement.orelse, dict(used)) or used
            else:
                self._expressions(statement, used)
                self._forget(statement, used)
                if isinstance(statement, ast.Return | ast.Raise | ast.Break | ast.Continue):
                    return None
        return used

    def _forget(self, statement: ast.stmt, used: dict[str, int]) -> None:
        """Drop names that are assigned: their new values have not been used."""
        targets = [statement.target] if isinstance(statement, ast.For | ast.AsyncFor) else [statement]
        for name in (one for target in targets for one in ast.walk(target)):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                for key in [key for key in used if key == name.id or key.startswith(f"{name.id}[")]:
                    del used[key]

    def _expressions(self, statement: ast.stmt, used: dict[str, int]) -> None:
        for call in _own_calls(statement):
            owner, _, draw = self._text.module.dotted(call.func).rpartition(".")
            if owner != "jax.random" or draw in _MAKES_KEYS or not call.args:
                continue
            key = _key_name(call.args[0])
            if key is None:
                continue
            turns = [one.target for one in self._text.module.loops_of(call) if isinstance(one, ast.comprehension)]
            names = {one.id for target in turns for one in ast.walk(target) if isinstance(one, ast.Name)}
            line = used.get(key, call.lineno if turns and key.partition("[")[0] not in names else None)
            if line is not None:
                where = "in each iteration" if line == call.lineno else f"at line {line} and here"
                message = f"The key `{key}` is used {where}, so the same numbers are drawn. Split it for each use."
                self._found.setdefault(call.lineno, self._text.finding("key-reused", Severity.REPEATS, message, call))
            used[key] = call.lineno


def _branches(statement: ast.stmt) -> list[Sequence[ast.stmt]]:
    if isinstance(statement, ast.If):
        return [statement.body, statement.orelse]
    if isinstance(statement, ast.Match):
        return [*(case.body for case in statement.cases), []]
    if isinstance(statement, ast.Try):
        return [[*statement.body, *statement.orelse, *statement.finalbody], *(one.body for one in statement.handlers)]
    return [statement.body] if isinstance(statement, ast.With | ast.AsyncWith) else []


def _own_calls(statement: ast.stmt) -> Iterator[ast.Call]:
    """Yield the calls that a statement itself makes, in source order; none in nested functions and statements."""
    found: list[ast.Call] = []

    def look(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt | ast.Lambda | ast.ExceptHandler | ast.match_case):
                if isinstance(child, ast.Call):
                    found.append(child)
                look(child)

    look(statement)
    yield from sorted(found, key=lambda call: (call.lineno, call.col_offset))


def _key_name(node: ast.expr) -> str | None:
    """Return a name, or an element of one with a constant index."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Constant):
        return f"{node.value.id}[{node.slice.value!r}]"
    return None


# Workers of data loaders, each of which should draw its own numbers.


def of_workers(text: Text) -> Iterator[Finding]:
    """Yield workers that all get the same seed, or a copy of the same generator."""
    loaders = [
        node for node in text.module.nodes if isinstance(node, ast.Call) and last_part(node.func) == "DataLoader"
    ]
    given = [keyword for call in loaders for keyword in call.keywords]
    for keyword in given:
        if keyword.arg == "worker_init_fn":
            yield from _constant_seeds(text, keyword.value)
    has_workers = any(
        keyword.arg == "num_workers" and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
        for keyword in given
    )
    if has_workers and not any(keyword.arg == "worker_init_fn" and not is_none(keyword.value) for keyword in given):
        yield from _copied_generators(text)


def _constant_seeds(text: Text, function: ast.expr) -> Iterator[Finding]:
    """Yield the seeds of a worker initialization function that are the same for each worker."""
    bodies: list[tuple[Function | ast.Lambda, list[str]]] = []
    if isinstance(function, ast.Lambda):
        bodies.append((function, parameters(function)))
    elif isinstance(function, ast.Name):
        bodies += [(one, parameters(one)) for _, one in text.program.functions.get(function.id, ())]
    for scope, names in bodies:
        for node in within(scope):
            if isinstance(node, ast.Call) and seeded_libraries(text.module, node) and given_to(node):
                if not any(_may_differ(text, one, names, 0) for one in given_to(node)):
                    message = "Each worker of the loader gets the same seed here, so all of them draw the same numbers."
                    yield text.finding("workers-alike", Severity.REPEATS, message, node)


def _may_differ(text: Text, value: ast.expr, names: Sequence[str], depth: int) -> bool:
    """Whether a seed may differ between workers."""
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and last_part(node.func) not in ("int", "abs", "hash"):
            return True
        if isinstance(node, ast.Attribute | ast.Subscript):
            return True
        if isinstance(node, ast.Name) and node.id in names:
            return True
        if isinstance(node, ast.Name) and depth < 3:
            behind = text.module.bound(text.module.scope_of(node), node.id)
            if any(_may_differ(text, one, names, depth + 1) for one in behind):
                return True
    return False


def _copied_generators(text: Text) -> Iterator[Finding]:
    """Yield seeded generators that a data set keeps: each worker gets an identical copy."""
    kept = [node for node in text.module.nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    for statement in kept:
        call, target = statement.value, statement.targets[0]
        if not isinstance(call, ast.Call) or not _is_of_self(target) or text.module.dotted(call.func) not in GENERATORS:
            continue
        given = given_to(call)
        if not given or is_none(given[0]) or any(isinstance(one, ast.Call) for one in ast.walk(given[0])):
            continue
        owner = next((one for one in text.module.outwards(statement) if isinstance(one, ast.ClassDef)), None)
        if owner is None or not _draws_items(owner, last_part(target)) or _asks_for_worker(owner):
            continue
        message = "Each worker of the loader gets a copy of this generator, so all of them draw the same numbers."
        yield text.finding("workers-alike", Severity.REPEATS, message, call)


def _is_of_self(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"


def _draws_items(owner: ast.ClassDef, generator: str) -> bool:
    """Whether a data set makes its items with one of its attributes."""
    return any(
        isinstance(part, Function)
        and part.name in ("__getitem__", "__iter__", "__getitems__")
        and any(isinstance(one, ast.Attribute) and one.attr == generator for one in ast.walk(part))
        for part in owner.body
    )


def _asks_for_worker(owner: ast.ClassDef) -> bool:
    return any(isinstance(one, ast.Call) and last_part(one.func) in _TELLS_WORKERS_APART for one in ast.walk(owner))


def findings(text: Text) -> Iterator[Finding]:
    """Yield the findings of all of these rules."""
    yield from of_order(text)
    yield from of_keras(text)
    yield from of_values(text)
    yield from of_environments(text)
    yield from of_spaces(text)
    yield from of_samplers(text)
    yield from of_keys(text)
    yield from of_workers(text)
