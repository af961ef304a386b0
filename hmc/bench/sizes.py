"""Sizes as people write them: 8, 64K, 1M, 4096x16K."""

from __future__ import annotations

import re

__all__ = ["format_size", "parse_blocks", "parse_size", "parse_sizes"]

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MOST = (1 << 63) - 1
DEFAULT = "8,1K,8K,64K,256K,1M,4M,16M,64M,256M"


def parse_size(text: str) -> int:
    """Bytes of "64K" and the like (powers of 1024). Raises ValueError for anything else."""
    bare = text.strip().upper().removesuffix("IB").removesuffix("B")
    number, unit = (bare[:-1], bare[-1]) if bare and bare[-1] in UNITS else (bare, "")
    if not re.fullmatch("[0-9]{1,19}", number) or int(number) == 0:
        raise ValueError(f"{text[:32]!r} is not a size such as 8, 64K or 1M")
    size = int(number) * UNITS[unit]
    if size > MOST:
        raise ValueError(f"{text!r} is more than 2**63 - 1 bytes")
    return size


def parse_sizes(text: str) -> list[int]:
    """A comma-separated list of sizes; empty means the default sweep."""
    return [parse_size(part) for part in (text or DEFAULT).split(",")]


def parse_blocks(text: str) -> list[tuple[int, int]]:
    """(count, bytes of a block) pairs of "4096x16K,16384x4K"."""
    pairs = []
    for part in text.split(","):
        count, by, block = part.lower().partition("x")
        if not by or not re.fullmatch("[0-9]{1,9}", count) or int(count) == 0:
            raise ValueError(f"{part[:32]!r} is not of the form COUNTxSIZE, such as 4096x16K")
        pairs.append((int(count), parse_size(block)))
    return pairs


def format_size(size: int) -> str:
    """The shortest exact form: 8 B, 64 KiB, 1 MiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"
