"""The conformance suite of transports over real verbs, between two devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_program() -> Path:
    for folder in ("package", "dev"):
        if (path := ROOT / "build" / folder / "tests" / "cpp" / "test_transport").exists():
            return path
    pytest.skip("the C++ tests are not built: make test builds them")


test_program.__test__ = False  # type: ignore[attr-defined]

SUITES = ["Conformance", "Short", "Transfer", "Blocks", "Signals", "Ends", "Closing", "Deaths"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("suite", SUITES)
def test_suite(run_in_guest: Callable[..., str], suite: str) -> None:
    name = suite if suite == "Conformance" else f"Conformance{suite}"
    out = run_in_guest(f"{test_program()} --gtest_brief=1 --gtest_filter='*/{name}.*/verbs'", 240, {"HMC_TEST_NICS": "rxe0,rxe1"})
    assert "SKIPPED" not in out
    assert "PASSED" in out
