"""What a check of ``hmc doctor`` says."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BAD", "GOOD", "NOTE", "Finding"]

GOOD, NOTE, BAD = "ok", "note", "problem"


@dataclass
class Finding:
    """One check: ``level`` is ok, note (works, could be better) or problem; ``fix`` is empty when there is nothing to do."""

    name: str
    level: str
    found: str
    fix: str = ""
