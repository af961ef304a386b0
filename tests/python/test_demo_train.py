"""`hmc demo --train`: its figures agree, and other gradients or devices are named."""

from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from commands import run_hmc

from hmc.demo.train import QUICK_STEP, RELATIVE_SPEED
from hmc.demo.train.model import BATCH, Model, batch_of, proportional_shares

QUICK = ["demo", "--train", "--quick", "--simulate", "cuda,rocm"]


@pytest.mark.parametrize("ranks", [2, 3])
def test_two_islands_train_as_one_does(tmp_path: Path, ranks: int) -> None:
    result = run_hmc(*QUICK, "--ranks", str(ranks), "--json", "results.json", "--picture", "train.svg", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    out = " ".join(result.stdout.split())
    for said in ("Emulated: the speed of the cards", "time-dilated", "Simulated devices are libraries of HMC", "of the sum"):
        assert said in out, out
    results = json.loads((tmp_path / "results.json").read_text())
    runs = results["runs"]
    assert set(runs) == {"both", "both again", "cuda", "rocm"}
    assert all(sum(run["shares"].values()) == BATCH and len(run["losses"]) == 8 for run in runs.values())
    assert runs["both"]["losses"] == runs["both again"]["losses"]
    # What one process computes without HMC.
    model, alone = Model(), []
    for step in range(8):
        alone.append(model.update(model.gradient(*batch_of(step))))
    for run in runs.values():
        np.testing.assert_allclose(run["losses"], alone, rtol=1e-4)
    # Shares follow the measured speeds. A card is at most as fast as it is emulated; on a busy machine it is slower.
    speeds = [runs["both"]["measured_samples_per_second"][str(rank)] for rank in range(ranks)]
    assert [runs["both"]["shares"][str(rank)] for rank in range(ranks)] == proportional_shares(speeds, BATCH)
    emulated = BATCH / QUICK_STEP / (ranks - 1 + RELATIVE_SPEED)
    assert 0 < speeds[1] <= RELATIVE_SPEED * emulated * (1 + 1e-6)
    expected = runs["both"]["samples_per_second"] / (runs["cuda"]["samples_per_second"] + runs["rocm"]["samples_per_second"])
    assert results["ratio"] == pytest.approx(expected)
    assert len(results["links"]) == ranks * (ranks - 1)
    ways = {(link["source"], link["target"]): link["transport"] for link in results["links"]}
    assert ways[0, 1] == "staging"
    assert ways.get((0, 2), "ipc") == "ipc"
    assert [check["good"] for check in results["checks"]] == [True] * 9
    assert (tmp_path / "train.svg").exists() or "matplotlib is not installed" in out


def test_other_gradients_are_found(tmp_path: Path) -> None:
    # Rank 1 computes with another activation: all ranks agree, but the islands alone learn otherwise.
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('HMC_RANK') == '1':\n"
        "    import numpy as np\n"
        "    true = np.tanh\n"
        "    np.tanh = lambda x: np.float32(0.99) * true(x)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    arguments = [*QUICK, "--ranks", "2", "--picture", ""]
    result = run_hmc(*arguments, cwd=tmp_path, environment={"PYTHONPATH": path})
    assert result.returncode == 1, result.stdout + result.stderr
    assert "FAILED: cuda alone" in result.stderr
    assert "bit by bit" not in result.stderr


@pytest.mark.parametrize("devices", ["cuda:0,cuda:1", "cuda:0,rocm:0,cpu"])
def test_it_takes_two_vendors(devices: str) -> None:
    result = run_hmc(*QUICK, "--ranks", "3", "--devices", devices)
    assert result.returncode == 2
    assert "devices of two vendors" in result.stderr


def test_gradient_is_the_slope_of_the_loss() -> None:
    model = Model()
    inputs, classes = batch_of(0)
    inputs, classes = inputs[:200], classes[:200]
    sums = model.gradient(inputs, classes)
    random = np.random.default_rng(9)
    for _ in range(5):
        direction = random.standard_normal(model.weights.size).astype(np.float32)
        direction /= np.linalg.norm(direction)
        start = model.weights.copy()
        ends = []
        for sign in (1, -1):
            model.weights[:] = start + np.float32(sign * 0.05) * direction
            ends.append(float(model.gradient(inputs, classes)[-1]))
        model.weights[:] = start
        assert (ends[0] - ends[1]) / 0.1 == pytest.approx(float(sums[:-1] @ direction), rel=0.02, abs=0.02)


@pytest.mark.parametrize("speeds", [[1.0], [1.0, 0.6], [5.0, 1.0, 3.3], [1e-3, 7.0, 2.0]])
def test_shares_let_the_last_card_finish_first(speeds: list[float]) -> None:
    for total in (0, 1, 7, 12):
        shares = proportional_shares(speeds, total)
        assert sum(shares) == total
        times = [
            max(n / speed for n, speed in zip(split, speeds, strict=True))
            for split in product(range(total + 1), repeat=len(speeds))
            if sum(split) == total
        ]
        assert max(n / speed for n, speed in zip(shares, speeds, strict=True)) == pytest.approx(min(times))
