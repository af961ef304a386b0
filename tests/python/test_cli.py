"""The ``hmc`` command as a user calls it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from commands import HMC, alive, run_hmc

import hmc.testing
from hmc.cli.ranks import Ranks


def test_info_names_every_transport() -> None:
    result = run_hmc("info")
    assert result.returncode == 0, result.stderr
    for name in ("local", "shm", "tcp"):
        assert name in result.stdout


def test_info_says_what_a_device_can_do() -> None:
    result = run_hmc("info", "--json", environment=hmc.testing.environment())
    devices = {device["device"]: device for runtime in json.loads(result.stdout)["runtimes"] for device in runtime["devices"]}
    assert devices["cuda:0"]["capabilities"][:3] == ["IPC handles", "virtual memory", "dma-buf"]
    assert devices["musa:1"]["capabilities"] == ["IPC handles", "dma-buf"]
    assert devices["hygon:0"]["capabilities"] == ["IPC handles"]
    shown = " ".join(run_hmc("info", environment=hmc.testing.environment()).stdout.split())
    assert "simulated; IPC handles, virtual memory, dma-buf" in shown


@pytest.mark.parametrize(("key", "mark"), [("k" * 32, "ok"), ("short", "PROBLEM")])
def test_doctor_prints_every_finding_with_its_level_and_its_fix(key: str, mark: str) -> None:
    environment = {"HMC_JOB_KEY": key, "COLUMNS": "1000"}
    result = run_hmc("doctor", environment=environment)
    assert result.returncode == (mark == "PROBLEM"), result.stderr
    [line] = [line for line in result.stdout.splitlines() if " transfer: " in line]
    assert line.split()[0] == mark
    shown = {"ok": "ok", "note": "note", "problem": "PROBLEM"}
    rows = json.loads(run_hmc("doctor", "--json", environment=environment).stdout)
    lines = [[f"{shown[row['level']]} {row['name']}:", *([f"fix: {row['fix']}"] if row["fix"] else [])] for row in rows]
    printed = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert len(printed) == sum(map(len, lines))
    for text, line in zip((text for row in lines for text in row), printed, strict=True):
        assert line.startswith(text)


@pytest.mark.parametrize(
    ("variable", "value", "finding", "words"),
    [
        ("HMC_TRANSPORTS", "smh", "transfer", "local shm verbs ucx tcp"),
        ("HMC_JOB_KEY", "short", "transfer", "hmc keygen"),
        ("RANK", "0", "launcher", "WORLD_SIZE"),
    ],
)
def test_doctor_finds_settings_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, finding: str, words: str
) -> None:
    monkeypatch.setenv(variable, value)
    result = run_hmc("doctor", "--json")
    assert result.returncode == 1, result.stderr
    [found] = [row for row in json.loads(result.stdout) if row["level"] == "problem"]
    assert found["name"] == finding
    assert words in found["found"]
    assert run_hmc("info").returncode == 0


def test_doctor_is_content_here() -> None:
    result = run_hmc("doctor", "--json")
    assert result.returncode == 0, result.stdout
    assert {row["name"] for row in json.loads(result.stdout)} >= {"transfer", "launcher", "shared memory", "ptrace"}


def test_keygen_gives_a_fresh_key() -> None:
    first, second = run_hmc("keygen"), run_hmc("keygen")
    assert first.returncode == second.returncode == 0
    assert first.stdout != second.stdout
    assert len(first.stdout.strip()) >= 32


def test_run_starts_every_rank(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(
        "import hmc, sys\n"
        "with hmc.init() as comm:\n"
        "    comm.barrier(timeout=30)\n"
        "    sys.stdout.write(f'rank {comm.rank} of {comm.size}\\n')\n"
    )
    result = run_hmc("run", "-n", "3", str(script), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for rank in range(3):
        assert f"rank {rank} of 3" in result.stdout


def test_run_starts_a_module(tmp_path: Path) -> None:
    (tmp_path / "greeter.py").write_text("import os, sys\nprint(sys.argv[1:], 'from', os.environ['HMC_RANK'])\n")
    result = run_hmc("run", "-n", "2", "--no-prefix", "-m", "greeter", "-n", "7", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["['-n', '7'] from 0", "['-n', '7'] from 1"]


def test_run_ends_the_last_line_of_each_rank(tmp_path: Path) -> None:
    script = tmp_path / "half.py"
    script.write_text("import os, sys\nsys.stdout.write('half of ' + os.environ['HMC_RANK'])\n")
    result = run_hmc("run", "-n", "2", str(script), cwd=tmp_path)
    assert sorted(result.stdout.splitlines()) == ["[0] half of 0", "[1] half of 1"]
    assert run_hmc("run", "-n", "1", "--no-prefix", str(script), cwd=tmp_path).stdout == "half of 0"


def test_run_says_which_ranks_it_stopped(tmp_path: Path) -> None:
    script = tmp_path / "stays.py"
    script.write_text("import os, sys, time\nif os.environ['HMC_RANK'] == '1':\n    sys.exit(4)\ntime.sleep(60)\n")
    result = run_hmc("run", "-n", "2", "--grace", "0.5", str(script))
    assert result.returncode == 4
    assert result.stderr.splitlines() == [
        "hmc run: rank 1 exited with status 4",
        "hmc run: rank 0 had not ended 0.5 s later and was stopped",
    ]


def test_run_reports_the_rank_that_failed(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(
        "import hmc, sys\n"
        "comm = hmc.init()\n"
        "comm.barrier(timeout=30)\n"
        "if comm.rank == 1:\n"
        "    sys.exit(3)\n"
        "comm.barrier(timeout=30)\n"
    )
    # The others may end before rank 1 has: it is not to be stopped then.
    result = run_hmc("run", "-n", "3", "--grace", "60", str(script), cwd=tmp_path)
    assert result.returncode != 0
    assert "rank 1 exited with status 3" in result.stderr


def test_run_with_simulated_devices(tmp_path: Path) -> None:
    script = tmp_path / "names.py"
    script.write_text("import hmc, sys\nsys.stdout.write(' '.join(hmc.devices()) + '\\n')\n")
    result = run_hmc("run", "-n", "5", "--no-prefix", "--simulate", "musa,rocm", str(script))
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 5
    for line in lines:
        assert {"cpu", *(f"{vendor}:{index}" for vendor in ("musa", "rocm") for index in range(3))} <= set(line.split())


@pytest.mark.parametrize(("asked", "found"), [("5", 5), ("", 2)])
def test_the_users_number_of_simulated_devices_comes_first(tmp_path: Path, asked: str, found: int) -> None:
    script = tmp_path / "names.py"
    script.write_text("import hmc\nprint(sum(name.startswith('musa:') for name in hmc.devices()))\n")
    environment = {"HMC_SIM_DEVICES": asked}
    result = run_hmc("run", "-n", "1", "--no-prefix", "--simulate", "musa", str(script), environment=environment)
    assert (result.returncode, result.stdout.split()) == (0, [str(found)]), result.stderr
    shown = run_hmc("topo", "--simulate", "musa", environment=environment)
    assert (f"musa:{found - 1}" in shown.stdout, f"musa:{found}" in shown.stdout) == (True, False), shown.stdout + shown.stderr


def test_bench_of_simulated_devices_says_so(tmp_path: Path) -> None:
    file = tmp_path / "points.json"
    arguments = ["--operations", "put", "--sizes", "4K", "--repeat", "1", "--json", str(file), "--simulate", "cuda,mlu"]
    result = run_hmc("bench", *arguments)
    assert result.returncode == 0, result.stderr
    assert "speeds say nothing about any hardware" in result.stdout.replace("\n", " ")
    for point in json.loads(file.read_text()):
        assert point["devices"] == ["cuda:0 (simulated)", "mlu:0 (simulated)"]


def test_bench_writes_json(tmp_path: Path) -> None:
    file = tmp_path / "points.json"
    result = run_hmc(
        "bench",
        "--sizes",
        "8,64K",
        "--repeat",
        "1",
        "--operations",
        "send,put,get,blocks",
        "--blocks",
        "64x4K",
        "--json",
        str(file),
    )
    assert result.returncode == 0, result.stderr
    operations = {point["hmc-bench"] for point in json.loads(file.read_text())}
    assert {"raw flag", "memcpy", "send", "put", "get", "put+notify", "blocks 64x4096"} <= operations


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "--operations", "fly"],
        ["bench", "--sizes", "many"],
        ["bench", "--ranks", "3"],
        ["bench", "--plot", "drawing.txt"],
        ["bench", "--repeat", "0"],
        ["bench", "--json", "/"],
        ["demo", "--ranks", "1"],
        ["demo", "--tokens", "x"],
        ["run", "-n", "0", "script.py"],
        ["demo", "--picture", "/no/such/folder/x.png"],
        ["demo", "--json", "/no/such/folder/x.json"],
        ["demo", "--simulate", "abacus"],
        ["demo", "--devices", "musa:77"],
        ["bench", "--devices", "musa:77"],
        ["run", "--simulate", "abacus", "script.py"],
        ["plan", "nothing"],
        ["plan", "--bytes", "3"],
        ["plan", "--ranks", "0"],
        ["plan", "--ranks", "257"],
        ["plan", "--ranks", "9" * 30],
        ["plan", "--ranks", "9" * 5000],
        ["plan", "--bytes", "9" * 30],
        ["plan", "--bytes", "9" * 5000],
        ["bench", "--ranks", "9" * 30],
        ["bench", "--sizes", "9" * 5000],
        ["demo", "--tokens", "9" * 30],
        ["run", "-n", "9" * 5000, "script.py"],
        ["plan", "--bandwidth", "0"],
        ["plan", "--bandwidth", "9" * 400],
        ["plan", "--latency", "-1s"],
        ["plan", "--latency", "soon"],
        ["plan", "--even"],
        ["plan", "--islands", "8xAbacus"],
        ["plan", "--islands", "0xH200"],
        ["plan", "--islands", "9xH200"],
        ["plan", "--islands", "99999999xH200"],
        ["plan", "--islands", ","],
        ["plan", "gather", "--islands", "8xH200,8xMI325X"],
        ["plan", "--islands", "8xH200,8xMI325X", "--border", "1G,0"],
        ["plan", "--islands", "16xH200,8xMI325X", "--border", "1G"],
        ["plan", "--json", "/no/such/folder/x.json"],
        ["run"],
        ["run", "-n", "2", "-m"],
        ["run", "no_such_script.py"],
        ["run", "./no_such_program"],
        ["nonsense"],
    ],
    ids=lambda arguments: " ".join(arguments)[:60],
)
def test_wrong_usage_is_status_two(arguments: list[str]) -> None:
    assert run_hmc(*arguments).returncode == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["info"],
        ["doctor"],
        ["topo", "--simulate", "cuda,rocm,mlu,musa"],
        ["demo", "--quick", "--simulate", "cuda,hygon", "--picture", ""],
        ["demo", "--quick", "--devices", "cpu", "--ranks", "2", "--picture", ""],
        ["bench", "--sizes", "8,64K", "--repeat", "1", "--operations", "send,put,get,stream,blocks", "--blocks", "16384x4K"],
        ["keygen"],
        ["plan"],
        ["plan", "barrier", "--ranks", "200"],
        ["plan", "--islands", "5120xH200,5120xMI325X", "--even"],
        ["plan", "reduce_scatter", "--islands", "5120xH200,5120xMI325X", "--even"],
        *([command, "--help"] for command in ("info", "topo", "doctor", "keygen", "run", "plan", "demo", "bench")),
    ],
    ids=" ".join,
)
def test_lines_fit_80_columns(arguments: list[str], tmp_path: Path) -> None:
    environment = {"COLUMNS": "80", **hmc.testing.environment()}
    result = run_hmc(*arguments, environment=environment, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    # A path is not broken, so that it can be copied: it stands alone then.
    long = [line for line in (result.stdout + result.stderr).splitlines() if len(line) > 80]
    assert [line for line in long if " " in line.strip()] == []


@pytest.mark.parametrize("form", [["--json"], ["--json", "-"], ["--json", "out.json"]], ids=" ".join)
@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["info"], "transports"),
        (["topo", "--devices", "cpu"], "paths"),
        (["doctor"], 0),
        (["demo", "--quick", "--devices", "cpu", "--ranks", "2", "--picture", ""], "checks"),
        (["bench", "--sizes", "8", "--repeat", "1", "--operations", "put"], 0),
        (["plan"], "links"),
        (["plan", "--islands", "8xH200,8xMI325X"], "islands"),
    ],
    ids=["info", "topo", "doctor", "demo", "bench", "plan", "islands"],
)
def test_json_goes_to_a_file_or_alone_to_stdout(command: list[str], key: str | int, form: list[str], tmp_path: Path) -> None:
    result = run_hmc(*command, *form, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    in_file = form[-1] == "out.json"
    assert json.loads((tmp_path / "out.json").read_text() if in_file else result.stdout)[key]
    if in_file:
        assert not result.stdout.startswith(("{", "["))


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["bench", "--transports", "rdma"], 2, "local shm verbs ucx tcp"),
        (["bench", "--transports", "shm,rdma"], 2, "local shm verbs ucx tcp"),
        (["demo", "--transports", "rdma"], 2, "local shm verbs ucx tcp"),
        (["bench", "--transports", "local", "--sizes", "8"], 2, "rank "),
        (["topo", "--file", "no_such_file.txt"], 2, "no_such_file.txt"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_failure_is_one_line(arguments: list[str], status: int, words: str) -> None:
    result = run_hmc(*arguments)
    assert result.returncode == status, result.stderr
    [line] = result.stderr.splitlines()
    assert line.startswith(f"hmc {arguments[0]}: ")
    assert words in line


CAUSE_LAST = """
import os, sys, time
from pathlib import Path
import hmc
from hmc.cli.ranks import run_worker
def work():
    ready = Path(sys.argv[1])
    if os.environ["RANK"] == "1":
        while not ready.exists():
            time.sleep(0.01)
        raise hmc.ClosedError("rank 0 said goodbye")
    ready.touch()
    time.sleep(0.3)
    raise hmc.UnsupportedError("no transport")
