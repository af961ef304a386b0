"""pyverbs writes into ConnBuffers and reads from them, with what ConnBuffer.native("verbs") gives."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# In the guest: HMC on one device, pyverbs on the other.
JOB = """
import hashlib, json, os, subprocess, sys
os.environ["HMC_NICS"] = "rxe0"
import hmc

GID = "0000:0000:0000:0000:0000:ffff:0a63:0002"  # 10.99.0.2
OK, REFUSED, LOST = 0, 10, 12  # IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_RETRY_EXC_ERR

def pattern(size, seed):
    return hashlib.shake_128(bytes([seed])).digest(size)

program = subprocess.Popen(["/usr/bin/python3", sys.argv[1], "rxe1", GID], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

def tell(do, **what):
    program.stdin.write(json.dumps({"do": do, **what}) + "\\n")
    program.stdin.flush()
    return json.loads(program.stdout.readline())

def connect(context, number):
    there = tell("open")
    connection = context.connect_native("verbs", {"gid": GID, "mtu": 4096, **there})
    assert connection.fields["device"] == "rxe0" and connection.fields["mtu"] <= 4096, connection.fields
    tell("connect", pair=number, psn=there["psn"], there=connection.fields)
    return connection

with hmc.Context(transports="verbs") as context:
    buffer = context.buffer(2 << 20)
    row, = buffer.native("verbs")
    assert set(row) == {"device", "port", "gid", "gid_index", "lid", "mtu", "address", "length", "rkey"}, row
    assert (row["device"], row["port"], row["length"]) == ("rxe0", 1, 2 << 20)
    assert row["gid"] == GID[:-1] + "1"
    part, = buffer[4100:4400].native("verbs")
    assert (part["address"], part["length"], part["rkey"]) == (row["address"] + 4100, 300, row["rkey"])
    first, second = connect(context, 0), connect(context, 1)

    view = memoryview(buffer.numpy())
    for seed, size in enumerate([1, 7, 300, 4096, 65537, (1 << 20) + 3]):
        offset = 4100 + seed
        view[:] = pattern(len(view), 100)
        expected = bytearray(view)
        expected[offset : offset + size] = pattern(size, seed)
        done = tell("move", what="write", pair=0, address=row["address"] + offset, rkey=row["rkey"], data=pattern(size, seed).hex())
        assert done["status"] == OK, done
        assert bytes(view) == expected, size
        view[:] = pattern(len(view), 101)
        done = tell("move", what="read", pair=1, address=row["address"] + offset, rkey=row["rkey"], length=size)
        assert bytes.fromhex(done["data"]) == bytes(view[offset : offset + size]), size
    view[:] = pattern(len(view), 102)
    before = bytes(view)

    # Memory that may only be read.
    shown = context.buffer(4096, access="r")
    shown_row, = shown.native("verbs")
    done = tell("move", what="read", pair=1, address=shown_row["address"], rkey=shown_row["rkey"], length=4096)
    assert bytes.fromhex(done["data"]) == bytes(4096)
    done = tell("move", what="write", pair=0, address=shown_row["address"], rkey=shown_row["rkey"], data="ff")
    assert done["status"] == REFUSED and not shown.numpy().any(), done

    # That ended the one queue pair; the other goes on. A wrong key ends it, and a third is made.
    done = tell("move", what="read", pair=1, address=row["address"], rkey=row["rkey"], length=999)
    assert bytes.fromhex(done["data"]) == before[:999]
    done = tell("move", what="write", pair=1, address=row["address"], rkey=row["rkey"] ^ 0x5500, data="ff" * 64)
    assert done["status"] == REFUSED and bytes(view) == before, done
    third = connect(context, 2)
    done = tell("move", what="write", pair=2, address=row["address"] + 8, rkey=row["rkey"], data="ab")
    assert done["status"] == OK and view[8] == 0xAB

    # A closed buffer is not written any more.
    held = buffer.memory
    buffer.close(timeout=30)
    before = bytes(memoryview(held.numpy()))
    done = tell("move", what="write", pair=2, address=row["address"], rkey=row["rkey"], data="cd" * 64)
    assert done["status"] == REFUSED and bytes(memoryview(held.numpy())) == before, done
    try:
        buffer.native("verbs")
    except hmc.ClosedError:
        pass
    else:
        raise AssertionError("native() of a closed buffer")

    # Nor is anything after the connection was closed: nobody answers.
    fresh = context.buffer(4096)
    fresh_row, = fresh.native("verbs")
    fourth = connect(context, 3)
    fourth.close()
    done = tell("move", what="write", pair=3, address=fresh_row["address"], rkey=fresh_row["rkey"], data="ff")
    assert done["status"] == LOST and not fresh.numpy().any(), done
    for connection in (first, second, third, fourth):
        connection.close()
        connection.close()
program.stdin.close()
assert program.wait(timeout=30) == 0
print("all compared")
"""


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_pyverbs_writes_and_reads(run_in_guest: Callable[..., str], tmp_path: Path) -> None:
    if not Path("/usr/lib/python3/dist-packages/pyverbs").exists():
        pytest.skip("pyverbs is not installed; as root: apt-get install python3-pyverbs")
    script = tmp_path / "job.py"
    script.write_text(JOB)
    peer = Path(__file__).with_name("pyverbs_peer.py")
    assert "all compared" in run_in_guest(shlex.join([sys.executable, str(script), str(peer)]), 120)
