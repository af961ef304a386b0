"""Two processes with three cards of different vendors: one rank per card.

Start with: hmc run -n 2 --simulate cuda,mlu,musa several_cards.py
"""

import numpy as np

import hmc

# Who brings what, the same in every process. topology.save() and hmc.Topology.load() keep it in a file.
topology = hmc.Topology()
topology.add_card("this-host", "cuda:0", process=0)
topology.add_card("this-host", "mlu:0", process=0)
topology.add_card("this-host", "musa:0", process=1)

with hmc.init(topology=topology) as comm:
    # comm.local are this process's Members, each with its rank, device and every rank-addressed call.
    buffers = {card: card.buffer(1 << 20) for card in comm.local}
    remotes = comm.exchange(buffers)  # every local Member joins by one call
    for card in comm.local:
        source = card.buffer(1000)
        source.memory.copy_from(np.arange(1000, dtype=np.uint16).view(np.uint8)[:1000])
        right = (card.rank + 1) % comm.size
        card.put(source, remotes[right][4096:5096], notify=1).wait(timeout=30)
        print(card.path(right))
    for card in comm.local:
        card.wait_notify((card.rank - 1) % comm.size, 1, timeout=30)
        arrived = np.empty(1000, np.uint8)
        buffers[card].memory[4096:5096].copy_to(arrived)
        assert np.array_equal(arrived, np.arange(1000, dtype=np.uint16).view(np.uint8)[:1000])

    found = comm.topology()  # what was written down, with what the processes see of their hosts
    assert [card.device for card in found.members()] == ["cuda:0", "mlu:0", "musa:0"]
    comm.barrier()
print("done")
