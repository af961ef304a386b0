"""What the tests of the simulated vendors share: data, processes, expected failures."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from abi import Failure

HERE = Path(__file__).parent


def pattern(size: int, seed: int) -> bytes:
    """Bytes that differ from page to page and from seed to seed."""
    return random.Random(f"{seed} {size}").randbytes(size)


def child(name: str, source: str, arguments: list[str] | None = None, **environment: str) -> subprocess.Popen[str]:
    """Another process, with `v` as the vendor; it finds `pattern` too."""
    prelude = f"""
        import ctypes, sys, time
        sys.path.insert(0, {str(HERE)!r})
        from ctypes import byref, c_byte, c_int, c_size_t, c_uint64, c_void_p
        from abi import Failure, Handle64, address
        from vendors import load
        from harness import pattern
        v = load({name!r})
    """
    script = textwrap.dedent(prelude) + textwrap.dedent(source)
    return subprocess.Popen([sys.executable, "-c", script, *(arguments or [])], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})  # fmt: skip


def run(name: str, source: str, arguments: list[str] | None = None, **environment: str) -> str:
    process = child(name, source, arguments, **environment)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return output


def expect(vendor: Any, what: str, call: Any, *arguments: Any) -> None:
    with pytest.raises(Failure) as failure:
        call(*arguments)
    assert failure.value.code == vendor.codes[what]
