"""Every execution by JAX is recorded, on every code path, and recording changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import pjit
from jax._src.interpreters import pxla

import determinism
from determinism.comparison.records import entry_of
from determinism.frameworks.jax import recorder as recorder_module
from determinism.frameworks.jax.session import Session
from determinism.run_spec import RunSpec
from determinism.session.record import recording
from determinism.trace.opening import open_trace
from determinism.types import Kind, Phase, Role, Verdict
from tests.jax_runs import compared, recorded

SIZE = 64


def train(seed: int = 0, steps: int = 3) -> Any:
    """Train a small model for a few steps; returns its parameters and the last loss."""
    key = jax.random.key(seed)
    parameters = {"weight": jax.random.normal(key, (8, 4)), "bias": jnp.zeros(4)}
    batches = np.random.default_rng(0)

    def loss_of(p: Any, x: Any, y: Any) -> Any:
        return jnp.mean((x @ p["weight"] + p["bias"] - y) ** 2)

    @jax.jit
    def step(p: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(p, x, y)
        return jax.tree.map(lambda a, b: a - 0.1 * b, p, gradients), loss

    for _ in range(steps):
        x, y = batches.normal(size=(16, 8)).astype(np.float32), batches.normal(size=(16, 4)).astype(np.float32)
        parameters, loss = step(parameters, x, y)
        determinism.step()
    print(float(loss))
    return parameters, loss


def eagerly() -> Any:
    x = jnp.arange(4.0) + 1
    return x[1:].sum() * jax.random.uniform(jax.random.key(3))


def with_donation() -> Any:
    grow = jax.jit(lambda x: x * 2, donate_argnums=0)
    x = jnp.ones(SIZE)
    for _ in range(3):
        x = grow(x)
    return x


def compiled_ahead() -> Any:
    x = jnp.ones(SIZE)
    double = jax.jit(lambda x: x * 2).lower(x).compile()
    for _ in range(3):
        x = double(x)
    return x


def transformed() -> Any:
    def body(carry: Any, x: Any) -> Any:
        return carry * 0.5 + x, carry

    x = jax.vmap(lambda a: jnp.sin(a) * a)(jnp.arange(6.0))
    return jax.lax.scan(body, 0.0, x), jax.jacfwd(jnp.tanh)(0.3), jax.jit(jax.grad(lambda a: (a**3).sum()))(x)


def of_all_dtypes() -> Any:
    names = [
        "bool",
        "int8",
        "uint16",
        "int32",
        "float16",
        "bfloat16",
        "float32",
        "complex64",
        "int4",
        "uint2",
        "float4_e2m1fn",
        "float8_e4m3fn",
    ]
    arrays = [jnp.ones((3, 2), name) for name in names]
    return [one.reshape(2, 3) for one in arrays], jnp.zeros((0, 3)) + 1, jax.random.split(jax.random.key(0), 3)


def numbers_of(result: Any) -> list[bytes]:
    leaves = jax.tree.leaves(result)
    return [
        np.asarray(jax.random.key_data(one) if jnp.issubdtype(one.dtype, jax.dtypes.prng_key) else one).tobytes()
        for one in leaves
    ]


@pytest.mark.parametrize("run", [train, eagerly, with_donation, compiled_ahead, transformed, of_all_dtypes])
def test_a_deterministic_program_compares_as_the_same_and_keeps_its_bits(
    run: Callable[[], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = numbers_of(run())
    printed = capsys.readouterr().out
    found = recorded(tmp_path, run)
    assert numbers_of(found.result) == plain
    assert found.output == printed
    assert found.blind_spots == []
    assert compared(tmp_path, run).verdict is Verdict.SAME


def test_every_execution_is_recorded_even_of_a_function_called_earlier(tmp_path: Path) -> None:
    double = jax.jit(lambda x: x * 2)
    ahead = jax.jit(lambda x: x + 1)
    x = jnp.ones(3)
    double(x), double(x)

    found = recorded(tmp_path, lambda: [double(x) for _ in range(4)] + [ahead(x) for _ in range(3)])
    assert found.ops.count("jax::jit(<lambda>)") == 7


def test_jax_uses_its_fast_path_again_after_recording(tmp_path: Path) -> None:
    before = pjit._get_fastpath_data
    recorded(tmp_path, lambda: jnp.ones(3) + 1)
    assert pjit._get_fastpath_data is before
    double, executed = jax.jit(lambda x: x * 2), []
    x = jnp.ones(3)
    double(x)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pxla.ExecuteReplicated, "__call__", lambda *args: executed.append(args))
        double(x)
    assert executed == []


def test_a_record_has_its_line_inputs_and_step(tmp_path: Path) -> None:
    found = recorded(tmp_path, train)
    steps = [one for one in found.entries if one.op == "jax::jit(step)"]
    assert [one.step for one in steps] == [0, 1, 2]
    assert {one.role for one in steps} == {Role.OP}
    process = found.trace.processes[0]
    chunk, row = process.record(steps[1].number)
    stack = process.names.stack(int(chunk.columns["stack"][row]))
    assert (Path(stack[0].file).name, stack[0].code) == (
        "test_jax_recording.py",
        "parameters, loss = step(parameters, x, y)",
    )
    made_by = [one.producer for one in steps[1].inputs]
    assert steps[0].number in made_by and -1 in made_by


def first_of(folder: Path, run: Callable[[], Any]) -> Any:
    comparison = compared(folder, run)
    assert comparison.verdict is Verdict.DIFFERENT and comparison.first_divergence is not None
    return comparison.first_divergence


def test_a_different_seed_is_a_data_difference_at_its_line(tmp_path: Path) -> None:
    seeds = iter([1, 2])
    first = first_of(tmp_path, lambda: train(next(seeds)))
    assert first.kind is Kind.DATA
    assert first.site.code == "key = jax.random.key(seed)"


def test_a_different_batch_is_a_data_difference_where_it_enters(tmp_path: Path) -> None:
    batches = iter([np.ones(3, np.float32), np.full(3, 2, np.float32)])
    first = first_of(tmp_path, lambda: jax.jit(jnp.sum)(next(batches)))
    assert (first.kind, first.op) == (Kind.DATA, "jax::jit(sum)")


@pytest.mark.parametrize("constant", [float, lambda number: np.full(5000, number, np.float32)], ids=["number", "array"])
def test_a_different_constant_baked_into_a_function_is_reported_at_its_line(
    tmp_path: Path, constant: Callable[[float], Any]
) -> None:
    rates = iter([0.1, 0.2])

    def run() -> Any:
        rate = constant(next(rates))
        return jax.jit(lambda x: (x * rate).sum())(jnp.ones(5000))

    first = first_of(tmp_path, run)
    assert first.kind in (Kind.ARGUMENT, Kind.DATA)
    assert "jax.jit(lambda x: (x * rate).sum())" in first.site.code


def test_a_host_callback_is_a_blind_spot(tmp_path: Path) -> None:
    noise = iter([1.0, 2.0])

    def run() -> Any:
        def noisy(x: Any) -> Any:
            return np.asarray(x) + np.float32(next(noise))

        return jax.jit(lambda x: jax.pure_callback(noisy, jax.ShapeDtypeStruct((3,), jnp.float32), x))(jnp.ones(3))

    def printing() -> Any:
        return jax.jit(lambda x: (jax.debug.print("{}", x), x * 2)[1])(jnp.ones(3))

    assert compared(tmp_path, printing).verdict is Verdict.SAME
    comparison = compared(tmp_path, run)
    assert comparison.first_divergence is not None and comparison.first_divergence.kind is Kind.OP
    (spot,) = comparison.recorded.blind_spots
    assert (spot.identifier, spot.what) == ("host-callback", "jax::jit(<lambda>)")


def _reusing_a_buffer(place: Any, wait: Any, *, copies: bool = False) -> Any:
    step = jax.jit(lambda w, x: w + x.sum())
    raw = np.empty(4096 + 64, np.uint8)
    # XLA reads aligned memory in place.
    buffer = raw[-raw.ctypes.data % 64 :][:4096].view(np.float32)
    w = jnp.zeros(())
    for number in range(4):
        buffer[:] = number
        w = step(w, place(buffer.copy() if copies else buffer))
        wait(w)
    return w


@pytest.mark.parametrize(
    ("place", "op"),
    [(jax.device_put, "jax::jit(<lambda>)"), (lambda buffer: buffer, "jax::jit(<lambda>)"), (jnp.array, "jax::jit(stage)")],
    ids=["device_put", "argument", "array"],
)  # fmt: skip
def test_a_buffer_that_jax_may_still_read_when_it_is_reused_is_a_blind_spot(
    place: Any, op: str, tmp_path: Path
) -> None:
    run = recorded(tmp_path, lambda: _reusing_a_buffer(place, lambda w: None))
    assert run.blind_spots == [("reused-memory", op)]


@pytest.mark.parametrize("place", [jax.device_put, lambda buffer: buffer], ids=["device_put", "argument"])
@pytest.mark.parametrize("wait", [float, jax.block_until_ready, lambda w: w.block_until_ready(), None])
def test_a_buffer_that_is_copied_or_reused_after_waiting_is_no_blind_spot(
    place: Any, wait: Any, tmp_path: Path
) -> None:
    run = recorded(tmp_path, lambda: _reusing_a_buffer(place, wait or (lambda w: None), copies=wait is None))
    assert run.blind_spots == []


@pytest.mark.parametrize(
    ("way", "name"),
    [
        (float, "float"), (bool, "bool"), (str, "print"), (np.ndarray.tolist, "tolist"), (jax.device_get, "numpy"),
    ],
)  # fmt: skip
def test_a_value_that_leaves_jax_is_recorded_as_an_escape(way: Callable[[Any], Any], name: str, tmp_path: Path) -> None:
    def run() -> None:
        x = jnp.float32(2) + 1
        x.tolist() if name == "tolist" else way(x)

    found = recorded(tmp_path, run)
    assert [one.op for one in found.entries if one.role is Role.ESCAPE] == [f"determinism::{name}"]


def test_values_that_numpy_may_have_read_unseen_count_as_read(tmp_path: Path) -> None:
    seeds = iter([1.0, 2.0])
    comparison = compared(tmp_path, lambda: [np.asarray(jnp.float32(next(seeds)) * jnp.ones(3))].clear())
    assert comparison.verdict is Verdict.DIFFERENT


def test_errors_of_the_program_are_not_blind_spots(tmp_path: Path) -> None:
    def run() -> None:
        grow = jax.jit(lambda x: x * 2, donate_argnums=0)
        x = jnp.ones(3)
        grow(x)
        with pytest.raises(RuntimeError, match="deleted"):
            grow(x)
        with pytest.raises(TypeError):
            jnp.ones(3) + "text"

    assert recorded(tmp_path, run).blind_spots == []


def test_a_failure_of_the_recorder_is_a_blind_spot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(array: Any) -> bytes:
        raise ValueError("planted")

    monkeypatch.setattr(recorder_module, "digest_array", broken)
    found = recorded(tmp_path, lambda: None if float((jnp.ones(3) * 2).sum()) == 6.0 else pytest.fail("other numbers"))
    assert {identifier for identifier, _ in found.blind_spots} == {"handler-failed"}


def test_a_configured_compile_cache_is_noted_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    (cache := tmp_path / "cache").mkdir()
    before = jax.config.jax_compilation_cache_dir
    states = []
    try:
        for kept in (False, True):
            jax.config.update("jax_compilation_cache_dir", str(cache))
            if kept:
                (cache / "jit_step").touch()
            found = recorded(tmp_path, lambda: float(jnp.ones(3).sum()))
            states.append(found.trace.processes[0].description["environment"]["compile cache of JAX"])
    finally:
        jax.config.update("jax_compilation_cache_dir", before)

    assert states == ["empty", "warm"]
    unasked = recorded(tmp_path, lambda: float(jnp.ones(3).sum()))
    assert "compile cache of JAX" not in unasked.trace.processes[0].description["environment"]


def in_threads(*targets: Callable[[], Any]) -> list[Any]:
    """Run functions in threads, one after another; returns their results."""
    results: list[Any] = []
    for number, target in enumerate(targets):
        thread = threading.Thread(target=lambda target=target: results.append(target()), name=f"prefetch-{number}")
        thread.start()
        thread.join()
    return results


def test_executions_in_threads_are_recorded_with_their_lines(tmp_path: Path) -> None:
    def program() -> float:
        (total,) = in_threads(lambda: jnp.sin(jnp.ones(3)).sum())
        return float(total * 2)

    found = recorded(tmp_path, program)
    main, threads = found.trace.processes
    ops, stacks = [], []
    for chunk in threads.chunks():
        for row in range(chunk.rows):
            ops.append(entry_of(threads, chunk, row).op)
            stacks.append(threads.names.stack(int(chunk.columns["stack"][row])))

    assert (main.key, threads.key) == ("main", "main.threads")
    assert threads.description["threads"] == ["prefetch-0"]
    assert [op for op in ops if op.startswith("jax::")][-2:] == ["jax::jit(sin)", "jax::jit(_reduce_sum)"]
    assert all(stack[0].file == __file__ for op, stack in zip(ops, stacks, strict=True) if op.startswith("jax::"))
    assert found.blind_spots == []
    assert main.description["racy"] == ["threads"]


def test_threads_that_do_the_same_work_in_a_different_order_are_the_same(tmp_path: Path) -> None:
    scales = [1.0, 2.0, 3.0]

    def program() -> float:
        made = in_threads(*(lambda scale=scale: jnp.sin(jnp.full(3, scale)).sum() for scale in scales))
        scales.reverse()
        return sum(sorted(map(float, made)))

    assert compared(tmp_path, program).verdict is Verdict.SAME


def test_a_difference_in_a_thread_is_reported_with_its_line(tmp_path: Path) -> None:
    offsets = iter([0.0, 1e-3])

    def work() -> Any:
        return jnp.sin(jnp.full(3, 1.0) + next(offsets)).sum()

    comparison = compared(tmp_path, lambda: float(in_threads(work)[0] * 2))
    first = comparison.first_divergence

    assert comparison.verdict is Verdict.DIFFERENT
    assert first is not None and first.site is not None
    assert (first.stream, first.thread, first.kind) == ("main.threads", "prefetch-0", Kind.DATA)
    assert first.site.function.endswith(".work")


@pytest.mark.parametrize("most_unread", [2, 1000])
def test_a_thread_pool_that_distributes_work_freely_is_the_same(
    most_unread: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 2 is so small that threads reach the limit in the middle of their work.
    monkeypatch.setattr(recorder_module, "_MOST_UNREAD", most_unread)

    @jax.jit
    def step(weight: Any, x: Any) -> Any:
        return weight - 0.1 * jnp.tanh(x @ weight)

    samples = [np.random.default_rng(seed).normal(size=(8, 8)).astype("f") for seed in range(6)]

    def train_one(x: Any) -> Any:
        weight = jnp.eye(8)
        for _ in range(5):
            weight = step(weight, x)
        return weight

    def program() -> float:
        with ThreadPoolExecutor(3) as pool:
            trained = list(pool.map(train_one, samples))
        return float(jnp.stack(trained).sum())

    for _ in range(3):
        comparison = compared(tmp_path, program)
        assert comparison.verdict is Verdict.SAME, comparison


def test_the_main_thread_is_recorded_while_another_thread_starts_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_beginning = threading.Event()
    open_trace_of = Session._open

    def slowly(session: Session, *args: Any) -> None:
        is_beginning.set()
        time.sleep(0.3)
        open_trace_of(session, *args)

    monkeypatch.setattr(Session, "_open", slowly)
    values = np.ones(3, np.float32)

    def program() -> None:
        thread = threading.Thread(target=lambda: float(jnp.cos(values).sum()))
        thread.start()
        is_beginning.wait(10)
        float(jnp.sin(values).sum())
        thread.join()

    found = recorded(tmp_path, program)
    assert "jax::jit(sin)" in found.ops
    assert len(found.trace.processes) == 2


def test_a_thread_started_before_the_recording_is_recorded(tmp_path: Path) -> None:
    begin, is_done = threading.Event(), threading.Event()

    def serve() -> None:
        begin.wait(300)
        float(jnp.cos(jnp.ones(3)).sum())
        is_done.set()

    thread = threading.Thread(target=serve, name="earlier")
    thread.start()

    def program() -> None:
        begin.set()
        is_done.wait(300)

    found = recorded(tmp_path, program)
    thread.join()
    assert found.blind_spots == []
    assert found.trace.processes[1].description["threads"] == ["earlier"]


def test_arrays_sharded_over_several_devices_are_compared(tmp_path: Path) -> None:
    """Run in a separate process, because the number of devices is fixed at the first use."""
    program = """
