"""What a push is to send next, in the order in which it was asked for."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from hmc._core import StreamMark
from hmc.kv._moves import LOADED, Side

__all__ = ["Backlog", "Layer"]


class Layer(NamedTuple):
    """A layer that is complete once all the marks are reached. Without a number: the end."""

    number: int | None
    behind: list[StreamMark]

    @property
    def complete(self) -> bool:
        return all(mark.reached for mark in self.behind)


class Backlog:
    """Layers, and the end behind them. Not for several threads."""

    def __init__(self, source: Side, credits: int) -> None:
        """``credits``: layers that may be unchecked. At most half of them travel as one: some are checked while others travel."""
        layout = source.layout
        layer_bytes = layout.packed((layout.layers[0], 1), layout.heads, len(source.blocks)).buffer_bytes
        self.most = max(1, min(credits // 2, LOADED // layer_bytes))  # layers that travel as one
        self._next = max(1, self.most // 4)  # likewise of the next ones: the first layers are to arrive soon
        self._layers: deque[Layer] = deque()

    def __bool__(self) -> bool:
        return bool(self._layers)

    def add(self, layer: Layer) -> None:
        self._layers.append(layer)

    def take(self) -> tuple[int, int] | None:
        """Layers that are complete and follow one another: first, count. (0, 0): the end. None: the next is not complete."""
        if not self._layers or not self._layers[0].complete:
            return None
        first = self._layers.popleft().number
        if first is None:
            return 0, 0
        count = 1
        while count < self._next and self._layers and self._layers[0].number == first + count and self._layers[0].complete:
            self._layers.popleft()
            count += 1
        self._next = min(2 * self._next, self.most)
        return first, count
