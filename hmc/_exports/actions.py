"""The steps of all ranks of a plan, with each send and its receive as one action."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import hmc

__all__ = ["Action", "Slice", "actions_of"]

Slice = tuple[str, int]  # buffer, offset in bytes


@dataclass(eq=False)
class Action:
    """A message, or a copy or reduction of one rank. A rank's message to itself is a copy."""

    kind: str  # "message", "copy", "reduce"
    rank: int  # of a message: the sender
    bytes: int
    to: int  # of a message: the receiver, else the rank itself
    sources: tuple[Slice, ...] = ()  # of `rank`
    target: Slice = ("out", 0)  # of `to`
    after: list[Action] = field(default_factory=list)  # that are complete before, of both ranks


def actions_of(schedule: Sequence[Sequence[hmc.PlannedStep]]) -> list[Action]:
    """In an order in which they could be carried out one after the other, each message when both of its ranks have got to it."""
    messages: dict[tuple[int, int, int], Action] = {}  # by sender, receiver, tag
    by_step: list[list[Action]] = []
    for rank, steps in enumerate(schedule):
        by_step.append([_action(rank, step, messages) for step in steps])
    for actions, steps in zip(by_step, schedule, strict=True):
        for action, step in zip(actions, steps, strict=True):
            action.after += (actions[i] for i in step.after)
    first_steps = (actions[i] for i in range(max(map(len, by_step))) for actions in by_step if i < len(actions))
    return _in_order(dict.fromkeys(first_steps))


def _action(rank: int, step: hmc.PlannedStep, messages: dict[tuple[int, int, int], Action]) -> Action:
    if step.kind in ("copy", "reduce"):
        assert step.target is not None
        return Action(step.kind, rank, step.bytes, rank, step.sources, step.target)
    sends = step.kind == "send"
    sender, receiver = (rank, step.peer) if sends else (step.peer, rank)
    kind = "message" if sender != receiver else "copy"
    action = messages.setdefault((sender, receiver, step.tag), Action(kind, sender, step.bytes, receiver))
    if sends:
        action.sources = step.sources
    else:
        assert step.target is not None
        action.target = step.target
    return action


def _in_order(actions: dict[Action, None]) -> list[Action]:
    """Breadth first, as ranks that work side by side would get to them."""
    waits = {action: len(action.after) for action in actions}
    next_ones: dict[Action, list[Action]] = {action: [] for action in actions}
    for action in actions:
        for before in action.after:
            next_ones[before].append(action)
    ready = deque(action for action in actions if waits[action] == 0)
    order = []
    while ready:
        action = ready.popleft()
        order.append(action)
        for after in next_ones[action]:
            waits[after] -= 1
            if waits[after] == 0:
                ready.append(after)
    assert len(order) == len(actions), "schedules of the ranks wait for each other"
    return order
