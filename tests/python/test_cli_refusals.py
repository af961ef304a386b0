"""Options that a command would ignore are refused: one line that names them, status 2, before any work."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import run_hmc

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
