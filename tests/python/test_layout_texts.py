"""Descriptions of layouts, and moves between them, that are refused by name; the complete text of a layout."""

from __future__ import annotations

import numpy as np
import pytest

import hmc
from hmc import layout as kv
from hmc.layout import Layout


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("bf16", "axis B is missing"),
        ("", "element type is missing"),
        ("B N H D bf16", "extent of axis B"),
        ("B=2 N=2 D=4", "element type"),
        ("B=2 N=2 D=4 i32", "i32"),
        ("B=2 N=2 X=3 D=4 bf16", "X=3"),
        ("B=2 N=2 N=2 D=4 bf16", "two extents"),
        ("B=2 N=2 D=4 N bf16", "twice"),
        ("B=2 N=8/4 D=8/4 4 N%4 bf16", "several axes are divided by 4"),
        ("B=2 N=2 D=8 8 bf16", "no axis is divided by 8"),
        ("B=2 N=2 D=8/8 bf16", "D%n"),
        ("B=2 N=2 D=12/8 8 bf16", "multiple of 8"),
        ("B=2 H=4/2 2 N=2 D=8 bf16", "only N and D"),
        ("B=2 N=2:4 D=8 bf16", "share memory"),
        ("B=2 (N=2 D=8 bf16", "parentheses"),
        ("B=2 | N=2 D=8 bf16", "only L and kv"),
        ("L=2 | B=2 | N=2 D=8 bf16", "more than one"),
        ("B=2 N=2 D=8 bf16 scale=nan", "scale"),
        ("B=2 N=2 D=8 bf16 scale=0", "scale"),
        ("B=2 N=2 D=8 bf16 scale=1,2,3", "3 scales"),
        ("B=2 N=2 D=8 bf16 f16", "more than one element type"),
        ("B=4294967296 N=65536 D=16384 H=65536 f32", "2\\^50"),
        ("B=99999999999 N=2 D=8 bf16", "at most"),
        ("B=2@4 N=2 D=8 bf16", "@"),
        ("B=2 N=2:0 D=8 bf16", "stride"),
        ("B=2 N=2 D=8 bf16 " + " " * 140_000, "131072"),
    ],
)
def test_descriptions_are_refused_by_name(text: str, names: str) -> None:
    with pytest.raises(hmc.InvalidArgumentError, match=names):
        Layout(text)


def test_moves_are_refused_by_name() -> None:
    a = Layout("L=2 B=4 H=2 N=16 (kv D=8) bf16")
    other = {
        "D=": Layout("L=2 B=4 H=2 N=16 (kv D=16) bf16"),
        "kv=": Layout("L=2 B=4 H=2 N=16 D=8 bf16"),
        "no layer": Layout("L=2@2 B=4 H=2 N=16 (kv D=8) bf16"),
        "no head": Layout("L=2 B=4 H=2@2 N=16 (kv D=8) bf16"),
    }
    for message, b in other.items():
        with pytest.raises(hmc.InvalidArgumentError, match=message):
            kv.runs(a, [0], b, [0], 16)
    for blocks, tokens, message in (
        ([0, 4], 16, "block 4 of 4"),
        ([0], 17, "do not fit"),
        ([0], 0, "tokens"),
        ([1, 1], 32, "twice"),
    ):
        with pytest.raises(hmc.InvalidArgumentError, match=message):
            kv.runs(a, [0, 1], a, blocks, tokens)
    with pytest.raises(hmc.UnsupportedError, match="convert"):
        kv.runs(a, [0], Layout("L=2 B=4 H=2 N=16 (kv D=8) f16"), [0], 16)
    with pytest.raises(hmc.UnsupportedError, match="convert"):
        kv.runs(a, [0], Layout("L=2 B=4 H=2 N=16 (kv D=8) bf16 scale=2"), [0], 16)
    with pytest.raises(hmc.InvalidArgumentError, match="layers"):
        kv.runs(a, [0], a, [0], 16, layers=(1, 2))
    array = np.zeros(a.buffer_bytes - 1, dtype=np.uint8)
    whole = np.zeros(a.buffer_bytes, dtype=np.uint8)
    for source, target in ((array, whole), (whole, array), ([whole, whole], whole)):
        with pytest.raises(hmc.InvalidArgumentError, match="buffers"):
            kv.convert(a, source, [0], a, target, [1], 16)


def test_equal_layouts_move_in_whole_blocks() -> None:
    a = Layout("L=4 B=8 H=2 N=16 (kv D=8) bf16")
    [run] = kv.runs(a, [3, 5], a, [1, 2], 32)
    assert run.nbytes == 2 * 16 * 2 * 8 * 2
    assert len(run.source_offsets) == 4 * 2


def test_text_is_complete() -> None:
    text = "L=4@8 | B=8:4096 kv=2 H=2@6 D=16/8 N=16 D%8 f8_e4m3fnuz scale=0.25,3"
    made = Layout(text)
    assert str(made) == text
    assert Layout(str(made)) == made
    assert hash(Layout(str(made))) == hash(made)
    assert Layout("L B H N (kv D)", L=2, B=3, H=4, N=5, D=6, dtype="bfloat16", scales=[2.0]) == Layout(
        "L=2 B=3 H=4 N=5 kv D=6 bf16 scale=2"
    )
    assert made.scales[:2] == [0.25, 3.0]
    assert (made.layers, made.heads, made.blocks, made.block, made.dims, made.kv) == ((8, 4), (6, 2), 8, 16, 16, 2)
