"""What all tests share: the recordings."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
SCENARIOS = DATA.parents[1] / "scenarios"
LIVE = DATA / "live" / "plain" / "trace.dat.zst"
CFS = DATA / "traces" / "svm-cfs" / "trace.dat"
PERF = DATA / "traces" / "svm-perf-kvm-stat-hackbench-tlb-burst" / "perf.data.zst"
COMMAND = [sys.executable, "-m", "stealtime"]


def recordings() -> list[Path]:
    """Every recording of the tree, or below STEALTIME_TRACES."""
    folder = Path(os.environ.get("STEALTIME_TRACES") or DATA)
    found = (path for path in folder.rglob("*") if path.is_file() and "reference" not in path.parts)
    return sorted(path for path in found if {".dat", ".data"} & set(path.suffixes))


@pytest.fixture
def scenario() -> Path:
    return SCENARIOS / "halt-polling.toml"
