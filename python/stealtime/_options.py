"""Options of the command, from arguments of functions. A wrong type is a TypeError that names it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar, Union

Setting = Union[str, int, float, bool]
"""A value of a knob. Times are integers in ns, or texts with a unit: ``"200us"``."""
Path = Union[str, "os.PathLike[str]"]
Progress = Callable[[str, int, Union[int, None]], object]
"""Takes what is done (``"reading"``, ``"sweep"``), how much of it, and of how much (``None``: not known)."""

_T = TypeVar("_T")


def _wrong(name: str, expected: str, value: object) -> TypeError:
    return TypeError(f"{name}: expected {expected}, not {type(value).__name__}")


def text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(name, "a str", value)
    return value


def number(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(name, "an int", value)
    return value


def switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "a bool", value)
    return value


def path(name: str, value: object) -> str:
    """A file's path, which the command cannot take for an option, a list or standard input."""
    if not isinstance(value, (str, os.PathLike)):
        raise _wrong(name, "a str or os.PathLike", value)
    given = os.fspath(value)
    if not isinstance(given, str):
        raise _wrong(name, "a path of type str", given)
    return f"./{given}" if given.startswith(("-", "@")) else given


def setting(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, (str, int, float)):
        raise _wrong(name, "a str, int, float or bool", value)
    return str(value)


def several(name: str, value: object, one: Callable[[str, object], _T]) -> list[_T]:
    """One value, or an iterable of them."""
    if isinstance(value, (str, int, os.PathLike)) or not isinstance(value, Iterable):
        return [one(name, value)]
    return [one(f"{name}[{index}]", element) for index, element in enumerate(value)]


def mapping(name: str, value: object) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise _wrong(name, "a mapping", value)
    return {text(f"a key of {name}", key): element for key, element in value.items()}


def progress(value: object) -> Progress | None:
    if value is not None and not callable(value):
        raise _wrong("progress", "a callable", value)
    return value


class Options:
    """A command line."""

    def __init__(self, *words: str) -> None:
        self.words = list(words)

    def add(self, option: str, name: str, value: object, one: Callable[[str, object], object]) -> None:
        """An option for each value; ``None`` is none."""
        if value is not None:
            self.words += [f"{option}={element}" for element in several(name, value, one)]

    def flag(self, option: str, name: str, value: object) -> None:
        if switch(name, value):
            self.words.append(option)

    def settings(self, option: str, name: str, value: object) -> None:
        """``KNOB=VALUE`` for each knob."""
        if value is not None:
            for knob, element in mapping(name, value).items():
                self.words.append(f"{option}={knob}={setting(f'{name}[{knob!r}]', element)}")

    def variations(self, name: str, value: object) -> None:
        """``--vary KNOB=VALUE,VALUE`` for each knob; a text is one range or list as the command has it."""
        if value is None:
            return
        for knob, values in mapping(name, value).items():
            place = f"{name}[{knob!r}]"
            if isinstance(values, str):
                shown = values
            else:
                shown = ",".join(map(_listed, several(place, values, setting)))
            self.words.append(f"--vary={knob}={shown}")

    def vms(self, value: object) -> None:
        """``--vm-of NAME=THREADS``: thread ids, or ``pid:`` and ``cgroup:`` as the command has them."""
        if value is None:
            return
        for vm, threads in mapping("vm_of", value).items():
            place = f"vm_of[{vm!r}]"
            if isinstance(threads, str):
                shown = threads
            else:
                shown = ",".join(str(tid) for tid in several(place, threads, number))
            self.words.append(f"--vm-of={vm}={shown}")


def _listed(value: str) -> str:
    """A value in a list: with commas, or empty, it stands in quotes."""
    return f'"{value}"' if "," in value or not value else value
