"""An exception between two of Python's steps, where the handler of a signal may raise one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType

__all__ = ["interrupted_at"]


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
