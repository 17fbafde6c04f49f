"""A recording: its events, its answers, its replays."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from stealtime import _native
from stealtime._options import (
    Options,
    Path,
    Progress,
    Setting,
    mapping,
    number,
    path,
    several,
    switch,
    text,
)
from stealtime._options import (
    progress as checked_progress,
)

Value = Union[str, int, bool]
"""A value of a column of events."""


class PartialRecordingWarning(UserWarning):
    """A recording is cut short or damaged; the answers are of what was read."""


@dataclass(frozen=True)
class Finding:
    """Something to look at. docs/analyze-findings.md has all of them."""

    id: str
    """A stable name: ``steal``, ``polls_wasted``, ``vcpus_stacked`` …"""
    vm: str
    """The VM it is about; empty: the host."""
    vm_guessed: bool
    """Whether the recording does not name that VM, so that its threads are a guess."""
    what: str
    """The finding."""
    evidence: str
    """The numbers that show it."""
    next: str
    """What to look at or change."""
    remedy: Mapping[str, Any] | None = field(default=None, compare=False)
    """The knob that remedies it, and the commands that set it on the host; ``None``: no setting does."""


class Analysis:
    """Where the time of a recording's VMs goes: tables, findings, and the JSON of the command."""

    def __init__(self, tables: dict[str, _native.Table], document: bytes, cut: str | None) -> None:
        self.tables = tables
        """Each table by its name (``time``, ``ready``, ``exits``, ``latency`` …), as Arrow.

        Columns are the keys of docs/json.md. Times are integers in ns. What a recording does not show is
        null. ``source`` has the recording's properties, ``histograms`` the distributions of docs/fleet.md."""
        self.cut = cut
        """Why less was read than was recorded; ``None``: all was read."""
        self._document = document

    @property
    def json(self) -> dict[str, Any]:
        """What ``stealtime analyze --format json`` prints: docs/json.md."""
        document: dict[str, Any] = json.loads(self._document)
        return document

    @property
    def findings(self) -> list[Finding]:
        """What to look at, most costly first."""
        return [Finding(**finding) for finding in self.json["findings"]]

    @property
    def decision(self) -> dict[str, Any]:
        """The one thing to do."""
        decision: dict[str, Any] = self.json["decision"]
        return decision

    def __getitem__(self, name: str) -> _native.Table:
        try:
            return self.tables[name]
        except KeyError:
            known = ", ".join(self.tables)
            raise KeyError(f"no table {name!r}: there are {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def __repr__(self) -> str:
        source = self.json["source"]
        return f"<stealtime.Analysis of {source['path']}: {len(self.findings)} findings>"


class Recording:
    """A recording on disk. Nothing of it is kept in memory."""

    def __init__(
        self,
        recording: Path,
        *,
        tsc_khz: int | None = None,
        formats_from: Path | None = None,
        vm_of: Mapping[str, str | Iterable[int]] | None = None,
        snapshot: Path | None = None,
    ) -> None:
        self.path = path("path", recording)
        """The file."""
        how = Options()
        how.add("--tsc-khz", "tsc_khz", tsc_khz, number)
        how.add("--formats-from", "formats_from", formats_from, path)
        self._how_to_read = how.words.copy()
        how.vms(vm_of)
        how.add("--snapshot", "snapshot", snapshot, path)
        self._how = how.words

    def __repr__(self) -> str:
        return f"stealtime.open({self.path!r})"

    def events(
        self,
        columns: Iterable[str] | None = None,
        where: Mapping[str, Value | Iterable[Value]] | None = None,
        *,
        from_: str | None = None,
        until: str | None = None,
        batch_rows: int = 65_536,
        partial: bool = False,
    ) -> _native.Events:
        """The events in the order of time, as a stream of Arrow's record batches.

        The result has ``__arrow_c_stream__``: give it to ``polars.DataFrame``, ``pyarrow.table``,
        ``pyarrow.RecordBatchReader.from_stream`` or DuckDB. Each consumer reads the file from the beginning,
        and a batch at a time is in memory.

        Every event has ``time_ns`` (ns of the recording's clock), ``cpu``, ``tid`` (of the current task),
        ``task`` (its name) and ``event`` (the tracepoint). Fields of tracepoints have names that the kernel
        gives or prints; :func:`stealtime.event_columns` lists them. Events that were lost are rows of
        ``lost_events``, with their number in ``lost`` (0: not known).

        :param columns: the columns; without it the five above, and those of the tracepoints in ``where``.
        :param where: for columns, a value of the column's type or several:
            ``{"event": "kvm_exit", "cpu": [0, 1]}``.
        :param from\\_: from this time on: ``"1.5s"`` after the first event, ``"@1580.5"`` of the clock.
        :param until: up to this time, without it.
        :param batch_rows: rows of a batch, at most.
        :param partial: give what comes before damage instead of an error; ``notes`` of the result has it.
        :raises stealtime.Error: when a consumer begins, if the recording cannot be read.
        :raises TypeError: no value of a column can be the one in ``where``.
        :raises ValueError: no such column.
        """
        options = Options(self.path, *self._how_to_read)
        options.add("--from", "from_", from_, text)
        options.add("--until", "until", until, text)
        names = None if columns is None else several("columns", columns, text)
        conditions = {
            column: several(f"where[{column!r}]", values, _value)
            for column, values in mapping("where", {} if where is None else where).items()
        }
        rows = number("batch_rows", batch_rows)
        if rows < 1:
            raise ValueError(f"batch_rows: {rows} is not positive")
        return _native.Events(options.words, names, conditions, rows, switch("partial", partial))

    def analyze(
        self,
        *,
        vm: str | Iterable[str] | None = None,
        vcpu: int | Iterable[int] | None = None,
        cpu: int | Iterable[int] | None = None,
        from_: str | None = None,
        until: str | None = None,
        longer_than: str | None = None,
        top: int | None = None,
        progress: Progress | None = None,
    ) -> Analysis:
        """Where the time of the VMs goes. The parameters are the options of ``stealtime analyze``.

        :param vm: only these VMs.
        :param vcpu: only vCPUs of these numbers.
        :param cpu: only events on these host CPUs.
        :param from\\_: from this time on: ``"1.5s"`` after the first event, ``"@1580.5"`` of the clock.
        :param until: up to this time, without it.
        :param longer_than: count waits longer than this (``"5ms"``).
        :param top: how many of the longest waits are found, 1 to 1000.
        :param progress: called with ``"reading"``, the bytes that are read, and of how many.
        :raises stealtime.Error: the recording cannot be read, or lacks what is selected.
        """
        options = Options(self.path, *self._how)
        options.add("--vm", "vm", vm, text)
        options.add("--vcpu", "vcpu", vcpu, number)
        options.add("--cpu", "cpu", cpu, number)
        options.add("--from", "from_", from_, text)
        options.add("--until", "until", until, text)
        options.add("--longer-than", "longer_than", longer_than, text)
        options.add("--top", "top", top, number)
        tables, document, cut = _native.analyze(options.words, checked_progress(progress))
        if cut is not None:
            warnings.warn(cut, PartialRecordingWarning, stacklevel=2)
        return Analysis(tables, document, cut)

    def whatif(
        self,
        set: Mapping[str, Setting] | None = None,
        *,
        vary: Mapping[str, str | Iterable[Setting]] | None = None,
        pin: Mapping[str, str] | None = None,
        with_: str | Iterable[str] | None = None,
        auto: bool = False,
        seen: Path | Iterable[Path] | None = None,
        again: Path | Iterable[Path] | None = None,
        export: Path | None = None,
        host: Path | None = None,
        seeds: int | None = None,
        jobs: int | None = None,
        yes: bool = False,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Replays the recording with changes: the JSON of ``stealtime whatif``, docs/json-commands.md.

        :param set: knobs with their values, all at once: ``{"kvm.halt_poll_ns": 0}``.
        :param vary: a variant for each value of a knob; several knobs are a grid.
        :param pin: CPUs of vCPUs, VMs and tasks: ``{"vm0": "1:1 0-3"}``.
        :param with\\_: add VMs of other recordings: ``"other.dat:db"``, or ``"other.dat:db=db2"`` for its
            name on this host. ``set={"vm.db.count": 2}`` says how many of it.
        :param auto: try what the findings suggest, and rank it.
        :param seen: recordings made with the change. ``seen`` of the result has their figures next to the
            predicted ones.
        :param again: further recordings without the change, for the spread of ``seen``.
        :param export: write the recording and its replays as one Perfetto trace; into a folder (existing, or
            ending in ``/``) also each replay as a trace.dat. ``exported`` of the result names the files.
        :param host: a file with settings of the recorded host.
        :param seeds: replays of each variant, from 2 on; 5 without it.
        :param jobs: replays at a time; without it as many as there are CPUs.
        :param yes: begin even if it takes more than an hour.
        :param progress: called with what is done, replays that are finished, and of how many.
        :raises stealtime.Error: the recording cannot be replayed, or what is asked not answered.
        """
        options = Options("whatif", self.path, *self._how)
        options.variations("vary", vary)
        options.add("--with", "with_", with_, _added)
        options.flag("--auto", "auto", auto)
        options.add("--seen", "seen", seen, path)
        options.add("--again", "again", again, path)
        options.add("--export", "export", export, path)
        options.flag("--yes", "yes", yes)
        _replayed(options, set, pin, host, seeds, jobs)
        return _document(options, progress)

    def fit(
        self,
        add: str | Iterable[str] | None = None,
        limit: str | Iterable[str] | None = None,
        *,
        with_: str | Iterable[str] | None = None,
        move: int | None = None,
        set: Mapping[str, Setting] | None = None,
        pin: Mapping[str, str] | None = None,
        host: Path | None = None,
        seeds: int | None = None,
        jobs: int | None = None,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """How many more VMs fit, or which to take away: the JSON of ``stealtime fit``, docs/json-commands.md.

        :func:`stealtime.rebalance` says which VMs to move between hosts.

        :param add: count these VMs, each by itself; without it each VM, and the mix of all.
        :param limit: what must hold: ``"ready<5%"``, ``"db.wakeup.p99<2ms"``.
        :param with\\_: count these VMs of other recordings, each by itself: ``"other.dat:db"``, or
            ``"other.dat:db=db2"`` for its name on this host.
        :param move: say which so many VMs to take away instead.
        :param set: knobs that are taken for changed.
        :param pin: tasks that are taken for bound to CPUs.
        :param host: a file with settings of the recorded host.
        :param seeds: replays of a count that is near a limit, from 2 on; 5 without it.
        :param jobs: replays at a time; without it as many as there are CPUs.
        :param progress: called with ``"fit"``, the replays that are finished, and ``None``.
        :raises stealtime.Error: the recording cannot be replayed, or what is asked not answered.
        """
        options = Options("fit", self.path, *self._how)
        options.add("--add", "add", add, text)
        options.add("--limit", "limit", limit, text)
        options.add("--with", "with_", with_, _added)
        options.add("--move", "move", move, number)
        _replayed(options, set, pin, host, seeds, jobs)
        return _document(options, progress)

    def to_perfetto(
        self,
        output: Path,
        *,
        vm: str | Iterable[str] | None = None,
        cpu: int | Iterable[int] | None = None,
        from_: str | None = None,
        until: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Writes a trace for Perfetto: tracks of host CPUs and vCPUs.

        :param output: the file, which is there whole or not at all.
        :param vm: only tracks of these VMs.
        :param cpu: only tracks of these host CPUs.
        :param from\\_: from this time on: ``"1.5s"`` after the first event, ``"@1580.5"`` of the clock.
        :param until: up to this time, without it.
        :param progress: called with what is done, the bytes that are read, and of how many.
        :raises stealtime.Error: the recording cannot be read, or the file not written.
        """
        options = Options("export", self.path, *self._how, "--to=perfetto")
        options.words.append(f"--output={path('output', output)}")
        options.add("--vm", "vm", vm, text)
        options.add("--cpu", "cpu", cpu, number)
        options.add("--from", "from_", from_, text)
        options.add("--until", "until", until, text)
        _native.run(options.words, checked_progress(progress))


def _added(name: str, value: object) -> str:
    """``FILE:VM``: its file is read as a file, whatever its name."""
    return path(name, text(name, value))


def _value(name: str, value: object) -> Value:
    if not isinstance(value, (str, int)):
        raise TypeError(f"{name}: expected a str, int or bool, not {type(value).__name__}")
    return value


def _replayed(
    options: Options, knobs: object, pin: object, host: object, seeds: object, jobs: object
) -> None:
    options.settings("--set", "set", knobs)
    options.settings("--pin", "pin", pin)
    options.add("--host", "host", host, path)
    options.add("--seeds", "seeds", seeds, number)
    options.add("--jobs", "jobs", jobs, number)


def _document(options: Options, progress: Progress | None) -> dict[str, Any]:
    printed = _native.run([*options.words, "--format=json"], checked_progress(progress))
    document: dict[str, Any] = json.loads(printed)
    if document["recording_partial"]:
        problem = f"{document['path']}: less was read than was recorded"
        warnings.warn(problem, PartialRecordingWarning, stacklevel=3)
    return document
