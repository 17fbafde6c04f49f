"""Tables of many recordings: the query of docs/fleet.md, and folders of several machines."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import CFS, DATA, LIVE

import stealtime

RECORDINGS = [CFS, LIVE, DATA / "live" / "pins" / "trace.dat.zst"]
PAGE = DATA.parents[1] / "docs" / "fleet.md"


def percentile(counts: Counter[int], percent: int) -> int:
    """The first bucket at which so many counts are reached."""
    reached = 0
    for up_to_ns in sorted(counts):
        reached += counts[up_to_ns]
        if reached * 100 >= counts.total() * percent:
            return up_to_ns
    raise AssertionError(counts)


def test_the_query_for_percentiles_adds_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    stealtime.analyze(RECORDINGS, "fleet", key="waits")
    query = PAGE.read_text(encoding="utf-8").partition("```sql\n")[2].partition("```")[0]
    found = {vm: (p99_ms, waits) for vm, p99_ms, waits in duckdb.sql(query).fetchall()}
    merged: dict[str, Counter[int]] = defaultdict(Counter)
    for path in RECORDINGS:
        for row in pa.table(stealtime.open(path).analyze()["histograms"]).to_pylist():
            if row["table"] == "waits":
                merged[row["vm"]][row["up_to_ns"]] += row["count"]
    assert found.keys() == merged.keys()
    assert len(found) > 3
    for vm, counts in merged.items():
        p99_ms, waits = found[vm]
        assert waits == counts.total()
        assert p99_ms * 1e6 == pytest.approx(percentile(counts, 99))
    # Each machine has analyzed what it has; the rows are read together.
    for number, path in enumerate(RECORDINGS):
        stealtime.analyze(path, f"machines/{number}", key="waits")
    of_machines = query.replace("'fleet/histograms.parquet'", "'machines/*/histograms.parquet'")
    assert of_machines != query
    assert duckdb.sql(of_machines).fetchall() == duckdb.sql(query).fetchall()
