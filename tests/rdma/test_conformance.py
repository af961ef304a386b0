"""The conformance suite of transports over real verbs, between two devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def program(name: str) -> Path:
    for folder in ("package", "dev"):
        if (path := ROOT / "build" / folder / "tests" / "cpp" / name).exists():
            return path
    pytest.skip("the C++ tests are not built: make test builds them")


SUITES = ["Conformance", "Short", "Transfer", "Closing", "Blocks", "Signals", "Ends", "Deaths"]


def marked(quick: int) -> list[Any]:
    """All suites but the first ``quick`` are slow."""
    return [*SUITES[:quick], *(pytest.param(suite, marks=pytest.mark.slow) for suite in SUITES[quick:])]


def run_suite(run_in_guest: Callable[..., str], suite: str, subject: str, **environment: str) -> None:
    name = suite if suite == "Conformance" else f"Conformance{suite}"
    # In emulation a case takes up to half a minute, on a busy machine some three times that.
    environment = {"HMC_TEST_NICS": "rxe0,rxe1", "HMC_TEST_SLOW": "1", "HMC_TEST_TIMEOUT": "200", **environment}
    out = run_in_guest(f"{program('test_transport')} --gtest_brief=1 --gtest_filter='*/{name}.*/{subject}'", 480, environment)
    assert "PASSED" in out
    assert "SKIPPED" not in out


@pytest.mark.timeout(540)
@pytest.mark.parametrize("suite", marked(4))
def test_verbs(run_in_guest: Callable[..., str], suite: str) -> None:
    # Deaths are noticed after 1 s, not 4; on a busy machine a card of the others may need more to answer.
    run_suite(run_in_guest, suite, "verbs", **({"HMC_VERBS_TIMEOUT": "15"} if suite == "Deaths" else {}))


@pytest.mark.timeout(540)
@pytest.mark.parametrize("suite", marked(2))
def test_ucx(run_in_guest: Callable[..., str], ucx_rc: dict[str, str], suite: str) -> None:
    run_suite(run_in_guest, suite, "ucx_rdma", **ucx_rc)


@pytest.mark.timeout(150)
def test_hostile_peers(run_in_guest: Callable[..., str]) -> None:
    out = run_in_guest(f"{program('test_transport_verbs')} --gtest_brief=1", 120)
    assert "PASSED" in out
    assert "SKIPPED" not in out
