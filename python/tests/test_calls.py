"""Verbs as functions: types, errors, progress, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import CFS, COMMAND, LIVE, SCENARIOS

import stealtime


def test_a_scenario_is_simulated_with_progress(scenario: Path) -> None:
    steps: list[tuple[str, int, int | None]] = []
    result = stealtime.simulate(
        scenario,
        {"sched.base_slice_ns": 700_000},
        variant=["polling", "off"],
        seeds=3,
        duration="20ms",
        progress=lambda *step: steps.append(step),
    )
    assert result["seeds"]
    assert steps[-1][0] == "simulate"
    assert steps[-1][1] == steps[-1][2]


def test_shards_make_the_sweep(scenario: Path, tmp_path: Path) -> None:
    vary = {"kvm.halt_poll_ns": [0, "50us"], "run.seeds": 3}
    how = {"variant": "polling", "duration": "10ms"}
    stealtime.sweep(scenario, vary, tmp_path / "whole", **how)
    for shard in ("2/2", "1/2"):
        stealtime.sweep(scenario, vary, tmp_path / shard[0], shard=shard, **how)
    folders = [tmp_path / "1", tmp_path / "2"]
    merged = stealtime.merge(folders, tmp_path / "merged")
    assert merged["runs"] == 6
    results = [(tmp_path / name / "results.parquet").read_bytes() for name in ("whole", "merged")]
    assert results[0] == results[1]
    with pytest.raises(stealtime.Error, match="2/2"):
        stealtime.merge(folders[:1], tmp_path / "part")


def test_many_recordings_are_tables(tmp_path: Path) -> None:
    broken = tmp_path / "broken.dat"
    broken.write_bytes(b"no trace")
    summary = stealtime.analyze([LIVE, broken], tmp_path / "fleet", key="time")
    assert (summary["recordings"], summary["failed"]) == (2, 1)
    assert (tmp_path / "fleet" / "time.parquet").exists()


def test_a_replay_answers(tmp_path: Path) -> None:
    recording = stealtime.open(LIVE)
    document = recording.whatif({"kvm.halt_poll_ns": 0}, seeds=2)
    assert document["variants"]
    recording.to_perfetto(tmp_path / "a.pftrace", until="100ms")
    assert (tmp_path / "a.pftrace").stat().st_size > 1000
    with pytest.raises(stealtime.Error, match=r"no\.knob"):
        recording.whatif({"no.knob": 1})
    with pytest.raises(stealtime.Error, match="ready<x"):
        recording.fit(limit="ready<x")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Recordings of a host with halt polling, and without."""
    folder = tmp_path_factory.mktemp("simulated")
    files = [folder / f"{variant}.dat" for variant in ("polling", "off")]
    for file in files:
        how = {"variant": file.stem, "seeds": 1, "duration": "100ms"}
        stealtime.simulate(SCENARIOS / "halt-polling.toml", trace=file, of=file.stem, **how)
    return files


def test_a_prediction_stands_next_to_recordings_of_the_change(simulated: list[Path], tmp_path: Path) -> None:
    polling, off = simulated
    folder = tmp_path / "replays"
    folder.mkdir()
    recording = stealtime.open(polling)
    document = recording.whatif({"kvm.halt_poll_ns": 0}, seen=off, again=[polling], seeds=2, export=folder)
    assert document["seen"]["rows"][0]["spread"] == 0.0
    assert document["seen"]["refuted"] == 0
    names = [Path(file).name for file in document["exported"]]
    assert names == ["side-by-side.pftrace", "replayed.dat", "variant-1.dat"]
    replay = stealtime.open(folder / "variant-1.dat").analyze()
    assert len(replay["time"]) == len(recording.analyze()["time"])
    with pytest.raises(stealtime.Error, match="--set KNOB=VALUE or --pin"):
        recording.whatif(seen=off)


def test_vms_of_other_recordings_are_added(simulated: list[Path]) -> None:
    recording = stealtime.open(CFS)
    document = recording.whatif({"vm.db.count": 2}, with_=f"{LIVE}:db", seeds=2)
    vms = [vm["name"] for vm in document["variants"][0]["population"]["vms"]]
    assert vms == ["vm0", "vm1", "db", "db#2"]
    document = recording.fit(with_=[f"{LIVE}:db"], limit="ready<90%", seeds=2)
    assert [(curve["of"], curve["first"]) for curve in document["curves"]] == [("db", 0)]
    assert recording.fit(move=1, seeds=2)["removals"]
    with pytest.raises(stealtime.Error, match="expected FILE:VM"):
        recording.fit(with_="db")
    with pytest.raises(stealtime.Error, match="cannot be used with"):
        recording.fit("vm0", move=1)


def test_vms_are_moved_between_hosts(simulated: list[Path]) -> None:
    document = stealtime.rebalance(simulated, "ready<90%", seeds=2)
    assert document["is_balanced"]
    assert document["moves"] == []
    with pytest.raises(stealtime.Error, match="recordings of two hosts or more"):
        stealtime.rebalance([CFS])


