"""hmc.spawn: an environment that is refused, classes that raise SystemExit where they are sent, and odd output."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import hmc


@pytest.mark.parametrize(
    ("environment", "kind", "words"),
    [
        ({"A": 1}, TypeError, "int: 'A'"),
        ({1: "a"}, TypeError, "int: 1"),
        ({"A": b"a"}, TypeError, "bytes: 'A'"),
        ("A=a", TypeError, "a mapping or None, not str"),
        ({"": "a"}, hmc.InvalidArgumentError, "environment: '' is empty"),
        ({"A=B": "a"}, hmc.InvalidArgumentError, "environment: 'A=B' is empty, or"),
        ({"A": "a\0"}, hmc.InvalidArgumentError, "environment: 'A' is empty, or"),
        ({"A": "\ud800"}, hmc.InvalidArgumentError, "environment: 'A' has a surrogate"),
    ],
)
def test_an_environment_that_cannot_be_is_named(environment: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        hmc.spawn(os.getpid, 1, environment=environment, timeout=60)


class Exits(Exception):
    """Ends the process that sends it."""

    def __reduce__(self) -> Any:
        raise SystemExit(0)


def raise_exits() -> None:
    raise Exits("the words")


def test_what_exits_where_it_is_sent_is_an_error() -> None:
    with pytest.raises(hmc.RankFailedError, match="Exits: the words"):
        hmc.spawn(raise_exits, 1, timeout=60)
    with pytest.raises(hmc.RankFailedError, match=r"the result of fn \(Exits\) cannot be sent: SystemExit\(0\)"):
        hmc.spawn(Exits, 1, timeout=60)
    with pytest.raises(hmc.InvalidArgumentError, match=r"argument 0 of fn \(Exits\) cannot be sent: SystemExit\(0\)"):
        hmc.spawn(print, 1, Exits(), timeout=60)


def test_a_last_line_without_an_end_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    hmc.spawn(os.write, 2, 1, b"words", timeout=60)
    assert sorted(out.getvalue().splitlines()) == ["[0] words", "[1] words"]


def test_characters_that_the_output_cannot_encode_are_escaped(tmp_path: Path) -> None:
    file = tmp_path / "log"
    environment = {"PYTHONIOENCODING": "utf-8"}
    with file.open("w", encoding="ascii") as out, contextlib.redirect_stdout(out):
        assert hmc.spawn(print, 1, "a \u2713", environment=environment, timeout=60) == [None]
    # The ranks' bytes are decoded by the locale, which may not know the character.
    assert file.read_text() in ("[0] a \\u2713\n", "[0] a \\xe2\\x9c\\x93\n")
