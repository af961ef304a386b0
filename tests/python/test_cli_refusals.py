"""Options that a command would ignore are refused: one line that names them, status 2, before any work."""

from __future__ import annotations

import os
import resource
import subprocess
from functools import partial
from pathlib import Path

import pytest
from commands import HMC, run_hmc

TOPOLOGY = "hmc-topology 1\nhost h\ncard c host=h device=cpu\n"


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["topo", "--file", "t", "--simulate", "cuda"], "--simulate"),
        (["topo", "--file", "t", "--devices", "nosuch:1"], "--devices"),
        (["plan", "--islands", "8xH200", "--ranks", "3"], "--ranks"),
        (["plan", "--islands", "8xH200", "--bandwidth", "1"], "--bandwidth"),
        (["plan", "--islands", "8xH200", "--injection", "1"], "--injection"),
        (["plan", "--islands", "8xH200", "--reduction", "1"], "--reduction"),
        (["plan", "--islands", "8xH200,8xH200", "--exact"], "--exact"),
        (["demo", "--train", "--quick", "--tokens", "64"], "--tokens"),
        (["demo", "--serve", "--quick", "--tokens", "64"], "--tokens"),
        (["demo", "--serve", "--quick", "--picture", "x.png"], "--picture"),
        (["demo", "--quick", "--tokens", "64"], "--tokens"),
        (["bench", "--operations", "put", "--sizes", "8", "--blocks", "16x4K"], "--blocks"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_option_without_effect_is_refused(arguments: list[str], option: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(TOPOLOGY)
    result = run_hmc(*arguments, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert line.startswith(f"hmc {arguments[0]}: ")
    assert option in line


def test_defaults_are_as_documented(tmp_path: Path) -> None:
    asked = ["--ranks", "8", "--bandwidth", "50G", "--injection", "50G", "--reduction", "10G"]
    assert run_hmc("plan").stdout == run_hmc("plan", *asked).stdout


@pytest.mark.parametrize("size", ["\u00b2", "\u00b2K", "9" * 5000, "-1", "1e3"], ids=ascii)
@pytest.mark.parametrize("arguments", [["bench", "--sizes"], ["bench", "--blocks"], ["plan", "--bytes"]], ids=" ".join)
def test_a_number_that_is_no_size_is_named(arguments: list[str], size: str) -> None:
    given = f"4x{size}" if "--blocks" in arguments else size
    result = run_hmc(*arguments, given)
    assert (result.returncode, result.stdout) == (2, "")
    assert "is not a size such as 8, 64K or 1M" in result.stderr
    assert len(result.stderr.splitlines()[-1]) < 200


def test_a_working_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = ["sh", "-c", f'rmdir "{gone}" && exec "$@"', "sh", *HMC, "info", "--json", "x.json"]
    result = subprocess.run(command, cwd=gone, capture_output=True, text=True, timeout=120, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert "x.json: the working directory cannot be used: No such file or directory" in result.stderr


def test_bench_runs_where_temporary_files_have_no_unicode_path(tmp_path: Path) -> None:
    folder = os.fsdecode(bytes(tmp_path) + b"/\xff")
    os.mkdir(folder)
    arguments = ["bench", "--operations", "put", "--sizes", "8", "--repeat", "1"]
    assert run_hmc(*arguments, environment={"TMPDIR": folder}).returncode == 0


@pytest.mark.parametrize("operation", ["send", "put", "alltoall"])
def test_bench_without_the_memory_is_one_line(operation: str) -> None:
    limit = (resource.RLIMIT_AS, (4 << 30, 4 << 30))
    command = [*HMC, "bench", "--operations", operation, "--sizes", "1023G", "--repeat", "1"]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, preexec_fn=partial(resource.setrlimit, *limit)
    )
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("hmc bench: rank ")
    assert "out of memory" in line


def test_a_size_that_no_memory_has_is_named() -> None:
    result = run_hmc("bench", "--sizes", "9999999999G")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "hmc bench: '9999999999G' is more than 2**63 - 1 bytes\n"


def test_a_topology_and_json_do_not_share_a_file(tmp_path: Path) -> None:
    result = run_hmc("topo", "--save", "one", "--json", "one", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "hmc topo: --save and --json both write one; give them two files\n"
    assert not (tmp_path / "one").exists()


def test_ctrl_c_does_not_reach_the_search_for_devices(tmp_path: Path) -> None:
    """It would print a traceback; the command ends it."""
    found = tmp_path / "found"
    write = f"open({str(found)!r}, 'w').write(str(os.getsid(0) == os.getpid()))"
    hook = f"import os, sys\nif sys.orig_argv[-1].endswith('devices.py'): {write}\n"
    (tmp_path / "sitecustomize.py").write_text(hook)
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    assert run_hmc("topo", environment={"PYTHONPATH": paths}).returncode == 0
    assert found.read_text() == "True"
