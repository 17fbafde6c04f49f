"""Sweeps and fleets on a cluster of three nodes, one of which is killed in the middle."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster

import stealtime
import stealtime.ray

TOP = Path(__file__).resolve().parents[2]
SCENARIO = TOP / "scenarios" / "halt-polling.toml"
VARY = {"kvm.halt_poll_ns": [0, "50us", "200us"], "run.seeds": 30}
HOW = {"variant": "polling", "duration": "200ms"}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, logging_level="error")
    assert ray.cluster_resources()["CPU"] == 3
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def kill_a_node(cluster: Cluster, after: float) -> threading.Thread:
    def kill() -> None:
        time.sleep(after)
        cluster.remove_node(list(cluster.worker_nodes)[-1], allow_graceful=False)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def test_a_sweep_outlives_a_node(cluster: Cluster, tmp_path: Path) -> None:
    begin = time.monotonic()
    stealtime.sweep(SCENARIO, VARY, tmp_path / "local", jobs=1, yes=True, **HOW)
    took = time.monotonic() - begin
    killed = kill_a_node(cluster, took / 4)
    summary = stealtime.ray.sweep(SCENARIO, VARY, tmp_path / "cluster", shards=12, **HOW)
    killed.join()
    assert summary["runs"] == 90
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2
    results = [(tmp_path / name / "results.parquet").read_bytes() for name in ("local", "cluster")]
    assert results[0] == results[1]


def test_a_fleet_is_that_of_one_machine(cluster: Cluster, tmp_path: Path) -> None:
    assert cluster
    recordings = sorted((TOP / "tests" / "data" / "live").rglob("trace.dat.zst"))
    stealtime.analyze(recordings, tmp_path / "local")
    summary = stealtime.ray.analyze(recordings, tmp_path / "cluster", tasks=3)
    assert summary["failed"] == 0
    names = sorted(file.name for file in (tmp_path / "local").glob("*.parquet"))
    assert len(names) > 20
    for name in names:
        assert (tmp_path / "local" / name).read_bytes() == (tmp_path / "cluster" / name).read_bytes(), name
