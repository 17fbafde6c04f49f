"""Simulated hosts, sweeps, and the tables of many recordings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from stealtime import _native
from stealtime._options import Options, Path, Progress, Setting, mapping, number, path, several, text
from stealtime._options import progress as checked_progress


def simulate(
    scenario: Path,
    set: Mapping[str, Setting] | None = None,
    *,
    variant: str | Iterable[str] | None = None,
    seeds: int | None = None,
    duration: str | None = None,
    trace: Path | None = None,
    of: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Runs a scenario's variants side by side: the JSON of ``stealtime simulate``, docs/json-commands.md.

    :param scenario: a file as of docs/scenarios.md.
    :param set: knobs with their values, in all variants that do not set them.
    :param variant: only these variants.
    :param seeds: how many seeds, instead of the scenario's.
    :param duration: measured time of a run (``"500ms"``), instead of the scenario's.
    :param trace: write one more run, with the first seed, as a trace.dat for :func:`stealtime.open`.
    :param of: the variant of that run; without it the first one.
    :param jobs: runs at a time; without it as many as there are CPUs.
    :param progress: called with ``"simulate"``, the runs that are finished, and of how many.
    :raises stealtime.Error: the scenario or a knob cannot be used, or a run fails.
    """
    options = Options("simulate", path("scenario", scenario), "--format=json")
    options.add("--trace", "trace", trace, path)
    options.add("--of", "of", of, text)
    _runs(options, set, variant, seeds, duration, jobs)
    return _json(options, progress)


def sweep(
    scenario: Path,
    vary: Mapping[str, str | Iterable[Setting]],
    out: Path,
    *,
    set: Mapping[str, Setting] | None = None,
    variant: str | Iterable[str] | None = None,
    seeds: int | None = None,
    duration: str | None = None,
    jobs: int | None = None,
    shard: str | None = None,
    metric: str | Iterable[str] | None = None,
    restart: bool = False,
    yes: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Runs a grid of knobs to ``results.parquet`` in a folder; the same call goes on where it was stopped.

    :param scenario: a file as of docs/scenarios.md.
    :param vary: the values of each knob or size, or the command's text: ``{"host.cpus": "4..16*2"}``.
    :param out: the folder.
    :param set: knobs with their values, in all variants that do not set them.
    :param variant: only these variants.
    :param seeds: how many seeds, instead of the scenario's.
    :param duration: measured time of a run (``"500ms"``), instead of the scenario's.
    :param jobs: runs at a time; without it as many as there are CPUs.
    :param shard: run one of N parts, ``"K/N"``; :func:`merge` makes the whole of them.
    :param metric: columns of the results to sum up.
    :param restart: delete what a sweep has written to the folder.
    :param yes: begin even if it takes more than an hour.
    :param progress: called with ``"sweep"``, the runs that are finished, and of how many.
    :returns: the JSON of ``stealtime sweep``: docs/json-commands.md.
    :raises stealtime.Error: a point of the grid is refused, the folder is another sweep's, or a run fails.
    """
    options = Options("sweep", path("scenario", scenario), "--format=json")
    options.variations("vary", mapping("vary", vary))
    options.words.append(f"--out={path('out', out)}")
    _runs(options, set, variant, seeds, duration, jobs)
    options.add("--shard", "shard", shard, text)
    options.add("--metric", "metric", metric, text)
    options.flag("--restart", "restart", restart)
    options.flag("--yes", "yes", yes)
    return _json(options, progress)


def merge(
    folders: Iterable[Path],
    out: Path,
    *,
    metric: str | Iterable[str] | None = None,
    restart: bool = False,
) -> dict[str, Any]:
    """One sweep of the folders of its shards; its results are the bytes of a sweep in one piece.

    :param folders: the shards' folders, in any order.
    :param out: the folder of the whole.
    :param metric: columns of the results to sum up.
    :param restart: delete what a sweep has written to the folder.
    :returns: the JSON of ``stealtime sweep merge``.
    :raises stealtime.Error: runs are missing, folders are of other sweeps, or a run has two results.
    """
    options = Options("sweep", "merge", *several("folders", folders, path), "--format=json")
    options.words.append(f"--out={path('out', out)}")
    options.add("--metric", "metric", metric, text)
    options.flag("--restart", "restart", restart)
    return _json(options, None)


def analyze(
    recordings: Path | Iterable[Path],
    out: Path,
    *,
    key: str | Iterable[str] | None = None,
    jobs: int | None = None,
    restart: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Writes the tables of many recordings to a folder, a Parquet file each: docs/fleet.md.

    :param recordings: the files. Those that the folder has, unchanged, are not read.
    :param out: the folder.
    :param key: only these tables.
    :param jobs: recordings at a time; without it as many as there are CPUs.
    :param restart: forget what the folder has.
    :param progress: called with ``"recordings"``, those that are finished, and of how many.
    :returns: the JSON of ``stealtime analyze --out``: the folder, its tables, how many recordings failed.
    :raises stealtime.Error: the folder cannot be used. Recordings that cannot be read are rows of ``errors``.
    """
    options = Options("analyze", *several("recordings", recordings, path), "--format=json")
    options.words.append(f"--out={path('out', out)}")
    options.add("--key", "key", key, text)
    options.add("--jobs", "jobs", jobs, number)
    options.flag("--restart", "restart", restart)
    try:
        return _json(options, progress)
    except _native.Error as error:
        # Status 1: the tables are there, and lack what could not be read.
        if error.status != 1:
            raise
        document: dict[str, Any] = json.loads(error.output)
        return document


def rebalance(
    recordings: Iterable[Path],
    limit: str | Iterable[str] | None = None,
    *,
    seeds: int | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Which VMs to move between hosts: the JSON of ``stealtime fit --rebalance``, docs/json-commands.md.

    :param recordings: a recording of each host, two or more.
    :param limit: what must hold on each host: ``"ready<5%"``, ``"db.wakeup.p99<2ms"``.
    :param seeds: replays of a host that is near a limit, from 2 on; 5 without it.
    :param jobs: replays at a time; without it as many as there are CPUs.
    :param progress: called with ``"fit"``, the replays that are finished, and ``None``.
    :raises stealtime.Error: a recording cannot be replayed, or two are of one host.
    """
    options = Options("fit", *several("recordings", recordings, path), "--rebalance", "--format=json")
    options.add("--limit", "limit", limit, text)
    options.add("--seeds", "seeds", seeds, number)
    options.add("--jobs", "jobs", jobs, number)
    return _json(options, progress)


def event_columns() -> dict[str, list[str]]:
    """Columns of :meth:`Recording.events`, and the tracepoints that have a value there; none: all have."""
    return dict(_native.event_columns())


def _runs(
    options: Options, knobs: object, variant: object, seeds: object, duration: object, jobs: object
) -> None:
    options.settings("--set", "set", knobs)
    options.add("--variant", "variant", variant, text)
    options.add("--seeds", "seeds", seeds, number)
    options.add("--duration", "duration", duration, text)
    options.add("--jobs", "jobs", jobs, number)


def _json(options: Options, progress: Progress | None) -> dict[str, Any]:
    printed = _native.run(options.words, checked_progress(progress))
    document: dict[str, Any] = json.loads(printed)
    return document
