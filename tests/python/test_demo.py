"""`hmc demo`: on the CPU, on simulated vendors, and when something is wrong."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from commands import run_hmc


@pytest.mark.parametrize("transports", ["", "tcp"], ids=["default", "tcp"])
def test_demo_checks_every_byte(tmp_path: Path, transports: str) -> None:
    arguments = ["demo", "--quick", "--devices", "cpu", *(["--transports", transports] if transports else [])]
    result = run_hmc(*arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "checks passed" in result.stdout
    assert any(tmp_path.glob("*.png")) or any(tmp_path.glob("*.svg")) or "matplotlib" in result.stdout


def words(text: str) -> str:
    """Text as printed, in one line however it was broken."""
    return " ".join(text.split())


def test_demo_between_simulated_vendors(tmp_path: Path) -> None:
    vendors = ["cuda", "rocm", "mlu", "musa"]
    result = run_hmc("demo", "--quick", "--simulate", ",".join(vendors), "--json", "results.json", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    out = words(result.stdout)
    assert "memory: " + ", ".join(f"{vendor}:0 (simulated)" for vendor in vendors) in out
    assert "speeds say nothing about any hardware" in out
    assert "checks passed" in out
    results = json.loads((tmp_path / "results.json").read_text())
    assert [place["name"] for place in results["places"]] == [f"{vendor}:0" for vendor in vendors]
    assert {place["provenance"] for place in results["places"]} == {"simulated"}
    assert {message["phase"] for message in results["moved"]} == {"KV cache", "activations", "experts"}
    assert all(message["transport"] == "staging" and not message["direct"] for message in results["moved"])
    assert all(check["good"] for check in results["checks"])
    assert not results["memcpy"]


def test_demo_takes_the_devices_that_it_is_given(tmp_path: Path) -> None:
    arguments = ["--simulate", "hygon", "--devices", "hygon:1,cpu,hygon:0", "--json", "results.json", "--picture", ""]
    result = run_hmc("demo", "--quick", *arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert [place["name"] for place in results["places"]] == ["hygon:1", "cpu", "hygon:0", "hygon:1"]
    ways = {(message["src"], message["dst"]): message["transport"] for message in results["moved"]}
    assert ways[0, 2] == ways[2, 3] == ways[3, 0] == "ipc"
    assert ways[0, 1] == ways[1, 2] == "staging"  # messages
    assert len(results["memcpy"]) == 1


def test_demo_names_the_devices_that_there_are() -> None:
    result = run_hmc("demo", "--simulate", "rocm", "--devices", "cpu,musa:77")
    assert result.returncode == 2
    assert "no device musa:77" in result.stderr
    assert "rocm:1 (simulated)" in result.stderr


def test_demo_names_the_vendors_that_can_be_simulated() -> None:
    result = run_hmc("demo", "--simulate", "cuda,abacus")
    assert result.returncode == 2
    assert "'abacus' is not a vendor" in result.stderr
    assert "musa" in result.stderr


def test_demo_fails_when_other_bytes_arrive(tmp_path: Path) -> None:
    # Rank 1 sends something else than the others expect of it.
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('HMC_RANK') == '1':\n"
        "    import numpy as np\n"
        "    true = np.random.SFC64\n"
        "    np.random.SFC64 = lambda seed: true([number + (n == 0 and seed[1] == 1) for n, number in enumerate(seed)])\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    arguments = ["demo", "--quick", "--ranks", "2", "--picture", "", "--simulate", "cuda,rocm"]
    result = run_hmc(*arguments, cwd=tmp_path, environment={"PYTHONPATH": path})
    assert result.returncode == 1, result.stdout + result.stderr
    assert "FAILED: activations from 1 to 0: bytes differ" in result.stderr
    assert "FAILED: experts from 1 to 0: bytes differ" in result.stderr
    assert "from 0 to 1" not in result.stderr
    assert "checks passed" not in result.stdout


@pytest.mark.parametrize("arguments", [["--devices", "cpu"], ["--simulate", "cuda,rocm"]], ids=["cpu", "simulated"])
def test_the_figures_agree(tmp_path: Path, arguments: list[str]) -> None:
    result = run_hmc("demo", "--quick", *arguments, "--picture", "", "--json", "results.json", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    out = words(result.stdout)
    results = json.loads((tmp_path / "results.json").read_text())
    moved = sum(message["bytes"] for message in results["moved"])
    assert moved == sum(check["bytes"] for check in results["checks"])
    # The prompt's cache, as announced, is what a round of its phase moves between two cards.
    assert "128 tokens has 16.0 MiB of KV cache" in out
    assert {message["bytes"] for message in results["moved"] if message["phase"] == "KV cache"} == {16 << 20}
    table = [line.split() for line in result.stdout.splitlines() if line.startswith((" KV cache", " activations", " experts"))]
    amounts = [float(next(cell for cell in cells if re.fullmatch(r"\d+\.\d", cell))) for cells in table]
    assert 2 * sum(amounts) == pytest.approx(moved / 2**20, abs=2 * 0.05 * len(amounts))
    assert f"All rounds together moved {moved / 2**20:.1f} MiB" in out
    assert f"{moved / 2**20:.1f} MiB compared" in out
    staged = sum(message["bytes"] for message in results["moved"] if not message["direct"])
    assert ("nothing through a stage" in out) == (staged == 0)
    # The Contexts count a message at both of its ends, a put at one.
    counted = sum(counters.get("bytes_staged", 0) for counters in results["counters"].values())
    assert staged <= counted <= 2 * staged