import jax, jax.numpy as jnp, numpy as np, sys
from jax.sharding import NamedSharding, PartitionSpec, Mesh
mesh = Mesh(np.array(jax.devices()), ("data",))
x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, PartitionSpec("data")))
y = jax.device_put(jnp.arange(4.0), NamedSharding(mesh, PartitionSpec()))
factor = float(sys.argv[1])
z = jax.jit(lambda x, y, f: (x * f).reshape(2, 4) + y)(x, y, factor)
print(z.sum())
"""
    (tmp_path / "program.py").write_text(program)
    for name, factor in (("1", "2"), ("2", "2"), ("3", "3")):
        command = [
            sys.executable,
            "-m",
            "determinism",
            "record",
            "-o",
            name,
            "--",
            sys.executable,
            "program.py",
            factor,
        ]
        environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, env=environment)
    assert determinism.compare(tmp_path / "1", tmp_path / "2").verdict is Verdict.SAME
    first = determinism.compare(tmp_path / "1", tmp_path / "3").first_divergence
    assert first is not None and (first.kind, first.op) == (Kind.DATA, "jax::jit(<lambda>)")
    assert first.outputs[0].device == "cpu x2"


def test_a_program_that_only_imports_jax_records_nothing(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "determinism",
        "record",
        "-o",
        str(tmp_path / "trace"),
        "--",
        sys.executable,
        "-c",
        "import jax",
    ]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2 and "No process of the program recorded anything" in ended.stderr


def test_check_compares_calls_of_a_function(tmp_path: Path) -> None:
    keys = [jax.random.key(0)]
    assert determinism.check(lambda: jax.random.normal(keys[0], (3,))).verdict is Verdict.SAME
    comparison = determinism.check(
        lambda: jax.random.normal(jax.random.key(np.random.default_rng().integers(1 << 30)), (3,))
    )
    assert comparison.verdict is Verdict.DIFFERENT


def test_phases_are_not_distinguished(tmp_path: Path) -> None:
    assert {one.phase for one in recorded(tmp_path, train).entries} == {Phase.OTHER}


def test_a_window_of_steps_is_recorded_from_the_beginning_with_a_blind_spot(tmp_path: Path) -> None:
    with recording(RunSpec(tmp_path / "trace", window=3)):
        jax.jit(lambda x: x + 1)(jnp.ones(2)).block_until_ready()

    (process,) = open_trace(tmp_path / "trace").processes
    assert [spot["id"] for spot in process.description["blind_spots"]] == ["window"]
    assert process.extent[0] > 1
