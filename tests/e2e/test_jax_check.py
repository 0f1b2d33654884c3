"""`determinism check` on JAX programs: the verdict, the first divergence, its cause and its fix."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.checking import PROGRAMS, check_command, line, site_of
from tests.e2e.running import ENVIRONMENT


def checked(folder: Path, *words: str, options: tuple[str, ...] = ("--budget", "600")) -> dict[str, Any]:
    """Check the program and return the report."""
    command = [sys.executable, str(PROGRAMS / "compiled_by_xla" / "regression.py"), *words]
    return check_command(folder, command, options=options, environment=ENVIRONMENT).report


def test_a_seeded_program_is_the_same(tmp_path: Path) -> None:
    report = checked(tmp_path)
    assert report["verdict"] == "same"
    assert report["recorded"]["blind_spots"] == []
    assert report["recorded"]["records"] >= 13


MODELS = (
    "branched", "donated", "dropped", "for_each", "looped", "over devices", "plain", "recomputed", "scanned", "scattered",
)  # fmt: skip


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_with_a_compiled_step_is_the_same(name: str, tmp_path: Path) -> None:
    words = [sys.executable, str(PROGRAMS / "compiled_by_xla" / "models.py"), name]
    report = check_command(tmp_path, words, options=("--runs", "2"), environment=ENVIRONMENT, exit_status=0).report
    assert (report["verdict"], report["recorded"]["blind_spots"]) == ("same", [])


def test_a_key_from_the_clock_is_found_and_its_fix_verified(tmp_path: Path) -> None:
    report = checked(tmp_path, "key")
    assert report["first_divergence"]["kind"] == "data"
    assert site_of(report) == ("compiled_by_xla/regression", line("compiled_by_xla/regression", "SITE key"))
    assert [(cause["id"], cause["status"]) for cause in report["causes"]] == [("seed-varies", "confirmed")]
    assert report["fixes"][0]["verified"]


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("seeds", ["int(time.time() * 1000)", "params=int(time.time() * 1000), dropout=1"])
def test_flax_streams_seeded_with_the_time_are_found(seeds: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import time, jax\nfrom flax import nnx\n"
        f"layer = nnx.Linear(4, 2, rngs=nnx.Rngs({seeds}))\nprint(layer(jax.numpy.ones((1, 4))))\n"
    )
    options = ("--budget", "600")
    report = check_command(tmp_path, [sys.executable, str(program)], options=options, environment=ENVIRONMENT).report
    assert [(cause["id"], cause["status"]) for cause in report["causes"]] == [("seed-varies", "confirmed")]
    assert [fix["verified"] for fix in report["fixes"]] == [True]


def test_a_batch_in_the_order_of_a_set_is_found(tmp_path: Path) -> None:
    report = checked(tmp_path, "order")
    assert [(cause["id"], cause["status"]) for cause in report["causes"]] == [("hash-order", "confirmed")]


@pytest.mark.thorough("jax")
def test_numpy_without_a_seed_is_found(tmp_path: Path) -> None:
    report = checked(tmp_path, "numpy")
    assert [(cause["id"], cause["status"]) for cause in report["causes"]] == [("seed-missing-numpy", "confirmed")]


def test_a_rate_compiled_into_the_program_is_an_argument(tmp_path: Path) -> None:
    report = checked(tmp_path, "rate", options=("--no-explain",))
    assert report["first_divergence"]["kind"] == "argument"
    assert report["first_divergence"]["op"] == "jax::jit(step)"
    assert report["first_divergence"]["inputs"] == []
    assert site_of(report) == ("compiled_by_xla/regression", line("compiled_by_xla/regression", "SITE step"))


def test_differing_data_is_named_by_its_path_in_the_arguments(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import time
        import jax, jax.numpy as jnp, numpy as np

        @jax.jit
        def step(parameters, batch, rate):
            loss = lambda weight: jnp.mean((batch["x"] @ weight - batch["y"]) ** 2)
            return {"weight": parameters["weight"] - rate * jax.grad(loss)(parameters["weight"])}

        parameters = {"weight": jnp.zeros((4, 2))}
        for number in range(3):
            x, y = np.ones((8, 4), np.float32), np.zeros((8, 2), np.float32)
            if number == 1:
                y[3:5] = time.time_ns() % 1000003
            parameters = step(parameters, {"x": x, "y": y}, 0.1)
        print(parameters["weight"].sum())
        """)
    )
    report = check_command(
        tmp_path, [sys.executable, str(program)], options=("--budget", "1"), environment=ENVIRONMENT
    ).report
    first = report["first_divergence"]
    assert (first["kind"], first["op"]) == ("data", "jax::jit(step)")
    (named,) = first["inputs"]
    assert (named["path"], named["dtype"], named["shape"]) == ("batch['y']", "float32", [8, 2])
    assert (named["elements_different"], named["extent"]) == (4, [[3, 4], [0, 1]])
    labels = [one["label"] for one in report["story"]]
    assert labels.index(f"input {named['position']}") < labels.index("output")
