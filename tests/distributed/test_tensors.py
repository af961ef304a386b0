"""What calls do to tensors, and how tensors of unusual types and shapes go through them: as with gloo."""

from __future__ import annotations

from collections.abc import Callable


def test_lists_of_all_gather_coalesced_are_of_ranks(run_torch: Callable[..., list[str]]) -> None:
    run_torch(
        """
        rank, size = start()
        group = dist.group.WORLD

        def said(rank, counts):
            return [torch.full((count,), 10.0 * rank + at) for at, count in enumerate(counts)]

        for counts in ([2, 2], [2, 3, 1], [5], []):
            for contiguous in (False, True):
                outs = [[torch.zeros(count) for count in counts] for _ in range(size)]
                if contiguous:
                    outs = [list(torch.zeros(sum(counts)).split(counts)) for _ in range(size)]
                work = group.allgather_coalesced(outs, said(rank, counts))
                work.wait()
                for r in range(size):
                    assert all(map(torch.equal, outs[r], said(r, counts))), (counts, outs)
                assert len(work.result()) == size * len(counts)
        for outs, text in (
            ([[torch.zeros(2)]], "1 lists of tensors for 2 ranks"),
            ([[torch.zeros(2)], []], "the list of rank 1 has 0 tensors, and this rank passes 1"),
            ([[torch.zeros(2)], [torch.zeros(3)]], "tensor 1 of the list has 3 elements"),
        ):
            try:
                group.allgather_coalesced(outs, [torch.zeros(2)])
            except hmc.InvalidArgumentError as error:
                assert text in str(error), error
            else:
                raise SystemExit(f"{text}: passed")
        dist.destroy_process_group()
        """
    )
