"""Finds the place within a compiled function at which results vary: the equation that JAX traced, and its line.

XLA returns only the results of a compiled program. So the traced function is compiled once more to return its intermediate
values as well, and is run repeatedly on the inputs of the record: the first equation whose results vary, while its inputs do not, is
the place. Functions that it calls (`jit`, `remat`, functions with custom derivatives, branches, the body of a `scan`) are searched in the same
way. Compiled like this, XLA fuses less, so kernels may differ from those of the program; the report says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax._src import core, source_info_util

from determinism.frameworks.array_capture import Place, distinct_places, fitting_groups, place_at
from determinism.frameworks.jax.arrays import array_of, digest_array

_REPEATS = 30
_MOST_ITERATIONS = 1000


def varying_place(jaxpr: Any, args: Sequence[Any], seconds: float) -> Place | None:
    """The equation of a function that varies.

    Args:
        jaxpr: The traced function, closed.
        args: Its arguments, without the constants that it closes over.
        seconds: Time limit of the search; compilation is not interrupted.

    Returns:
        The equation; None if none varied in the copy that returns intermediate values.
    """
    if jaxpr.effects or len(args) != len(jaxpr.in_avals):
        return None
    return _Search(time.monotonic() + seconds).place(jaxpr.jaxpr, jaxpr.consts, args, ())


class _Search:
    """One search, with a deadline."""

    def __init__(self, until: float) -> None:
        self._until = until
        self._compiled: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def place(self, jaxpr: Any, constants: Sequence[Any], args: Sequence[Any], inside: tuple[str, ...]) -> Place | None:
        """The equation that varies in a function, or in one that it calls."""
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *args], strict=True))
        for equations in fitting_groups(jaxpr.eqns, _bytes_made):
            wanted = list(dict.fromkeys(made for one in equations for made in one.outvars if _is_kept(made)))
            values, varying = self._values(jaxpr, known, wanted)
            first = next((one for one in equations if any(made in varying for made in one.outvars)), None)
            if first is not None:
                taken = [one for one in first.invars if not isinstance(one, core.Literal) and one not in known]
                values |= self._values(jaxpr, known, [one for one in taken if one not in values])[0]
                given = [
                    one.val if isinstance(one, core.Literal) else known[one] if one in known else values[one]
                    for one in first.invars
                ]
                return self._within(first, given, inside) or _place_of(first, inside)
            if time.monotonic() > self._until:
                return None
        return None

    def _values(self, jaxpr: Any, known: dict[Any, Any], wanted: list[Any]) -> tuple[dict[Any, Any], set[Any]]:
        """Intermediate values of a function, and which of them vary."""
        if not wanted:
            return {}, set()
        compiled = self._compiled_for(jaxpr, wanted)
        digests: list[set[bytes]] = [set() for _ in wanted]
        for number in range(_REPEATS):
            values = compiled(*known.values())
            for seen, value in zip(digests, values, strict=True):
                seen.add(digest_array(array_of(value)))
            if (number and time.monotonic() > self._until) or sum(len(seen) > 1 for seen in digests) == len(digests):
                break
        return dict(zip(wanted, values, strict=True)), {
            one for one, seen in zip(wanted, digests, strict=True) if len(seen) > 1
        }

    def _compiled_for(self, jaxpr: Any, wanted: list[Any]) -> Any:
        """A compiled function that returns intermediate values of a function; cached, so that a loop body is compiled once."""
        key = (id(jaxpr), *map(id, wanted))
        if key not in self._compiled:
            giving, number_of_constants = _giving(jaxpr, wanted), len(jaxpr.constvars)

            def evaluate(*given: Any) -> Any:
                return core.eval_jaxpr(giving, given[:number_of_constants], *given[number_of_constants:])

            # An id is reused once its object is gone, so the objects are kept.
            self._compiled[key] = (jax.jit(evaluate), (jaxpr, wanted))
        return self._compiled[key][0]

    def _within(self, equation: Any, given: list[Any], inside: tuple[str, ...]) -> Place | None:
        """The place within the functions that an equation calls; None if it calls none, or nothing in them varied by itself."""
        name = str(equation.params.get("name") or equation.primitive.name)
        for jaxpr, args in _called(equation, given):
            constants = getattr(jaxpr, "consts", ())
            found = self.place(getattr(jaxpr, "jaxpr", jaxpr), constants, args, (*inside, name))
            if found is not None or time.monotonic() > self._until:
                return found
        return None


def _bytes_made(equation: Any) -> int:
    return sum(_bytes_of(made.aval) for made in equation.outvars)


def _bytes_of(aval: Any) -> int:
    return int(getattr(aval, "size", 0)) * int(getattr(getattr(aval, "dtype", None), "itemsize", 0))


def _is_kept(variable: Any) -> bool:
    return type(variable).__name__ != "DropVar" and hasattr(variable.aval, "shape")


def _giving(jaxpr: Any, wanted: list[Any]) -> Any:
    """The part of a function that computes the wanted variables, which become its results."""
    missing, needed = set(wanted), []
    for equation in jaxpr.eqns:
        if missing:
            needed.append(equation)
            missing.difference_update(equation.outvars)
    known = {"eqns": needed, "outvars": wanted}
    information = getattr(jaxpr, "debug_info", None)
    if information is not None:
        known["debug_info"] = information._replace(result_paths=("",) * len(wanted))
    return jaxpr.replace(**known)


def _called(equation: Any, given: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Functions that an equation calls, each with its arguments; the body of a loop once per iteration."""
    parameters = equation.params
    if equation.primitive.name == "scan":
        yield from _iterations(parameters, given)
    elif equation.primitive.name == "while":
        yield from _rounds(parameters, given)
    elif equation.primitive.name in ("shard_map", "xla_pmap"):
        # The function that it calls works on per-device shards; the call is named as a whole.
        return
    elif equation.primitive.name == "cond":
        yield parameters["branches"][int(given[0])], given[1:]
    else:
        for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
            jaxpr = parameters.get(name)
            if jaxpr is not None and len(getattr(jaxpr, "jaxpr", jaxpr).invars) == len(given):
                yield jaxpr, given
                return


