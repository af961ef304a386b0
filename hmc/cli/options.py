"""Values of options: numbers, sizes, and files that can be written."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path

__all__ = ["count", "demo_picture", "picture", "size", "writable_file"]

DEMO_PICTURE = "hmc-demo.png"


def writable_file(text: str) -> str:
    """A file to write: refused before the work is done, not after. "-" is standard output."""
    if text in ("", "-"):
        return text
    try:
        file = os.path.realpath(text)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: the working directory cannot be used: {error.strerror}") from None
    folder = os.path.dirname(file)
    if not os.path.isdir(folder):
        raise argparse.ArgumentTypeError(f"there is no folder {folder}")
    if os.path.isdir(file):
        raise argparse.ArgumentTypeError(f"{text} is a folder")
    try:
        os.stat(text)
    except FileNotFoundError:
        file = folder  # where it will be made
    except OSError as error:  # a loop of links, a long name
        raise argparse.ArgumentTypeError(f"{text} cannot be written: {error.strerror}") from None
    if not os.access(file, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written: permission denied")
    return text


def picture(text: str) -> str:
    """A file to draw, .png or .svg; empty for none."""
    if text and Path(text).suffix not in {".png", ".svg"}:
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .png or .svg")
    return writable_file(text)


def demo_picture(asked: str | None) -> str:
    """The file of a demo that draws one; empty for none. ``asked`` is the value of ``--picture``, None where it was not given.

    Raises:
        ValueError: the default file cannot be written.
    """
    if asked is not None:
        return asked
    try:
        return picture(DEMO_PICTURE)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{error}; name another file by --picture, or '' for none") from None


def count(smallest: int, largest: int = 1 << 20) -> Callable[[str], int]:
    """A whole number from ``smallest`` to ``largest``."""

    def parse(text: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", text) or not smallest <= int(text) <= largest:
            raise argparse.ArgumentTypeError(f"{text[:32]!r} is not a whole number from {smallest} to {largest}")
        return int(text)

    return parse


def size(text: str) -> int:
    """Bytes of "64K"."""
    from hmc.bench.sizes import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
