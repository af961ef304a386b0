"""`hmc run`: signals that its parent ignores, options that cannot be, and output of the ranks as they wrote it."""

from __future__ import annotations

import os
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest
from commands import HMC, run_hmc

# Prints a line, and ends once the file is there.
WAITS = """
import sys, time
from pathlib import Path
print("started", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM], ids=lambda n: n.name)
def test_an_ignored_signal_stays_ignored(number: signal.Signals, tmp_path: Path) -> None:
    script, go = tmp_path / "waits.py", tmp_path / "go"
    script.write_text(WAITS)
    command = [*HMC, "run", "-n", "1", str(script), str(go)]
    ignore = partial(signal.signal, number, signal.SIG_IGN)  # as nohup does
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=ignore) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "[0] started\n"
            process.send_signal(number)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            go.touch()
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    "rendezvous",
    ["tcp://localhost", "tcp://:1234", "tcp://h:0", "tcp://h:65536", "tcp://h:port", "tcp://h:-1", "tcp://[]:1", "h:1234", "unix:"],
)
def test_a_malformed_rendezvous_is_one_line(rendezvous: str) -> None:
    result = run_hmc("run", "--rendezvous", rendezvous, "true")
    assert (result.returncode, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert line.startswith(f"hmc run: --rendezvous {rendezvous}: ")


@pytest.mark.parametrize("rendezvous", ["tcp://localhost:1234", "tcp://[::1]:1", "unix:/tmp/x"])
def test_a_rendezvous_reaches_the_ranks(rendezvous: str) -> None:
    result = run_hmc("run", "-n", "1", "--no-prefix", "--rendezvous", rendezvous, "printenv", "HMC_RENDEZVOUS")
    assert (result.returncode, result.stdout, result.stderr) == (0, rendezvous + "\n", "")


@pytest.mark.parametrize("grace", ["nan", "-1", "inf", "-inf", "9" * 400, "soon", ""], ids=lambda text: text[:9])
def test_a_grace_that_is_no_time_is_refused(grace: str) -> None:
    result = run_hmc("run", f"--grace={grace}", "true")
    assert (result.returncode, result.stdout) == (2, "")
    assert "--grace" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("grace", ["0", "0.25", "250ms"])
def test_a_grace_is_seconds_or_has_a_unit(grace: str, tmp_path: Path) -> None:
    script = tmp_path / "stays.py"
    script.write_text("import os, sys, time\nif os.environ['HMC_RANK'] == '1':\n    sys.exit(4)\ntime.sleep(60)\n")
    result = run_hmc("run", "-n", "2", "--grace", grace, str(script))
    assert result.returncode == 4
    assert f"rank 0 had not ended {'0' if grace == '0' else '0.25'} s later" in result.stderr


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_bytes_that_ranks_print_are_forwarded_unchanged(encoding: str) -> None:
    command = [*HMC, "run", "-n", "1", "printf", r"\303\251 \377\n\302\205\n"]
    result = subprocess.run(command, capture_output=True, timeout=60, check=False, env={**os.environ, "PYTHONIOENCODING": encoding})
    assert (result.returncode, result.stdout, result.stderr) == (0, b"[0] \xc3\xa9 \xff\n[0] \xc2\x85\n", b"")


def test_a_line_without_an_end_takes_bounded_memory() -> None:
    size = 64 << 20
    command = [*HMC, "run", "-n", "1", "--no-prefix", "sh", "-c", f"head -c {size} /dev/zero"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            read, peak = 0, 0
            while part := process.stdout.read(1 << 20):
                read += len(part)
                if words := Path(f"/proc/{process.pid}/status").read_text().partition("VmHWM:")[2].split():
                    peak = int(words[0]) << 10
            assert (process.wait(60), read) == (0, size)
        finally:
            process.kill()
    assert 0 < peak < 128 << 20


def test_line_ends_are_forwarded_unchanged_without_a_prefix() -> None:
    command = [*HMC, "run", "-n", "1", "--no-prefix", "printf", r"a\rb\r\nc\nd"]
    result = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert (result.returncode, result.stdout) == (0, b"a\rb\r\nc\nd")


# Prints much, at once, when it is stopped.
LAST_WORDS = """
import os, signal, time

def stop(*_):
    os.write(1, b"".join(b"last %d\\n" % i for i in range(8000)))
    os._exit(0)

signal.signal(signal.SIGTERM, stop)
os.write(1, b"started\\n")
while True:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_what_stopped_ranks_print_is_forwarded(number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "last_words.py"
    script.write_text(LAST_WORDS)
    listen = partial(signal.signal, number, signal.SIG_DFL)  # pytest may run with it ignored
    command = [*HMC, "run", "-n", "1", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=listen) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "[0] started\n"
            process.send_signal(number)
            out = process.stdout.read().splitlines()
            assert process.wait(60) == 128 + number
        finally:
            process.kill()
    assert out == [f"[0] last {i}" for i in range(8000)]


def test_an_empty_job_key_is_none() -> None:
    result = run_hmc("run", "--nodes", "2", "--rendezvous", "tcp://127.0.0.1:1", "true", environment={"HMC_JOB_KEY": ""})
    assert (result.returncode, result.stdout) == (2, "")
    assert "--nodes needs a job key" in result.stderr
