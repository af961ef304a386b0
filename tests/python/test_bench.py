"""`hmc bench`: sizes below those of its own messages, and the paths that its results name."""

from __future__ import annotations

import json

from commands import run_hmc


def test_puts_smaller_than_a_notified_one_are_measured() -> None:
    result = run_hmc("bench", "--operations", "put", "--sizes", "4", "--repeat", "1", "--json")
    assert result.returncode == 0, result.stderr
    found = [(point["hmc-bench"], point["size"]) for point in json.loads(result.stdout)]
    assert found == [("raw flag", 8), ("memcpy", 4), ("put", 4), ("put+notify", 8)]


def test_messages_are_labelled_with_the_path_of_messages() -> None:
    arguments = [
        "--operations",
        "send,rate,put",
        "--sizes",
        "64K",
        "--repeat",
        "1",
        "--simulate",
        "cuda",
        "--devices",
        "cuda:0,cpu",
        "--json",
    ]
    result = run_hmc("bench", *arguments)
    assert result.returncode == 0, result.stderr
    path = {point["hmc-bench"]: point["transport"] for point in json.loads(result.stdout)}
    assert path["rate"] == path["send"] != path["put"], path
