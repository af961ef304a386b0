"""What the `hmc` command writes: to files that cannot be written, to readers that left, in encodings that lack a character."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from commands import HMC, run_hmc

import hmc


def topology_file(folder: Path, model: str = "") -> str:
    file = folder / "cards.topo"
    file.write_text(f'hmc-topology 1\nhost h\ncard c host=h device=cpu model="{model}"\n')
    return str(file)


def test_a_topology_that_cannot_be_saved_is_one_line(tmp_path: Path) -> None:
    result = run_hmc("topo", "--file", topology_file(tmp_path), "--save", "/dev/full")
    assert result.returncode == 2
    [line] = result.stderr.splitlines()
    assert line.startswith("hmc topo: ")
    assert "/dev/full" in line


def test_a_topology_is_saved_to_standard_output_alone(tmp_path: Path) -> None:
    file = topology_file(tmp_path)
    result = run_hmc("topo", "--file", file, "--save", "-", "--json", "data.json", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == str(hmc.Topology.load(file))
    assert not (tmp_path / "-").exists()
    assert (tmp_path / "data.json").exists()


def test_a_topology_and_json_do_not_share_standard_output(tmp_path: Path) -> None:
    result = run_hmc("topo", "--file", topology_file(tmp_path), "--save", "-", "--json")
    assert (result.returncode, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert "--save" in line
    assert "--json" in line


def test_a_card_whose_model_is_blank_is_shown(tmp_path: Path) -> None:
    result = run_hmc("topo", "--file", topology_file(tmp_path, " "))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == ["host h", "  c"]


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_characters_that_the_output_cannot_encode_are_escaped(encoding: str) -> None:
    environment = {**os.environb, b"HMC_CACHE": b"/tmp/\xff", b"PYTHONIOENCODING": encoding.encode()}
    result = subprocess.run([*HMC, "info"], capture_output=True, timeout=60, check=False, env=environment)
    assert (result.returncode, result.stderr) == (0, b"")
    assert rb"/tmp/\udcff" in result.stdout


@pytest.mark.parametrize("more", [[], ["--train"]], ids=["", "train"])
def test_a_default_picture_that_cannot_be_written_is_refused_before_the_work(more: list[str], tmp_path: Path) -> None:
    (tmp_path / "hmc-demo.png").mkdir()
    result = run_hmc("demo", "--quick", *more, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("hmc demo: hmc-demo.png is a folder; ")
    assert "--picture" in line


@pytest.mark.parametrize("file", ["loop", "loop/x.json", "x" * 300, "file/x.json"], ids=lambda name: name[:12])
def test_a_file_that_the_system_refuses_is_one_line_before_the_work(file: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    result = run_hmc("info", "--json", file, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith("hmc info: error: argument --json: ")


def chatty(folder: Path, then: str) -> dict[str, str]:
    """An environment in which the process that looks for devices prints a line of its own, then does that."""
    (folder / "sitecustomize.py").write_text(
        f"import atexit, os, sys\nif 'devices.py' in ' '.join(sys.orig_argv):\n    os.write(1, b'driver 1.0\\n')\n    {then}\n"
    )
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def test_a_vendor_library_that_prints_does_not_disturb(tmp_path: Path) -> None:
    environment = chatty(tmp_path, "atexit.register(os.write, 1, b'goodbye from the driver')")
    result = run_hmc("topo", "--devices", "cpu", environment=environment)
    assert result.returncode == 0, result.stderr
    assert "goodbye" not in result.stdout
    assert "goodbye from the driver" in result.stderr


def test_what_is_printed_in_place_of_devices_is_named(tmp_path: Path) -> None:
    result = run_hmc("topo", "--devices", "cpu", environment=chatty(tmp_path, "os._exit(0)"))
    assert (result.returncode, result.stdout) == (2, "")
    [line] = result.stderr.splitlines()
    assert "looks for devices" in line
    assert "'driver 1.0'" in line


def run_into(output: int, arguments: list[str], unbuffered: str) -> subprocess.CompletedProcess[str]:
    """The `hmc` command whose standard output is a descriptor, which is closed here."""
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with os.fdopen(output, "wb") as file:
        return subprocess.run(
            [*HMC, *arguments], stdout=file, stderr=subprocess.PIPE, text=True, timeout=60, check=False, env=environment
        )


PRINTING = [["info"], ["--version"], ["--includedir"], ["--cmakedir"], ["--help"], ["run", "--help"]]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_a_reader_that_left_is_no_traceback(arguments: list[str], unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    result = run_into(writing, arguments, unbuffered)
    ignored = unbuffered and "--help" in arguments  # argparse ignores errors of its writes
    assert (result.returncode, result.stderr) == (0 if ignored else 1, "")


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    result = run_into(os.open("/dev/full", os.O_WRONLY), arguments, "")
    assert result.returncode == 2
    [line] = result.stderr.splitlines()
    assert line.startswith("hmc info: " if arguments == ["info"] else "hmc: ")
    assert "No space left" in line


@pytest.mark.parametrize(("arguments", "name"), [(["info", "--json"], "x.json"), (["topo", "--picture"], "x.png")])
def test_a_full_disk_names_the_file(tmp_path: Path, arguments: list[str], name: str) -> None:
    file = tmp_path / name
    file.symlink_to("/dev/full")
    result = subprocess.run([*HMC, *arguments, str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (2, f"hmc {arguments[0]}: No space left on device: {file}\n")


def test_a_closed_output_is_no_traceback(tmp_path: Path) -> None:
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        command = f"{' '.join(HMC)} info {closed}"
        result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
        assert (result.returncode, result.stderr) == (0, ""), closed
