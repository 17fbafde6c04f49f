"""Sweeps and fleets on a cluster of three nodes, one of which is killed in the middle."""

from __future__ import annotations

import contextlib
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
HOW = {"variant": "polling", "duration": "1s"}
PATIENCE = 60
"""Seconds until a node has a shard, or is listed as dead."""


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


def runs_a_shard(raylet: int) -> bool:
    """Whether a worker of a node has a task: Ray shows it as the process's name."""
    for children in Path(f"/proc/{raylet}/task").glob("*/children"):
        for pid in children.read_text().split():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::_shard"):
                    return True
    return False


def kill_a_node(cluster: Cluster) -> threading.Thread:
    """Kills a node as soon as it works on a shard."""
    node = list(cluster.worker_nodes)[-1]
    (raylet,) = node.all_processes["raylet"]

    def kill() -> None:
        deadline = time.monotonic() + PATIENCE
        while not runs_a_shard(raylet.process.pid):
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
        cluster.remove_node(node, allow_graceful=False)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def wait_for_nodes(count: int) -> None:
    """Ray lists a node as dead some seconds after its tasks were begun again."""
    deadline = time.monotonic() + PATIENCE
    while (alive := sum(node["Alive"] for node in ray.nodes())) != count:
        assert time.monotonic() < deadline, alive
        time.sleep(0.1)


def test_a_sweep_outlives_a_node(cluster: Cluster, tmp_path: Path) -> None:
    stealtime.sweep(SCENARIO, VARY, tmp_path / "local", jobs=1, yes=True, **HOW)
    killed = kill_a_node(cluster)
    summary = stealtime.ray.sweep(SCENARIO, VARY, tmp_path / "cluster", shards=12, **HOW)
    killed.join()
    assert summary["runs"] == 90
    wait_for_nodes(2)
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
