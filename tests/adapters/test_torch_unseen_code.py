"""Code that no dispatch mode sees is reported, and only if it is there."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

import pytest
import torch

import determinism
from determinism.frameworks.torch import native_library
from determinism.frameworks.torch.hooks import extensions
from determinism.trace.opening import open_trace


def _load(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, content: bytes) -> None:
    """Simulate a loaded extension module, since not every machine has a compiler."""
    module = ModuleType(name)
    module.__file__ = str(folder / f"{name}{EXTENSION_SUFFIXES[0]}")
    Path(module.__file__).write_bytes(content)
    monkeypatch.setitem(sys.modules, name, module)


def _blind_spots(folder: Path) -> list[tuple[str, str, int]]:
    (process,) = open_trace(folder).processes
    return [(spot["id"], spot["what"], spot["count"]) for spot in process.description["blind_spots"]]


def test_an_extension_linked_with_pytorch_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _load(monkeypatch, tmp_path, "fast_rotation", b"\x7fELF...libtorch_python.so\0...")
    # With PyTorch 2.6 and 2.8, the native recorder is among the loaded modules.
    _load(monkeypatch, tmp_path, native_library.MODULE, b"\x7fELF...libtorch_python.so\0...")
    _load(monkeypatch, tmp_path, "fast_parsing", b"\x7fELF...libc.so.6\0...")
    assert list(extensions()) == ["fast_rotation"]
    with determinism.record(tmp_path / "trace"):
        torch.ones(3).sum()
    assert _blind_spots(tmp_path / "trace") == [("extension", "extension module fast_rotation", 1)]


def test_an_ordinary_program_has_no_blind_spot(tmp_path: Path) -> None:
    with determinism.record(tmp_path / "trace"):
        torch.ones(3).sum()
    assert _blind_spots(tmp_path / "trace") == []


def test_each_replay_of_a_cuda_graph_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Graph:
        replays = 0

        def replay(self) -> None:
            self.replays += 1

        def capture_begin(self) -> None:
            raise AssertionError("nothing is captured here")

        capture_end = capture_begin

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    graph = Graph()
    with determinism.record(tmp_path / "trace"):
        graph.replay()
        graph.replay()
    graph.replay()
    assert graph.replays == 3
    assert _blind_spots(tmp_path / "trace") == [("cuda-graph", "replay of a CUDA graph", 2)]
