"""Sweeps and fleets on a Ray cluster: what goes to a worker is a shard, never a run.

When its worker dies, a task runs again on another one. Results are the bytes of the same call without Ray.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path as File
from typing import Any

import ray

from stealtime import _runs
from stealtime._options import Path, Setting, number, path, several

_RETRIES = 5
"""Workers that may die under one shard."""
_MANIFEST = "fleet.json"
"""What a folder of recordings is of."""


def sweep(
    scenario: Path,
    vary: Mapping[str, str | Iterable[Setting]],
    out: Path,
    *,
    shards: int,
    restart: bool = False,
    metric: str | Iterable[str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """A sweep in shards, which are tasks with one CPU each: :func:`stealtime.sweep`.

    :param scenario: a file that this process can read. Workers get its text.
    :param vary: the values of each knob or size.
    :param out: the folder of the whole sweep, on this machine.
    :param shards: how many tasks: some for each CPU of the cluster.
    :param restart: delete what a sweep has written to the folder.
    :param metric: columns of the results to sum up.
    :param options: ``set``, ``variant``, ``seeds`` and ``duration``.
    :returns: the JSON of ``stealtime sweep``.
    :raises stealtime.Error: a point of the grid is refused, or a run fails.
    """
    count = number("shards", shards)
    name = path("scenario", scenario)
    text = File(name).read_bytes()
    task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_shard)
    tasks = [task.remote(name, text, vary, f"{part}/{count}", options) for part in range(1, count + 1)]
    with tempfile.TemporaryDirectory(prefix="stealtime-") as folder:
        folders = []
        for part, files in enumerate(ray.get(tasks), start=1):
            place = File(folder, str(part))
            _write(place, files)
            folders.append(place)
        return _runs.merge(folders, out, metric=metric, restart=restart)


def _shard(
    name: str, text: bytes, vary: Mapping[str, Any], shard: str, options: Mapping[str, Any]
) -> dict[str, bytes]:
    """The files of one shard's folder."""
    with tempfile.TemporaryDirectory(prefix="stealtime-") as folder:
        scenario = File(name)
        # Without a shared file system the text is enough, unless it names a file of a machine.
        if not scenario.is_file() or scenario.read_bytes() != text:
            scenario = File(folder, scenario.name)
            scenario.write_bytes(text)
        out = File(folder, "out")
        _runs.sweep(scenario, vary, out, shard=shard, jobs=1, yes=True, **options)
        return _read(out)


def analyze(
    recordings: Path | Iterable[Path],
    out: Path,
    *,
    tasks: int | None = None,
    key: str | Iterable[str] | None = None,
) -> dict[str, Any]:
    """The tables of many recordings, which workers read where they lie: :func:`stealtime.analyze`.

    :param recordings: files on a file system that this process and the workers share.
    :param out: the folder, on this machine.
    :param tasks: how many tasks, with one CPU each; without it, one for each recording.
    :param key: only these tables.
    :returns: the JSON of ``stealtime analyze --out``.
    :raises stealtime.Error: the folder cannot be used.
    """
    paths = several("recordings", recordings, path)
    count = min(number("tasks", len(paths) if tasks is None else tasks), len(paths))
    task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_parts)
    place = File(path("out", out))
    if place.exists() and any(place.iterdir()) and not (place / _MANIFEST).exists():
        # The folder is refused, with the command's words.
        return _runs.analyze(paths, out, key=key)
    begun = [task.remote(paths[first::count], os.getcwd()) for first in range(count)]
    for files in ray.get(begun):
        if (place / _MANIFEST).exists():
            files.pop(_MANIFEST)
        _write(place, files)
    return _runs.analyze(paths, out, key=key)


def _parts(paths: list[str], working_folder: str) -> dict[str, bytes]:
    """What the folder of these recordings keeps of them."""
    with tempfile.TemporaryDirectory(prefix="stealtime-") as folder:
        # Paths mean what they mean to the caller, and rows name them so.
        os.chdir(working_folder)
        out = File(folder, "out")
        _runs.analyze(paths, out, key="time", jobs=1)
        return {name: content for name, content in _read(out).items() if not name.endswith(".parquet")}


def _read(folder: File) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(files)}


def _write(folder: File, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
