"""An exception between two of Python's steps, where the handler of a signal may raise one."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

__all__ = ["Interrupted", "interrupted_at", "signalled_at"]


def interrupted_at(step: int, concerns: Callable[[CodeType], bool], call: Callable[[], object]) -> bool:
    """Whether ``call`` took that many steps in functions that ``concerns`` accepts, and was ended by KeyboardInterrupt then."""
    taken = 0

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., object] | None:
        nonlocal taken
        if not concerns(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        taken += event == "opcode"
        if taken > step:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    # Python 3.12 looks whether any frame asked for its opcodes when tracing starts, and not afterwards.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


class Interrupted(BaseException):
    """What a signal's handler raises."""


@cache
def points(code: CodeType) -> set[tuple[int, int]]:
    """Pairs of instructions between which Python looks for signals: after calls, at a function's beginning, in loops."""
    tables = [(one.start, one.end, one.target) for one in getattr(dis, "_parse_exception_table")(code)]  # noqa: B009

    def handler(at: int) -> int:
        return next((target for start, end, target in tables if start <= at < end), -1)

    listed = list(dis.get_instructions(code))
    found = set()
    for one in listed:
        if one.opname.startswith("CALL") or one.opname in ("RESUME", "JUMP_BACKWARD"):
            # An exception would be raised at the next instruction. Its handler is to be that of this one.
            found |= {(one.offset, other.offset) for other in listed if handler(other.offset) == handler(one.offset)}
    return found


class Steps:
    """Interrupts a call at one of the points at which Python looks for signals."""

    def __init__(self, step: int, concerns: Callable[[FrameType], bool]) -> None:
        self._left = step
        self._concerns = concerns
        self._last: dict[int, int] = {}  # instruction by frame

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "call":
            if not self._concerns(frame):
                return None
            frame.f_trace_opcodes = True
            self._last.pop(id(frame), None)
        elif event == "opcode":
            last = self._last.get(id(frame), -1)
            self._last[id(frame)] = frame.f_lasti
            self._left -= (last, frame.f_lasti) in points(frame.f_code)
            if self._left < 0:
                sys.settrace(None)
                raise Interrupted
        return self


def signalled_at(step: int, concerns: Callable[[FrameType], bool], call: Callable[[], object]) -> bool:
    """As interrupted_at(), at the points only at which Python looks for signals, by Interrupted."""
    before = sys.gettrace()
    # Python 3.12 looks whether any frame asked for its opcodes when tracing starts, and not afterwards.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(Steps(step, concerns))
    try:
        call()
    except Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False
