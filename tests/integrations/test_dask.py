"""Comparing on a Dask cluster gives the same report byte for byte, even if a worker dies."""

from __future__ import annotations

import os
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

from determinism.comparison.executors import pairs_over
from determinism.report.document import document, json_text
from determinism.session.check import compare, compare_over

STORED = Path(__file__).parents[1] / "golden" / "stored" / "ranks"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as found:
        yield found


def unpacked(name: str, folder: Path) -> list[Path]:
    with tarfile.open(STORED / name / "traces.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return sorted(path.parent for path in folder.rglob("manifest.json"))


@pytest.mark.parametrize("name", ["seed", "shards_bit"])
def test_a_cluster_gives_the_same_report(name: str, cluster: LocalCluster, tmp_path: Path) -> None:
    runs = unpacked(name, tmp_path)

    with pairs_over(1, cluster.scheduler_address) as pairs:
        found = compare_over(pairs, *runs)
    assert json_text(document(found)) == json_text(document(compare(*runs)))


def test_a_worker_that_dies_is_replaced(cluster: LocalCluster, tmp_path: Path) -> None:
    runs = unpacked("seed", tmp_path)
    with Client(cluster) as client:
        pids = list(client.run(os.getpid).values())
    os.kill(pids[0], signal.SIGKILL)

    with pairs_over(1, cluster.scheduler_address) as pairs:
        found = compare_over(pairs, *runs)
    assert json_text(document(found)) == json_text(document(compare(*runs)))
