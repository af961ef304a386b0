"""Allocations that the host has no memory for: an error that names the sizes, not the kernel's OOM killer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

# The kernel would kill this process first, not others.
PRELUDE = """
import re
with open("/proc/self/oom_score_adj", "w") as file:
    file.write("1000")
total = 1024 * int(re.search(r"MemTotal: *([0-9]+)", open("/proc/meminfo").read())[1])
swap = 1024 * int(re.search(r"SwapTotal: *([0-9]+)", open("/proc/meminfo").read())[1])
nbytes = total + swap + (1 << 20)
"""

CALLS = {
    "Memory": "hmc.Memory(nbytes)",
    "buffer": "ctx.buffer(nbytes)",
    "Communicator.buffer": "hmc.init(0, 1).buffer(nbytes)",
}


@pytest.mark.parametrize("call", CALLS)
def test_too_much_memory_is_an_error(run_script: Callable[..., str], call: str) -> None:
    source = f"""
with hmc.Context() as ctx:
    try:
        {CALLS[call]}
    except hmc.OutOfMemoryError as error:
        print(error)
    assert ctx.buffer(2 << 20).nbytes == 2 << 20
"""
    said = run_script(PRELUDE + source, {})
    assert "bytes of host memory refused" in said
    assert "this host has" in said or "control group" in said