def _iterations(parameters: dict[str, Any], given: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """The body of a `scan` with the arguments of each iteration."""
    body, num_constants, num_carried = parameters["jaxpr"], parameters["num_consts"], parameters["num_carry"]
    constants = given[:num_constants]
    carried = given[num_constants : num_constants + num_carried]
    rows = given[num_constants + num_carried :]
    run = jax.jit(core.jaxpr_as_fun(body))
    order = range(parameters["length"])
    for at in list(reversed(order) if parameters["reverse"] else order)[:_MOST_ITERATIONS]:
        args = [*constants, *carried, *(row[at] for row in rows)]
        yield body, args
        carried = list(run(*args))[:num_carried]


def _rounds(parameters: dict[str, Any], given: list[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """The condition and the body of a `while` with the arguments of each iteration."""
    condition, body = parameters["cond_jaxpr"], parameters["body_jaxpr"]
    of_condition, of_body = parameters["cond_nconsts"], parameters["body_nconsts"]
    asked, constants = given[:of_condition], given[of_condition : of_condition + of_body]
    carried = given[of_condition + of_body :]
    goes_on, run = jax.jit(core.jaxpr_as_fun(condition)), jax.jit(core.jaxpr_as_fun(body))
    for _ in range(_MOST_ITERATIONS):
        yield condition, [*asked, *carried]
        if not bool(goes_on(*asked, *carried)[0]):
            return
        yield body, [*constants, *carried]
        carried = list(run(*constants, *carried))


def _place_of(equation: Any, inside: tuple[str, ...]) -> Place:
    name = equation.primitive.name
    if name == "ffi_call":
        name = f"{name}[{equation.params['target_name']}]"
    frames = _frames(equation.source_info)
    return place_at(f"jax::{name}", [(one.file_name, one.start_line, one.function_name) for one in frames], inside)


def equation_places(jaxpr: Any) -> list[Place]:
    """The equations of a function and of those that it calls, once per line, in order."""
    return distinct_places(_place_of(*one) for one in _all_equations(getattr(jaxpr, "jaxpr", jaxpr), ()))


def equation_at(jaxpr: Any, place: Place) -> Place:
    """The matching place of the traced function, with the names of functions and loops that it has there; the given place if there is none.

    Older versions of JAX pass XLA only the line of the branch or loop. A custom call is then identified by its target, if that is unique.

    Args:
        jaxpr: The traced function; None if unknown.
        place: The place according to XLA's metadata.
    """
    known = [] if jaxpr is None else [one for one in equation_places(jaxpr) if one.op == place.op]
    there = [one for one in known if (one.file, one.line) == (place.file, place.line)]
    if not there and len(known) == 1 and "[" in place.op:
        return known[0]
    return there[0] if there else place


def _all_equations(jaxpr: Any, inside: tuple[str, ...]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    for equation in jaxpr.eqns:
        yield equation, inside
        name = str(equation.params.get("name") or equation.primitive.name)
        for called in functions_in(equation):
            yield from _all_equations(called, (*inside, name))


def functions_in(equation: Any) -> Iterator[Any]:
    """The functions that an equation calls, in traced form; for a condition those of all branches."""
    for value in equation.params.values():
        for one in value if isinstance(value, (list, tuple)) else (value,):
            called = getattr(one, "jaxpr", one)
            if hasattr(called, "eqns"):
                yield called


def _frames(source_info: Any) -> list[Any]:
    """The frames in which an equation was traced, innermost first, without JAX's own; older versions take the whole source info."""
    try:
        return list(source_info_util.user_frames(source_info.traceback))
    except (AttributeError, TypeError):
        return list(source_info_util.user_frames(source_info))