def test_a_full_disk_is_an_error(scenario: Path, tmp_path: Path) -> None:
    # A limit on the size of files stands for the disk.
    program = f"""if True:
        import resource, signal, stealtime
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        for call in (
            lambda: stealtime.open({str(CFS)!r}).to_perfetto("trace"),
            lambda: stealtime.sweep({str(scenario)!r}, {{"run.seeds": 99}}, "runs", duration="1ms"),
            lambda: stealtime.analyze([{str(CFS)!r}], "fleet"),
        ):
            try:
                call()
            except stealtime.Error as error:
                print(error.status, str(error).partition("; ")[0])
    """
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    lines = run.stdout.splitlines()
    assert len(lines) == 3, run.stdout
    for line, file in zip(lines, ("trace", "runs/runs.journal", "fleet/parts/")):
        assert line.startswith(f"2 {file}"), line
        assert "File too large" in line, line
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: stealtime.open(7), "path: expected a str or os.PathLike, not int"),
        (lambda r: r.analyze(vm=3), "vm: expected a str, not int"),
        (lambda r: r.analyze(vcpu=["0"]), r"vcpu\[0\]: expected an int, not str"),
        (lambda r: r.analyze(vcpu=True), "vcpu: expected an int, not bool"),
        (lambda r: r.analyze(progress=3), "progress: expected a callable, not int"),
        (lambda r: r.events(columns=[1]), r"columns\[0\]: expected a str, not int"),
        (lambda r: r.events(where=["cpu"]), "where: expected a mapping, not list"),
        (lambda r: r.events(where={"cpu": "0"}), r"where\['cpu'\]: expected an int, not str"),
        (lambda r: r.events(where={"cpu": [0, True]}), r"where\['cpu'\]: expected an int, not bool"),
        (lambda r: r.events(where={"waited": 1}), r"where\['waited'\]: expected a bool, not int"),
        (lambda r: r.events(where={"reason": 120}), r"where\['reason'\]: expected a str, not int"),
        (lambda r: r.events(where={"cpu": 1.5}), r"where\['cpu'\]: expected a str, int or bool, not float"),
        (lambda r: r.whatif(["a"]), "set: expected a mapping, not list"),
        (lambda r: r.whatif({"a": None}), r"set\['a'\]: expected a str, int, float or bool, not NoneType"),
        (lambda r: r.whatif(auto=1), "auto: expected a bool, not int"),
        (lambda r: r.whatif(with_=CFS), "with_: expected a str, not PosixPath"),
        (lambda r: r.whatif(seen=[3]), r"seen\[0\]: expected a str or os.PathLike, not int"),
        (lambda r: r.fit(move="1"), "move: expected an int, not str"),
        (lambda r: r.fit(with_=3), "with_: expected a str, not int"),
        (lambda r: stealtime.rebalance([CFS, 3]), r"recordings\[1\]: expected a str or os.PathLike, not int"),
        (lambda r: r.to_perfetto(None), "output: expected a str or os.PathLike, not NoneType"),
        (lambda r: stealtime.sweep("a", 3, "b"), "vary: expected a mapping, not int"),
        (lambda r: stealtime.open("a", vm_of={"a": ["x"]}), r"vm_of\['a'\]\[0\]: expected an int, not str"),
    ],
)  # fmt: skip
def test_wrong_types_are_named(call: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call(stealtime.open(CFS))


def test_names_of_files_are_no_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("--help", "-", "@list"):
        (tmp_path / name).write_bytes(CFS.read_bytes())
        assert stealtime.open(name).analyze()["time"]


def test_ctrl_c_ends_the_work(scenario: Path) -> None:
    def press() -> None:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    # A shell's background job ignores the signal, and Python leaves it so.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    presses = threading.Thread(target=press)
    begin = time.monotonic()
    presses.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            stealtime.simulate(scenario, seeds=1000, duration="10s")
    finally:
        presses.join()
        signal.signal(signal.SIGINT, handler)
    assert time.monotonic() - begin < 20


def test_an_exception_of_the_callback_ends_the_work(scenario: Path) -> None:
    def fails(*_step: object) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        stealtime.simulate(scenario, seeds=1000, duration="100ms", progress=fails)


def test_threads_of_python_run_meanwhile() -> None:
    count = 0
    stop = threading.Event()

    def counts() -> None:
        nonlocal count
        while not stop.is_set():
            count += 1
            time.sleep(0.001)

    thread = threading.Thread(target=counts)
    thread.start()
    stealtime.open(CFS).analyze()
    stop.set()
    thread.join()
    assert count > 5


def test_the_command_is_in_the_package() -> None:
    version = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"stealtime {stealtime.__version__}\n"
    wrong = subprocess.run([*COMMAND, "analyse"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "unrecognized subcommand 'analyse'" in wrong.stderr
