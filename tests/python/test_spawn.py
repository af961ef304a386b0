"""hmc.spawn: functions as jobs of real processes, from scripts, tests and where nothing can be imported; and what ends them."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import alive
from patterns import pattern

import hmc


def sum_of_ranks(scale: int, words: list[str]) -> tuple[int, list[str], Any]:
    with hmc.init(timeout=30) as comm:
        total = pattern(1001, comm.rank).astype(np.int64) * scale
        comm.all_reduce(total, timeout=30)
        return comm.rank, [*words, str(comm.size)], total


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_results_come_in_rank_order(ranks: int) -> None:
    expected = sum(pattern(1001, rank).astype(np.int64) * 3 for rank in range(ranks))
    results = hmc.spawn(sum_of_ranks, ranks, 3, ["of"], timeout=60)
    assert [rank for rank, _, _ in results] == list(range(ranks))
    for _, words, total in results:
        assert words == ["of", str(ranks)]
        assert np.array_equal(total, expected)


def test_ranks_get_the_environment_of_hmc_run() -> None:
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "HMC_RANK", "HMC_SIZE", "HMC_LOCAL_RANK", "HMC_LOCAL_SIZE"]
    found = hmc.spawn(
        lambda: {name: os.environ[name] for name in [*names, "COLOR", "MASTER_PORT"]}, 2, environment={"COLOR": "red"}
    )
    for rank in range(2):
        assert [found[rank][name] for name in names] == [str(rank), "2"] * 4
        assert found[rank]["COLOR"] == "red"
    assert found[0]["MASTER_PORT"] == found[1]["MASTER_PORT"]


def test_the_port_of_torch_is_reserved_for_the_ranks() -> None:
    """Also where no rank listens yet: another process may look for a free port at any time."""

    def listens() -> tuple[int, bool]:
        port, taken = int(os.environ["MASTER_PORT"]), True
        with socket.socket() as stranger, contextlib.suppress(OSError):
            stranger.bind(("127.0.0.1", port))
            taken = False
        families = [(socket.AF_INET, "127.0.0.1")]
        if Path("/proc/net/if_inet6").exists():
            families.append((socket.AF_INET6, "::"))
        for family, host in families:
            with socket.socket(family) as listener, socket.socket() as client:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((host, port))
                listener.listen()
                client.connect((os.environ["MASTER_ADDR"], port))
        return port, taken

    [(port, taken)] = hmc.spawn(listens, 1, timeout=60)
    assert taken
    with socket.socket() as later:
        later.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the rank may linger
        later.bind(("127.0.0.1", port))


def test_large_arguments_and_results() -> None:
    data = pattern(20_000_001, 5)
    for result in hmc.spawn(np.ndarray.copy, 2, data, timeout=60):
        assert np.array_equal(result, data)


def test_output_appears_behind_the_rank(capsys: pytest.CaptureFixture[str]) -> None:
    def talk() -> None:
        print("to stdout")
        print("to stderr", file=sys.stderr)

    hmc.spawn(talk, 2, timeout=60)
    assert sorted(capsys.readouterr().out.splitlines()) == [f"[{rank}] to {to}" for rank in range(2) for to in ("stderr", "stdout")]


def test_functions_that_cannot_be_imported() -> None:
    base = 40

    def factorial(n: int) -> int:
        return n * factorial(n - 1) if n > 1 else 1

    def add(a: int, b: int = 1, *, c: int = 1) -> int:
        return base + a + b + c + factorial(4)

    assert hmc.spawn(add, 2, 100, timeout=60) == [166, 166]
    assert hmc.spawn(functools.partial(add, 100, c=3), 1, timeout=60) == [168]
    assert hmc.spawn(lambda *functions: [f() for f in functions], 1, lambda: base, os.getpid, timeout=60)[0][0] == base


def in_process(source: str, *, kind: str, folder: Path, timeout: float = 60) -> str:
    """What a program prints that is a script, or comes from nowhere (as in a notebook)."""
    source = "import hmc\n" + textwrap.dedent(source)
    (folder / "program.py").write_text(source)
    command = [sys.executable, "program.py"] if kind == "script" else [sys.executable, "-c", source]
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("kind", ["script", "notebook"])
def test_a_main_program_without_a_guard(kind: str, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("class Point:\n    def __init__(self, x):\n        self.x = x\n")
    printed = in_process(
        """
        import os.path
        import numpy as np
        import xml.dom.minidom
        from beside import Point
        print("once")
        calls = 0
        def odd(n): return n != 0 and even(n - 1)
        def even(n): return n == 0 or odd(n - 1)
        def work(point):
            global calls
            calls += 1
            with hmc.init() as comm:
                ranks = np.array([comm.rank])
                comm.all_reduce(ranks)
            assert xml.dom.minidom.parseString("<a/>").documentElement.tagName == "a"
            return int(ranks[0]), even(10), os.path.join("a", "b"), Point(point.x + calls)
        for total, ten, path, point in hmc.spawn(work, 3, Point(5), timeout=60):
            print(total, ten, path, point.x)
        print(calls)
        """,
        kind=kind,
        folder=tmp_path,
    )
    assert printed.splitlines() == ["once", *["3 True a/b 6"] * 3, "0"]


def test_a_class_of_the_main_program_is_refused(tmp_path: Path) -> None:
    source = """
    class Point: pass
    try:
        hmc.spawn(lambda: Point(), 1, timeout=60)
    except hmc.InvalidArgumentError as error:
        print(error)
    """
    printed = in_process(source, kind="script", folder=tmp_path)
    assert printed.startswith("spawn: the global 'Point' that fn uses (type) cannot be sent: class Point is defined in __main__")


def test_the_first_failing_rank_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmc._spawn.CAUSE", 30.0)  # a busy machine is no reason to name another one

    def fail(before: float, after: float) -> None:
        try:
            with hmc.init(timeout=30) as comm:
                comm.barrier(timeout=30)
                if comm.rank == 2:
                    time.sleep(before)
                    raise KeyError("of rank two")
                comm.barrier(timeout=60)
        except KeyError:
            time.sleep(after)  # the others have failed by then, of its close()
            raise

    for before, after in ((0.0, 0.0), (0.3, 0.0), (0.0, 0.5)):
        with pytest.raises(hmc.RankFailedError, match="spawn: rank 2 failed") as caught:
            hmc.spawn(fail, 4, before, after, timeout=60)
        assert (caught.value.rank, caught.value.exit_code, caught.value.code) == (2, 1, "rank_failed")
        assert 'raise KeyError("of rank two")' in str(caught.value)
        assert isinstance(caught.value.__cause__, KeyError)


def test_the_others_are_killed_within_a_second(tmp_path: Path) -> None:
    def work() -> None:
        rank = int(os.environ["HMC_RANK"])
        (tmp_path / str(rank)).write_text(str(os.getpid()))
        while not all((tmp_path / str(one)).exists() and (tmp_path / str(one)).read_text() for one in range(3)):
            time.sleep(0.005)
        if rank == 1:
            (tmp_path / "failed").write_text(str(time.monotonic()))
            raise ValueError("now")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(100)

    with pytest.raises(hmc.RankFailedError, match="rank 1 failed"):
        hmc.spawn(work, 3, timeout=60)
    # 0.2 s to notice who else failed and 0.4 s until SIGKILL; the rest is for a busy machine, and less than the job's 60.
    assert time.monotonic() - float((tmp_path / "failed").read_text()) < 20
    assert not any(alive(int((tmp_path / str(rank)).read_text())) for rank in range(3))


@pytest.mark.parametrize(
    ("end", "words", "code"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "rank 0 was killed by SIGKILL", -9),
        (lambda: os._exit(7), "rank 0 exited with status 7", 7),
        (lambda: os._exit(0), "rank 0 exited with status 0 without a result", 0),
        (lambda: sys.exit(0), "SystemExit: 0", 1),
    ],
    ids=["killed", "status", "no result", "exit"],
)
def test_a_rank_that_ends_without_a_result(end: Callable[[], None], words: str, code: int) -> None:
    with pytest.raises(hmc.RankFailedError, match=words) as caught:
        hmc.spawn(end, 1, timeout=60)
    assert caught.value.exit_code == code


def test_a_killed_rank_comes_before_those_that_lost_it() -> None:
    def work() -> None:
        with hmc.init(timeout=30) as comm:
            comm.barrier(timeout=30)
            if comm.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            comm.barrier(timeout=60)

    for _ in range(3):
        with pytest.raises(hmc.RankFailedError, match="rank 1 was killed by SIGKILL"):
            hmc.spawn(work, 3, timeout=60)


def test_the_deadline_names_the_ranks_that_still_run() -> None:
    def work() -> None:
        if os.environ["HMC_RANK"] != "1":
            os.kill(os.getpid(), signal.SIGSTOP)

    for timeout in (3, 30):  # on a busy machine rank 1 may still run, too
        with pytest.raises(hmc.HmcTimeoutError, match="were still running at the deadline") as caught:
            hmc.spawn(work, 3, timeout=timeout)
        if "ranks 0, 2 were" in str(caught.value):
            break
    assert "ranks 0, 2 were" in str(caught.value)


def test_what_cannot_be_asked_for() -> None:
    for ranks in (0, -1):
        with pytest.raises(hmc.InvalidArgumentError, match=r"n is .*1 or more"):
            hmc.spawn(os.getpid, ranks)
    for seconds in (-1.0, float("nan")):
        with pytest.raises(hmc.InvalidArgumentError, match="timeout"):
            hmc.spawn(os.getpid, 1, timeout=seconds)
    for wrong in (1.5, "2", True):
        with pytest.raises(TypeError, match="n must be an int"):
            hmc.spawn(os.getpid, wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="timeout must be a number"):
        hmc.spawn(os.getpid, 1, timeout="soon")  # type: ignore[arg-type]
    assert len(hmc.spawn(os.getpid, np.int64(2), timeout=1e300)) == 2
    with pytest.raises(TypeError, match="callable"):
        hmc.spawn("work", 1)  # type: ignore[arg-type]


def test_what_cannot_be_sent_is_named() -> None:
    lock = threading.Lock()
    with pytest.raises(hmc.InvalidArgumentError, match=r"argument 1 of fn \(lock\) cannot be sent"):
        hmc.spawn(max, 1, 0, lock)
    with pytest.raises(hmc.InvalidArgumentError, match="fn cannot be sent"):
        hmc.spawn(lambda: lock, 1)
    with hmc.init(rank=0, size=1) as comm, pytest.raises(hmc.InvalidArgumentError, match="argument 0 of fn"):
        hmc.spawn(print, 1, comm)
    with pytest.raises(hmc.RankFailedError, match=r"the result of fn \(lock\) cannot be sent") as caught:
        hmc.spawn(threading.Lock, 2, timeout=60)
    assert isinstance(caught.value.__cause__, hmc.InvalidArgumentError)


class Picky(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__("picky")


def test_an_exception_that_cannot_be_sent_is_a_text() -> None:
    def fail() -> None:
        raise Picky(1, 2)

    with pytest.raises(hmc.RankFailedError, match="Picky: picky") as caught:
        hmc.spawn(fail, 1, timeout=60)
    assert caught.value.__cause__ is None


def test_threads_spawn_at_once() -> None:
    results: dict[int, list[int]] = {}

    def run(number: int) -> None:
        results[number] = hmc.spawn(lambda: number * 10 + int(os.environ["HMC_RANK"]), 2, timeout=60)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {number: [number * 10, number * 10 + 1] for number in range(3)}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
@pytest.mark.parametrize("stopped", [False, True])
def test_no_rank_outlives_the_caller(number: signal.Signals, stopped: bool, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        textwrap.dedent(f"""
        import os, signal, time, hmc
        def work():
            print(os.getpid(), flush=True)
            if {stopped} and os.environ["HMC_RANK"] == "1":
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(100)
        try:
            hmc.spawn(work, 3)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """)
    )
    # What runs in the background of a shell is started with Ctrl-C ignored, and hands that on.
    listen = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    command = [sys.executable, str(tmp_path / "program.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=listen) as process:
        assert process.stdout
        ranks = [int(process.stdout.readline().split()[1]) for _ in range(3)]
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait(20) == {signal.SIGINT: 0}.get(number, -number)
    assert ("interrupted" in rest) == (number == signal.SIGINT)
    end = time.monotonic() + 20
    while any(alive(rank) for rank in ranks):
        assert time.monotonic() < end, "a rank still runs"
        time.sleep(0.02)


def test_names_of_the_script_are_its_own(tmp_path: Path) -> None:
    script = tmp_path / "names.py"
    script.write_text(
        textwrap.dedent(
            """
            import hmc

            sys = "not the module"

            def main():
                return "mine"

            def call():
                return main() + ", " + sys

            if __name__ == "__main__":
                print(hmc.spawn(call, 1, timeout=30))
            """
        )
    )
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout == "['mine, not the module']\n", result.stderr


class ExitsWhenLoaded:
    def __reduce__(self) -> Any:
        return sys.exit, (5,)


def test_a_result_that_exits_when_it_is_loaded_is_an_error() -> None:
    with pytest.raises(hmc.RankFailedError, match="rank 0 returned what cannot be loaded here: SystemExit"):
        hmc.spawn(ExitsWhenLoaded, 1, timeout=30)
