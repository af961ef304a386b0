"""Arrays, and sequences of them, that change while HMC looks at them."""

from __future__ import annotations

from collections.abc import Callable


def test_a_sequence_that_makes_its_arrays_for_each_look(run_script: Callable[..., str]) -> None:
    run_script(
        """
from hmc.layout import Layout, convert, digest
layout = Layout("L=1 B=256 H=4 N=16 (kv D=64) f32")
kept = np.arange(layout.buffer_bytes // 4, dtype=np.float32)
class Fresh(list):
    def __getitem__(self, at):
        return kept.copy()
blocks = list(range(256))
assert digest(layout, Fresh([kept]), blocks, 4096) == digest(layout, kept, blocks, 4096)
target = np.zeros_like(kept)
convert(layout, Fresh([kept]), blocks, layout, target, blocks, 4096)
assert np.array_equal(target, kept)
""",
        {},
    )
