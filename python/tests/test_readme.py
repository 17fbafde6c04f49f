"""README.md of the package: its code runs, and prints what it quotes."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
BLOCKS = re.compile(r"```python\n(.*?)```\n(?:\n```\n(.*?)```)?", re.DOTALL)


def test_the_readme_prints_what_it_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TOP)
    monkeypatch.setenv("COLUMNS", "100")
    page = Path("python", "README.md")
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    shown = text
    for code, quoted in BLOCKS.findall(text):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        output = "".join(f"{line.rstrip()}\n" for line in printed.getvalue().rstrip().splitlines())
        shown = shown.replace(f"{code}```\n\n```\n{quoted}```", f"{code}```\n\n```\n{output}```")
    if os.environ.get("STEALTIME_BLESS"):
        page.write_text(shown, encoding="utf-8")
    assert text == shown
