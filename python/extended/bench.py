"""Events to a Polars frame, next to pandas on the text of `trace-cmd report`; and next to `analyze` alone.

Prints the best of RUNS (3) runs in seconds, of the recordings that are named.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable

import pandas as pd
import polars as pl
import pyarrow as pa

import stealtime

RUNS = int(os.environ.get("RUNS", "3"))
LINE = re.compile(r"\s*(.+?)-(\d+)\s+\[(\d+)\]\s+(?:\S+\s+)?(\d+\.\d+):\s+([^:]+):\s*(.*)")


def best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def report(path: str) -> pd.DataFrame:
    """What a script does: the lines of the report, taken apart by an expression."""
    text = subprocess.run(["trace-cmd", "report", path], capture_output=True, text=True, check=True).stdout
    lines = pd.Series(text.splitlines())
    frame = lines.str.extract(LINE)
    frame.columns = ["task", "tid", "cpu", "seconds", "event", "fields"]
    return frame.dropna().astype({"tid": int, "cpu": int, "seconds": float})


def drained(events: stealtime.Events) -> int:
    return sum(batch.num_rows for batch in pa.RecordBatchReader.from_stream(events))


for path in sys.argv[1:]:
    recording = stealtime.open(path)
    rows = drained(recording.events())
    analyze = best(recording.analyze)
    arrow = best(lambda: drained(recording.events()))  # noqa: B023
    polars = best(lambda: pl.DataFrame(recording.events()))  # noqa: B023
    pandas = best(lambda: report(path))  # noqa: B023
    print(f"{path}: {rows} events")
    print(f"  analyze       {analyze:7.3f} s")
    print(f"  to Arrow      {arrow:7.3f} s, {analyze / arrow:.2f} times the speed of analyze")
    print(f"  to Polars     {polars:7.3f} s")
    print(f"  pandas, text  {pandas:7.3f} s, {pandas / polars:.0f} times as long as to Polars")
