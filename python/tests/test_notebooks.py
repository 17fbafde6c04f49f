"""The notebooks run."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


def test_notebooks_run(tmp_path: Path) -> None:
    for package in ("altair", "marimo"):
        pytest.importorskip(package)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    # The recordings of the tree are enough.
    environment.pop("STEALTIME_TRACES", None)

    def run(notebook: Path) -> str:
        command = [sys.executable, notebook]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        return notebook.stem

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        names = sorted(threads.map(run, NOTEBOOKS.glob("*.py")))
    assert names == ["before_after", "fleet", "policies"]
