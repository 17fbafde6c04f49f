"""Events as Arrow."""

from __future__ import annotations

import resource
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import CFS, LIVE, PERF

import stealtime


def table(events: stealtime.Events) -> pa.Table:
    return pa.table(events)


@pytest.mark.parametrize("path", [CFS, LIVE])
def test_counts_are_those_of_the_analysis(path: Path) -> None:
    recording = stealtime.open(path)
    counts = Counter(table(recording.events(["event"]))["event"].to_pylist())
    counted = pa.table(recording.analyze()["events"]).to_pylist()
    assert counts == {row["name"]: row["count"] for row in counted}
    # Tracepoints alone are decoded, and others counted.
    alone = table(recording.events(["time_ns", "vcpu"], {"event": "kvm_entry"}))
    assert alone.num_rows == counts["kvm_entry"]


def test_an_event_has_the_fields_of_its_tracepoint() -> None:
    events = stealtime.open(CFS).events(where={"event": "sched_switch"})
    assert events.columns == [
        "time_ns", "cpu", "tid", "task", "event",
        "prev_pid", "prev_prio", "prev_state", "next_pid", "next_prio",
    ]  # fmt: skip
    switches = table(events)
    assert switches["prev_pid"].to_pylist() == switches["tid"].to_pylist()
    assert "CPU 0/KVM" in switches["task"].to_pylist()
    times = switches["time_ns"].to_pylist()
    assert times == sorted(times)
    # On one CPU each switch begins with the task that the one before it chose.
    of_cpu = [row for row in switches.to_pylist() if row["cpu"] == 0]
    assert all(former["next_pid"] == row["prev_pid"] for former, row in zip(of_cpu, of_cpu[1:]))


def test_conditions_select_rows() -> None:
    recording = stealtime.open(CFS)
    exits = table(recording.events(["event", "reason", "cpu"], {"event": ["kvm_exit"]})).to_pylist()
    halts = table(recording.events(["reason"], {"reason": "hlt", "cpu": [0, 1]}))
    assert halts.num_rows == sum(row["reason"] == "hlt" and row["cpu"] in (0, 1) for row in exits) > 0
    assert table(recording.events(where={"cpu": 4711})).num_rows == 0
    whole = table(recording.events(["time_ns"]))["time_ns"].to_pylist()
    part = table(recording.events(["time_ns"], from_="200ms", until="300ms"))["time_ns"].to_pylist()
    assert part == [time for time in whole if 200_000_000 <= time - whole[0] < 300_000_000]


@pytest.mark.parametrize("path", [CFS, PERF])
def test_times_are_those_after_the_first_event_of_the_recording(path: Path) -> None:
    recording = stealtime.open(path)
    counts = Counter(table(recording.events(["event"], from_="100ms", until="300ms"))["event"].to_pylist())
    for name, count in counts.items():
        # Without the tasks' names, other tracepoints than this one are not decoded.
        part = recording.events(["time_ns"], {"event": name}, from_="100ms", until="300ms")
        assert table(part).num_rows == count, name


@pytest.mark.parametrize(
    ("from_", "until", "message"),
    [
        ("300ms", "100ms", "--until @48.866903510: not after --from; the recording spans @"),
        ("1580.5s", None, "--from @1629.266903510: after the last event; the recording spans @"),
        (None, "@7.5", "--until @7.500000000: before the first event; the recording spans @"),
    ],
)
def test_times_outside_of_the_recording_are_refused(
    from_: str | None, until: str | None, message: str
) -> None:
    recording = stealtime.open(CFS)
    with pytest.raises(ValueError, match=message):
        table(recording.events(from_=from_, until=until))
    with pytest.raises(stealtime.Error, match=message):
        recording.analyze(from_=from_, until=until)


def test_batches_have_few_rows_and_columns_of_their_own() -> None:
    events = stealtime.open(CFS).events(["cpu", "reason", "hrtimer", "waited"], batch_rows=1000)
    reader = pa.RecordBatchReader.from_stream(events)
    text = pa.dictionary(pa.int32(), pa.string())
    assert reader.schema.types == [pa.int64(), text, pa.uint64(), pa.bool_()]
    assert [batch.num_rows for batch in reader][:-1].count(1000) > 10


def test_memory_does_not_grow_with_the_recording() -> None:
    events = stealtime.open(CFS).events()
    first = None
    for _ in range(20):
        for _batch in pa.RecordBatchReader.from_stream(events):
            pass
        first = first or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - first < 20_000


def test_every_column_is_named() -> None:
    columns = stealtime.event_columns()
    assert columns["reason"] == ["kvm_exit"]
    assert columns["time_ns"] == []
    everything = table(stealtime.open(CFS).events(columns, batch_rows=100_000_000))
    assert everything.column_names == list(columns)
    counts = Counter(everything["event"].to_pylist())
    for column, tracepoints in columns.items():
        values = len(everything) - everything[column].null_count
        assert values <= sum(counts[name] for name in tracepoints or counts), column


def test_consumers_take_events() -> None:
    recording = stealtime.open(CFS)
    rows = table(recording.events()).num_rows
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(recording.events())
    assert frame.height == rows
    assert frame["event"].dtype in (polars.Categorical, polars.String)
    duckdb = pytest.importorskip("duckdb")
    reader = pa.RecordBatchReader.from_stream(recording.events())  # noqa: F841
    ((counted,),) = duckdb.sql("select count(*) from reader where event <> ''").fetchall()
    assert counted == rows
    pandas = pytest.importorskip("pandas")
    assert len(pandas.DataFrame.from_arrow(recording.events())) == rows


def test_damage_is_an_error_unless_a_part_is_wanted(tmp_path: Path) -> None:
    text = tmp_path / "x.dat.zst"
    text.write_bytes(LIVE.read_bytes()[:-2000])
    recording = stealtime.open(text)
    with pytest.raises(ValueError, match="cut short"):
        table(recording.events())
    events = recording.events(partial=True)
    assert table(events).num_rows > 1000
    assert events.notes


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "it's changed.txt"
    # More than a reader reads ahead: it does not get to the end before the change.
    lines = [f"sh-5 [000] ..... {1 + row // 10**6}.{row % 10**6:06}: late: 1\n" for row in range(150_000)]
    path.write_text("".join(lines))
    events = stealtime.open(path).events(batch_rows=1000)
    batches = iter(pa.RecordBatchReader.from_stream(events))
    assert next(batches).num_rows == 1000
    with path.open("a") as file:
        file.write("more")
    with pytest.raises(ValueError, match=r"it's changed\.txt: the file changed while it was read"):
        list(batches)
    with path.open("a") as file:
        file.truncate(path.stat().st_size - len("more"))
    assert table(events).num_rows == len(lines)


def test_wrong_columns_are_refused() -> None:
    recording = stealtime.open(CFS)
    with pytest.raises(ValueError, match='no column "colour" of events'):
        recording.events(["colour"])
    with pytest.raises(ValueError, match='no column "colour" of events'):
        recording.events(where={"colour": 1})
    with pytest.raises(ValueError, match="batch_rows: 0 is not positive"):
        recording.events(batch_rows=0)