run_worker(work)
"""


def test_the_cause_is_told_though_what_follows_from_it_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(CAUSE_LAST)
    ranks = Ranks("bench", worker, lambda rank, message: None)
    assert ranks.run([str(tmp_path / "ready")], 2, {}) == 2
    assert capsys.readouterr().err == "hmc bench: rank 0: no transport\n"


def test_a_rank_that_is_killed_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\nif os.environ.get('HMC_RANK') == '1':\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))  # an empty entry is the working directory
    result = run_hmc("bench", "--sizes", "8", environment={"PYTHONPATH": path})
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "SIGKILL" in result.stderr or "rank 0" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL], ids=lambda n: n.name)
def test_the_ranks_end_with_the_command(number: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "sleeps.py"
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(100)\n")
    command = [*HMC, "run", "-n", "3", "--no-prefix", str(script)]
    # What runs in the background of a shell, or under nohup, is started with signals ignored, and hands that on.
    listen = partial(signal.signal, signal.SIGINT if number == signal.SIGKILL else number, signal.SIG_DFL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listen) as process:
        assert process.stdout
        assert process.stderr
        ranks = [int(process.stdout.readline()) for _ in range(3)]
        process.send_signal(number)
        process.wait(20)
        assert process.returncode == {signal.SIGKILL: -9}.get(number, 128 + number)
        assert "Traceback" not in process.stderr.read()
    end = time.monotonic() + 20
    while any(map(alive, ranks)):
        assert time.monotonic() < end, "a rank still runs"
        time.sleep(0.02)


def test_bench_draws_latency_and_bandwidth(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = ["--sizes", "8,4K", "--repeat", "1", "--operations", "send,put,blocks", "--blocks", "16x4K", "--plot", "bench.svg"]
    result = run_hmc("bench", *arguments, cwd=tmp_path, environment={"MPLCONFIGDIR": str(tmp_path)})
    assert result.returncode == 0, result.stderr
    assert "plot: bench.svg" in result.stdout
    drawing = (tmp_path / "bench.svg").read_text()
    for text in ("time, us", "bandwidth, GB/s", "4 KiB", "raw flag"):
        assert f"<!-- {text} -->" in drawing
