"""bench/replay: what goes where, by HMC's counters, in every mode. No times: they are emulated."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hmc

pytestmark = pytest.mark.timeout(360)  # six jobs, one after the other
FOLDER = Path(__file__).resolve().parents[2] / "bench" / "replay"
MICROBATCHES, STEPS = 3, 2
PAYLOAD, REDUCED = (32 << 20) // 256, (512 << 20) // 256


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """What the command prints, and its JSON."""
    file = tmp_path_factory.mktemp("replay") / "results.json"
    options = ["--microbatches", str(MICROBATCHES), "--steps", str(STEPS), "--dilation", "0.01", "--json", str(file)]
    result = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), *options], capture_output=True, text=True, timeout=340, cwd="/"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout, json.loads(file.read_text())


def test_every_mode_moves_the_bytes_of_a_step(replayed: tuple[str, dict[str, Any]]) -> None:
    inside = {
        (link.source, link.target): link.bytes
        for link in hmc.plan_collective("all_reduce", REDUCED, 2, algorithm="reduce-scatter + all-gather").links
    }
    wanted = {(0, 2), (2, 0), (1, 3), (3, 1)}
    expected = dict.fromkeys(wanted, MICROBATCHES * PAYLOAD)
    for (source, target), size in inside.items():
        expected |= {(source, target): size, (source + 2, target + 2): size}
    for mode in replayed[1]["modes"]:
        found = {(link["source"], link["target"]): link["bytes"] for link in mode["links"]}
        assert found == expected, mode["name"]


def test_every_mode_takes_its_paths(replayed: tuple[str, dict[str, Any]]) -> None:
    direct, ring, carried = "ipc (", "staging (4096 KiB chunks in a shared ring)", "staging (4096 KiB chunks carried by tcp)"
    expected = {
        "all-NVIDIA": (direct, direct),
        "device-direct": (ring, direct),
        "all-AMD": (direct, direct),
        "CPU, NIC per GPU": (carried, direct),
        "CPU, one NIC": (carried, direct),
        "CPU, one backend": (carried, carried),
    }
    assert [mode["name"] for mode in replayed[1]["modes"]] == list(expected)
    for mode in replayed[1]["modes"]:
        staged = 0
        for link in mode["links"]:
            between = abs(link["source"] - link["target"]) == 2
            path = expected[mode["name"]][0 if between else 1]
            assert link["path"].startswith(path), mode["name"]
            if link["source"] == 0 and path.startswith("staging"):
                staged += 2 * STEPS * link["bytes"]  # what rank 0 sends, and as much that it receives
        assert mode["staged"] == [staged] * 4, mode["name"]


def test_the_report_says_what_is_emulated(replayed: tuple[str, dict[str, Any]]) -> None:
    text, data = replayed
    lines = text.splitlines()
    assert [line.split("  ")[0] for line in lines[1:7]] == [mode["name"] for mode in data["modes"]]
    assert {mode["source"] for mode in data["modes"]} == {"paper", "derived"}
    for word in ("order: ", "real: ", "no prediction", "its table was not at hand", "late: "):
        assert word in " ".join(lines).replace("Its table", "its table"), word
    assert sum(line.startswith("emulated: ") for line in lines) == 4
    first = data["modes"][0]
    for mode in data["modes"]:
        assert mode["seconds"] > 0
        assert 0 <= mode["late"] < 1
        assert mode["relative"] == pytest.approx(first["seconds"] / mode["seconds"])
    assert data["steps"] == STEPS
    assert data["scenario"]["microbatches"] == MICROBATCHES


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"replay_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_a_nic_carries_one_message_after_the_other(tmp_path: Path) -> None:
    links = load("links").Links
    links.create(tmp_path / "nics", 3)
    mine, other = links(tmp_path / "nics", 3), links(tmp_path / "nics", 3)
    first = mine.begin(rank=0, nic=0, number=0, seconds=1000)
    assert other.begin(rank=1, nic=0, number=7, seconds=500) == first + 500
    assert mine.begin(rank=2, nic=1, number=0, seconds=1000) < first + 500, "another NIC is free"
    assert mine.begin(rank=0, nic=0, number=1, seconds=1) == first + 501
    assert [mine.end(0, 0), mine.end(1, 7), other.end(0, 1)] == [first, first + 500, first + 501]


def test_stages_of_unequal_cards_take_the_same_time() -> None:
    modes = load("modes")
    scenario = modes.Scenario(second_speed=0.5)
    assert scenario.slowness(("cuda", "cuda")) == 1
    assert scenario.slowness(("rocm", "rocm")) == 2
    assert scenario.slowness(("cuda", "rocm")) == pytest.approx(4 / 3)  # two thirds of the layers, and a third at half the speed
