"""Data that is never constant. Processes that tests start import this, so it brings nothing that takes long, as pytest does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def pattern(size: int, seed: int) -> NDArray[np.uint8]:
    """Bytes that differ from page to page and from seed to seed."""
    return np.random.Generator(np.random.SFC64([seed, size])).integers(0, 256, size, dtype=np.uint8)
