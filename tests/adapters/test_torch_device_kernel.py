"""The kernel that digests tensors on a GPU, tested without one: it compiles, and is correct in Triton's interpreter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from determinism.frameworks.torch import device_digests
from tests.thorough import VARIABLE as THOROUGH

pytestmark = pytest.mark.triton
INTERPRETED = Path(__file__).with_name("interpreted_torch_device_kernel.py")


def test_the_interpreted_kernel_agrees_with_the_definition() -> None:
    # All tests, even if a part of the thorough tests was requested.
    environment = {name: value for name, value in os.environ.items() if name != THOROUGH}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(INTERPRETED)],
        env={**environment, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^{INTERPRETED.read_text().count('def test_') + 2} passed", done.stdout, re.MULTILINE), (
        done.stdout
    )


ALIGNED = [["tt.divisibility", 16]]
SIGNATURES = {
    "determinism_digest": ({"table": "*i64", "keys": "*i32", "slots": "*i64"}, {(at,): ALIGNED for at in range(3)}),
    "determinism_digest_one": (
        {**dict.fromkeys(("address", "length", "first_tile", "slot", "total"), "i64"), "keys": "*i32", "slots": "*i64"},
        None,
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernels_compile_for_gpus_and_read_sixteen_bytes_at_once(capability: int, name: str) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from determinism.frameworks.torch.device_digests import kernel

    types, aligned = SIGNATURES[name]
    source = ASTSource(fn=getattr(kernel, name), signature=types, constexprs={}, attrs=aligned)
    options = {"num_warps": 4, "enable_fp_fusion": False}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert "ld.global.v2.b64" in compiled.asm["ptx"]
    assert "atom" in compiled.asm["ptx"]


def test_triton_treats_addresses_like_tensors() -> None:
    from triton.backends.compiler import BaseBackend
    from triton.runtime.jit import native_specialize_impl

    tensor = torch.zeros(8, dtype=torch.int64)
    given = native_specialize_impl(BaseBackend, device_digests._Address(tensor), False, True, True)
    assert given == native_specialize_impl(BaseBackend, tensor, False, True, True)
