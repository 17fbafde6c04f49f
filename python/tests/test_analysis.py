"""Tables and findings, against the JSON of the command."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import CFS, COMMAND, LIVE, recordings

import stealtime

# Tables with other names in the JSON.
KEYS = {
    "time": "vcpus",
    "latency": "latencies",
    "yield": "yields",
    "poll": "halt_polls",
    "vmm": "vmm_threads",
}


def rows(table: stealtime.Table) -> list[dict[str, Any]]:
    return pa.table(table).to_pylist()


def in_json(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    if name == "host":
        return document["host"]["cpus"]
    if name == "handling":
        return [
            {**{key: vcpu[key] for key in ("vm", "vm_guessed", "vcpu")}, **reason}
            for vcpu in document["vcpus"]
            for reason in vcpu["exit_ns_by_reason"]
        ]
    if name == "source":
        return [document["source"]]
    return document[KEYS.get(name, name.replace("-", "_"))]


def check(path: Path) -> str:
    """The numbers of each table are those of the JSON."""
    analysis = stealtime.open(path).analyze()
    for name in analysis:
        if name in ("histograms", "over-time"):
            continue
        table = analysis[name]
        expected = [
            {column: row.get(column) for column in table.columns} for row in in_json(analysis.json, name)
        ]
        assert rows(table) == expected, f"{path}: {name}"
    over_time = analysis.json["over_time"]
    steal = [ns for vm in over_time["vms"] for ns in vm["steal_ns"]]
    busy = [ns for cpu in over_time["cpus"] for ns in cpu["busy_ns"]]
    table = rows(analysis["over-time"])
    assert [row["steal_ns"] for row in table if row["vm"] is not None] == steal
    assert [row["busy_ns"] for row in table if row["vm"] is None] == busy
    waits = sum(row["count"] for row in analysis.json["waits"])
    assert sum(row["count"] for row in rows(analysis["histograms"]) if row["table"] == "waits") == waits
    return path.name


@pytest.mark.filterwarnings("ignore::stealtime.PartialRecordingWarning")
def test_tables_equal_the_json() -> None:
    paths = recordings()
    assert len(paths) > 5
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        assert len(list(threads.map(check, paths))) == len(paths)


def test_the_json_is_that_of_the_command() -> None:
    printed = subprocess.run([*COMMAND, "analyze", LIVE, "--json"], capture_output=True, check=True)
    assert stealtime.open(LIVE).analyze().json == json.loads(printed.stdout)


def test_findings_are_objects() -> None:
    analysis = stealtime.open(CFS).analyze()
    stacked = next(finding for finding in analysis.findings if finding.id == "vcpus_stacked")
    assert stacked.vm == "vm0"
    assert "while others were idle" in stacked.what
    assert "affinity" in stacked.next
    assert analysis.decision
    assert repr(analysis).startswith("<stealtime.Analysis of ")
    assert "rows" in repr(analysis["time"])


def test_a_selection_is_that_of_the_command() -> None:
    analysis = stealtime.open(CFS).analyze(vm="vm0", vcpu=[0], until="500ms")
    assert {(row["vm"], row["vcpu"]) for row in rows(analysis["time"])} == {("vm0", 0)}
    with pytest.raises(stealtime.Error, match="--vm absent: no such VM; there are vm0, vm1") as error:
        stealtime.open(CFS).analyze(vm="absent")
    assert error.value.status == 2


def test_a_recording_that_is_cut_short_says_so(tmp_path: Path) -> None:
    whole = CFS.read_bytes()
    cut = tmp_path / "it's cut.dat"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.warns(stealtime.PartialRecordingWarning, match="was it cut short"):
        analysis = stealtime.open(cut).analyze()
    assert analysis.json["source"]["partial"]
    assert analysis.cut in analysis.json["source"]["notes"]
    assert len(analysis["time"])
    with pytest.warns(stealtime.PartialRecordingWarning, match="less was read than was recorded") as warned:
        stealtime.open(cut).whatif({"host.hz": 1000}, seeds=2)
    assert warned[0].filename == __file__


@pytest.mark.parametrize("content", [b"", b"not a trace at all\x00\x01", b"\x17\x08\x44tracing6"])
def test_what_is_no_recording_is_refused_with_the_words_of_the_command(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "no trace.dat"
    path.write_bytes(content)
    with pytest.raises(stealtime.Error) as error:
        stealtime.open(path).analyze()
    with pytest.raises(stealtime.Error) as of_events:
        pa.table(stealtime.open(path).events())
    run = subprocess.run([*COMMAND, "analyze", path], capture_output=True, text=True, check=False)
    assert run.stderr == f"stealtime: {error.value}\n"
    assert str(of_events.value) == str(error.value)
    assert run.returncode == error.value.status == 2
