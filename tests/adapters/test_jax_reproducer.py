"""The script that repeats a compiled JAX function has the same results; calls that a script cannot contain are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import pjit
from jax._src.interpreters import pxla

from determinism.diagnose.reproducer import NotReproducible, script, write_reproducer
from determinism.frameworks.array_capture import NotWritable, stored
from determinism.frameworks.jax.recorder import CapturedExecution
from determinism.trace.files import write_tensors


def function(x: Any) -> Any:
    """A function of one argument."""
    return x + 1


def captured(monkeypatch: pytest.MonkeyPatch, function: Any, *args: Any) -> CapturedExecution:
    """The execution of a function that was just compiled."""
    execute = pxla.ExecuteReplicated.__call__
    jaxpr = jax.make_jaxpr(function)(*args)
    found: list[CapturedExecution] = []

    def around(execution: Any, *given: Any) -> Any:
        if execution.name.startswith("jit(function"):
            found.append(CapturedExecution(f"jax::{execution.name}", execute, execution, jaxpr, given))
        return execute(execution, *given)

    with monkeypatch.context() as patch:
        patch.setattr(pxla.ExecuteReplicated, "__call__", around)
        patch.setattr(pxla.MeshExecutable, "create_cpp_call", lambda *_: None)
        patch.setattr(pjit, "_get_fastpath_data", lambda *_, **__: None)
        jax.jit(function)(*args)
    return found[0]


def document(call: CapturedExecution) -> tuple[dict[str, Any], dict[str, Any]]:
    inputs = {f"input_{at}": one for at, one in enumerate(call.inputs)}
    return json.loads(json.dumps(call.document(inputs))), inputs


def script_of(call: CapturedExecution, folder: Path) -> Path:
    """Write the script as a check does from the files of a process."""
    about, inputs = document(call)
    kept = folder / "inputs.safetensors"
    write_tensors(kept, {name: stored(array) for name, array in inputs.items()}, about={"about": "inputs"})
    return write_reproducer(folder / "script", kept, about, origin="train.py:3", seen="there", repeats=3, moves=False)


def test_the_script_repeats_the_function_with_its_keys_and_without_unused_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def function(parameters: Any, key: Any, unused: Any, x: Any) -> Any:
        noise = jax.random.normal(key, x.shape)
        return {"loss": jnp.mean((x @ parameters["w"] + noise[:, :1]) ** 2), "key": jax.random.split(key)[0]}

    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)).astype("f"))
    args = {"w": jnp.ones((3, 1))}, jax.random.key(3), jnp.zeros(7), x
    path = script_of(captured(monkeypatch, function, *args), tmp_path)
    path.write_text(
        path.read_text().replace(
            "counts[key] = counts", "print('loss', results[1].item().hex())\n        counts[key] = counts"
        )
    )
    ended = subprocess.run(
        [sys.executable, str(path), "2"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}
    )

    assert ended.returncode == 0, ended.stderr
    assert "1 distinct results in" in ended.stdout
    assert f"loss {jax.jit(function)(*args)['loss'].item().hex()}" in ended.stdout


def test_a_function_with_effects_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Any) -> Any:
        jax.debug.print("{}", x[0])
        return x * 2

    with pytest.raises(NotWritable, match="effects"):
        document(captured(monkeypatch, function, jnp.ones(3)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("flags", 3),
        ("tensors", {"input_0": {"dtype": "float32')", "shape": [1]}}),
        ("settings", {"jax_enable_x64": []}),
        ("custom_calls", None),
    ],
)
def test_only_names_and_literals_get_into_the_script(key: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    about, _ = document(captured(monkeypatch, function, jnp.ones(3)))
    with pytest.raises(NotReproducible):
        script({**about, key: value}, origin="", seen="", repeats=1, moves=False)


def test_flags_with_quotes_stay_one_literal(monkeypatch: pytest.MonkeyPatch) -> None:
    about, _ = document(captured(monkeypatch, function, jnp.ones(3)))
    flags = "--xla_dump_to=\"'; raise SystemExit('"
    text = script({**about, "flags": flags}, origin="", seen="", repeats=1, moves=False)
    assert f'os.environ["XLA_FLAGS"] = {flags!a}' in text
    compile(text, "reproduce.py", "exec")
