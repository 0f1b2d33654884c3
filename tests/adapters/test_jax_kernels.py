"""The search among the kernels of a compiled program finds the one that varies, at any depth, and none if none varies."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, c_void_p
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import pjit
from jax._src.interpreters import pxla

from determinism.frameworks import array_capture
from determinism.frameworks.jax.arrays import array_of, digests_of_parts
from determinism.frameworks.jax.inside import equation_at
from determinism.frameworks.jax.kernels import Kernel, NotCut, Stored, stored_form, varying_kernel
from determinism.frameworks.jax.recorder import CapturedExecution
from determinism.frameworks.jax.serialized import SerializedProgram, read_varint
from tests.e2e.checking import line
from tests.e2e.programs.compiled_by_xla.racing_call import EXECUTE, CallFrame, add_in_any_order, elements, racing_sum
from tests.jax_races import doubled, with_own_derivative

VALUES = np.random.default_rng(0).normal(size=2000).astype("f") * 1e4
RACE = ("jax::ffi_call[add_in_any_order]", line("compiled_by_xla/racing_call", "SITE race"))
KernelIn = Callable[..., Kernel | None]


@pytest.fixture
def kernel_in(monkeypatch: pytest.MonkeyPatch) -> KernelIn:
    """Run a compiled function once, as a program does, and search it."""
    original = pxla.ExecuteReplicated.__call__
    monkeypatch.setattr(pjit, "_get_fastpath_data", lambda *args, **kwargs: None)

    def search(
        function: Callable[..., Any],
        *args: Any,
        change: Callable[[Stored], Stored] = lambda stored: stored,
        **options: Any,
    ) -> Kernel | None:
        seen: list[tuple[Any, Stored]] = []

        def execute(execution: Any, *given: Any) -> Any:
            seen.append((execution, stored_form(execution)))
            return original(execution, *given)

        def copies() -> list[Any]:
            return [jax.device_put(np.array(one)) for one in args]

        given = copies()
        with monkeypatch.context() as patched:
            patched.setattr(pxla.ExecuteReplicated, "__call__", execute)
            made = [array_of(one) for one in jax.tree.leaves(jax.jit(function, **options)(*given))]
        results = [digest for one in made for digest in digests_of_parts(one)]
        execution, stored = seen[-1]
        found = varying_kernel(execution, change(stored), copies, results, seconds=60)
        return found and found._replace(place=equation_at(jax.make_jaxpr(function)(*args), found.place))

    return search


def late_in_a_loop(values: Any) -> Any:
    def body(carry: Any, number: Any) -> Any:
        return jax.lax.cond(number > 6, lambda one: one + doubled(values), lambda one: one * 1.5, carry), carry

    return jax.lax.scan(body, 0.5, jnp.arange(10))


def in_two_loops(values: Any) -> Any:
    def inner(outer_number: Any, carry: Any) -> Any:
        return jax.lax.fori_loop(
            0, 3, lambda n, one: jnp.where(outer_number + n > 4, one + doubled(values) * 1e-3, one * 1.01), carry
        )

    return jax.lax.fori_loop(0, 5, inner, 1.0)


def while_it_is_small(values: Any) -> Any:
    return jax.lax.while_loop(lambda state: state[0] < 3, lambda state: (state[0] + 1, doubled(values)), (0, 0.0))


def branch_by_number(values: Any) -> Any:
    return jax.lax.switch(values.astype(int)[0] * 0 + 2, [jnp.sum, jnp.max, doubled, jnp.min], values)


@pytest.mark.parametrize(
    ("function", "inside"),
    [
        (doubled, ()),
        (lambda values: jax.jit(doubled)(jnp.abs(values)) + 1, ("doubled",)),
        (lambda values: jax.checkpoint(doubled)(values), ("remat2",)),
        (lambda values: with_own_derivative(values), ("custom_vjp_call",)),
        (lambda values: jax.lax.cond(values[0] < 1e9, doubled, jnp.sum, values), ("cond",)),
        (branch_by_number, ("cond",)),
        (
            lambda values: jax.lax.scan(lambda one, row: (one + doubled(row), one), 0.0, values.reshape(4, -1)),
            ("scan",),
        ),
        (late_in_a_loop, ("scan", "cond")),
        (in_two_loops, ("scan", "scan")),
        (while_it_is_small, ("while",)),
        (lambda values: (jnp.sin(doubled(values)), doubled(jnp.cos(values)), jnp.argsort(values)), ()),
    ],
    ids=[
        "plain",
        "jit",
        "checkpoint",
        "derivative",
        "branch",
        "switch",
        "scan",
        "late",
        "two loops",
        "while",
        "several",
    ],
)
def test_the_kernel_is_found(function: Callable[..., Any], inside: tuple[str, ...], kernel_in: KernelIn) -> None:
    kernel = kernel_in(function, VALUES)

    assert kernel is not None
    assert (kernel.place.op, kernel.place.line) == RACE
    assert (kernel.opcode, kernel.place.inside) == ("custom-call", inside)


def test_donated_arguments_do_not_prevent_the_search(kernel_in: KernelIn) -> None:
    kernel = kernel_in(lambda a, b: (a + racing_sum(a * 3) * 1e-5, b * 2), VALUES, VALUES, donate_argnums=(0, 1))

    assert kernel is not None
    assert (kernel.place.op, kernel.place.line) == RACE


def many_kinds(values: Any) -> Any:
    rows = values.reshape(50, 40)
    decomposed = jnp.linalg.qr(rows.T @ rows), jnp.linalg.svd(rows)
    scattered = jnp.zeros(50).at[jnp.arange(40) % 7].add(rows[0])
    found = jax.lax.while_loop(lambda one: jnp.sum(one) < 1e9, lambda one: one * 2 + 1, jnp.abs(scattered))
    picked = jax.random.permutation(jax.random.key(1), rows), jax.lax.top_k(rows, 3), jnp.sort(values)
    return decomposed, scattered, found, picked, jnp.fft.fft(values), jax.lax.cumsum(rows, axis=1), rows > 0


def test_a_program_that_does_not_vary_has_no_varying_kernel(kernel_in: KernelIn) -> None:
    assert kernel_in(many_kinds, VALUES) is None


def test_the_varying_kernel_is_found_among_many_kinds(kernel_in: KernelIn) -> None:
    kernel = kernel_in(lambda values: (many_kinds(values), racing_sum(jnp.sort(values))), VALUES)

    assert kernel is not None
    assert (kernel.place.op, kernel.place.line) == RACE


@CFUNCTYPE(c_void_p, POINTER(CallFrame))
def sum_with_rubbish(frame: Any) -> Any:
    """Return the sum, and a second result with different content each time, like the working memory of LAPACK."""
    if frame.contents.stage != EXECUTE or frame.contents.extension:
        return add_in_any_order(frame)
    given, made = frame.contents.arguments.buffers, frame.contents.results.buffers
    elements(made[0].contents)[...] = elements(given[0].contents).sum()
    elements(made[1].contents)[...] = np.random.default_rng().normal(size=3)
    return None


jax.ffi.register_ffi_target("sum_with_rubbish", jax.ffi.pycapsule(sum_with_rubbish), platform="cpu")


def sum_of(values: Any) -> Any:
    shapes = (jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((3,), jnp.float32))
    return jax.ffi.ffi_call("sum_with_rubbish", shapes)(values)


@pytest.mark.parametrize(
    ("function", "op"),
    [
        (lambda values: sum_of(values)[0] + doubled(values), "jax::ffi_call[add_in_any_order]"),
        (lambda values: sum_of(values)[0] + sum_of(values * 2)[1], "jax::ffi_call[sum_with_rubbish]"),
        (lambda values: sum_of(values)[0], None),
    ],
    ids=["race after it", "read", "not read"],
)
def test_memory_that_nothing_reads_is_ignored(
    function: Callable[..., Any], op: str | None, kernel_in: KernelIn
) -> None:
    kernel = kernel_in(function, VALUES)

    assert (kernel and kernel.place.op) == op


def test_values_that_do_not_fit_into_memory_together_are_examined_in_groups(
    kernel_in: KernelIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_capture, "_MOST_BYTES_INSIDE", VALUES.nbytes + 1)
    kernel = kernel_in(lambda values: jnp.sin(doubled(jnp.sort(-jnp.abs(values)))), VALUES)

    assert kernel is not None
    assert kernel.place.op == RACE[0]


def test_a_copy_with_different_results_is_rejected(kernel_in: KernelIn) -> None:
    def of_another(stored: Stored) -> Stored:
        return Stored(stored.data.replace(np.float32(3.25).tobytes(), np.float32(2.25).tobytes()))

    with pytest.raises(NotCut, match="different results"):
        kernel_in(lambda values: (values[:100] * 3.25, doubled(values)), VALUES, change=of_another)


@pytest.mark.parametrize("data", [b"", b"\x03\x08\x03\x12", b"\x00\x0a\x00", b"no program at all"])
def test_data_that_is_not_a_stored_program_is_not_cut(data: bytes, kernel_in: KernelIn) -> None:
    with pytest.raises(NotCut, match="stored form"):
        kernel_in(doubled, VALUES, change=lambda stored: Stored(data))


def test_a_program_with_effects_is_not_cut(kernel_in: KernelIn) -> None:
    def function(values: Any) -> Any:
        jax.debug.print("{}", values[0])
        return doubled(values)

    with pytest.raises(NotCut, match="effects"):
        kernel_in(function, VALUES)


def test_the_ops_of_a_fusion_have_their_lines() -> None:
    def function(values: Any) -> Any:
        bent = jnp.sin(values)
        return jnp.cos(bent) * 3

    program = SerializedProgram(jax.jit(function).lower(VALUES).compile().runtime_executable().serialize())
    (thunk,) = program.thunks()
    ops = {one.op_name.rpartition("/")[2]: one.frames[0] for one in program.fused(thunk.name) if one.frames}

    assert ops["cos"][:2] == (__file__, ops["sin"][1] + 1)
    assert ops["cos"][2].endswith("function")


def test_the_header_before_a_program_may_be_missing() -> None:
    """As in versions of JAX before 0.8."""
    whole = jax.jit(jnp.sum).lower(VALUES).compile().runtime_executable().serialize()
    size, at = read_varint(whole, 0)
    before, after = SerializedProgram(whole), SerializedProgram(whole[at + size :])

    assert before.thunks() == after.thunks()
    watched = {0: before.thunks()[0].written}
    assert before.watching((), watched).endswith(after.watching((), watched))


@pytest.mark.parametrize("problem", ["", "it is on a device that has no such form"])
def test_an_execution_reports_how_its_place_was_found(problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, Stored, Any]] = []
    original = pxla.ExecuteReplicated.__call__

    def execute(execution: Any, *given: Any) -> Any:
        seen.append((execution, Stored(b"", problem) if problem else stored_form(execution), given))
        return original(execution, *given)

    with monkeypatch.context() as patched:
        patched.setattr(pjit, "_get_fastpath_data", lambda *args, **kwargs: None)
        patched.setattr(pxla.ExecuteReplicated, "__call__", execute)
        made = jax.jit(lambda values: doubled(values))(VALUES)
    ((execution, stored, given),) = seen
    call = CapturedExecution("jax::jit(doubled)", original, execution, jax.make_jaxpr(doubled)(VALUES), given, stored)
    call.outputs = [made]
    place = call.varying_place(60)

    assert place is not None
    assert (place["op"], place["line"]) == RACE
    assert place.get("no_kernel") == (problem or None)
    assert place.get("kernel", {}).get("opcode") == (None if problem else "custom-call")


def test_a_custom_call_is_identified_by_its_target_if_only_the_line_of_its_loop_is_known() -> None:
    jaxpr = jax.make_jaxpr(lambda values: jax.lax.map(doubled, values.reshape(2, -1)) + jnp.cos(values[0]))(VALUES)
    told = array_capture.Place(RACE[0], __file__, 1, "", "", ("while", "body"))
    found = equation_at(jaxpr, told)

    assert ((found.op, found.line), found.inside) == (RACE, ("scan",))
    assert equation_at(jaxpr, told._replace(op="jax::cos")) == told._replace(op="jax::cos")
    assert equation_at(None, told) == told
