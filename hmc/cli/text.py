"""What the commands print: lines that fit the terminal, and data as JSON."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["entry", "mib", "paragraph", "width", "write_json", "writing"]


def width() -> int:
    """Columns of a line: those of the terminal (or of ``COLUMNS``), 80 where there is none."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def paragraph(text: str, first: str = "", rest: str = "") -> str:
    """``text`` in lines of at most :func:`width` columns; ``first`` and ``rest`` stand before the first line and the others."""
    return textwrap.fill(
        text, width(), initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def entry(label: str, text: str, column: int) -> str:
    """A row of a list: ``label``, then ``text`` from ``column`` on, wrapped below itself."""
    first = f"  {label}".ljust(column - 1) + " "
    words = text.split()
    if not words or len(words[0]) > width() - column:  # the first word does not fit beside the label
        return f"{first.rstrip()}\n{paragraph(text, ' ' * 6, ' ' * column)}".rstrip()
    return paragraph(text, first, " " * column)


def mib(size: int) -> str:
    """An amount in MiB, the one unit of amounts in a report: "16.0 MiB"."""
    return f"{size / 2**20:.1f} MiB"


@contextmanager
def writing(file: str) -> Iterator[None]:
    """Has an error of a full disk, which names no file, name ``file``."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or file
        raise


def write_json(data: Any, file: str) -> None:
    """Writes ``data`` to ``file``; "-" is standard output."""
    text = json.dumps(data, indent=2)
    if file == "-":
        print(text)
    else:
        with writing(file):
            Path(file).write_text(text + "\n")
