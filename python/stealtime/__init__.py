"""Where the time of virtual machines goes on a KVM host, and what gives it back.

Times are integers in ns. Tables and events are Arrow: Polars, pyarrow, DuckDB and pandas take them.

>>> import stealtime
>>> recording = stealtime.open("trace.dat.zst")
>>> [finding.id for finding in recording.analyze().findings]
>>> recording.whatif({"kvm.halt_poll_ns": 0})["variants"]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stealtime._native import Error, Events, Table, __version__
from stealtime._options import Path, Progress, Setting
from stealtime._recording import Analysis, Finding, PartialRecordingWarning, Recording
from stealtime._runs import analyze, event_columns, merge, rebalance, simulate, sweep

__all__ = [
    "Analysis",
    "Error",
    "Events",
    "Finding",
    "PartialRecordingWarning",
    "Path",
    "Progress",
    "Recording",
    "Setting",
    "Table",
    "__version__",
    "analyze",
    "event_columns",
    "merge",
    "open",
    "rebalance",
    "simulate",
    "sweep",
]


def open(
    path: Path,
    *,
    tsc_khz: int | None = None,
    formats_from: Path | None = None,
    vm_of: Mapping[str, str | Iterable[int]] | None = None,
    snapshot: Path | None = None,
) -> Recording:
    """A recording: trace.dat of trace-cmd, perf.data or ftrace text; plain or in zstd, xz or gzip.

    :param path: the file. It is read when it is asked something, each time from the beginning.
    :param tsc_khz: the TSC's frequency in kHz, for a recording with the clock x86-tsc.
    :param formats_from: a recording of the same boot, for a perf.data file that lost its event formats.
    :param vm_of: threads of VMs: ``{"web": [101, 102], "db": "pid:181"}``.
    :param snapshot: the host's snapshot, for a recording without one.
    """
    return Recording(path, tsc_khz=tsc_khz, formats_from=formats_from, vm_of=vm_of, snapshot=snapshot)
