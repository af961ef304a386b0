"""Topologies: written down, saved, loaded, refused, discovered by a job; and Communicators of several cards per process on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import run_hmc

import hmc
import hmc.testing


def two_hosts() -> hmc.Topology:
    topology = hmc.Topology()
    topology.add_card("alpha", "cuda:0", 0, model='An "H200"\\', numa_node=1, memory_bytes=1 << 37, host_bandwidth=5.5e10)
    topology.add_card("alpha", "cuda:1", 1, pci="0000:3b:00.0")
    topology.add_card("beta", "musa:0", 2, name="the odd one")
    topology.add_card("beta", "cpu")
    topology.add_nic("alpha", "mlx5_0", kind="infiniband", bandwidth=5e10)
    topology.add_link("alpha/cuda:0", "alpha/cuda:1", kind="nvlink", bandwidth=4.5e11)
    return topology


def test_a_written_topology_reads_back_the_same(tmp_path: Path) -> None:
    topology = two_hosts()
    file = tmp_path / "cluster.topo"
    topology.save(str(file))
    again = hmc.Topology.load(str(file))
    assert again == topology == hmc.Topology.parse(str(topology))
    assert again.hosts == ["alpha", "beta"]
    assert [(card.device, card.process) for card in again.members()] == [("cuda:0", 0), ("cuda:1", 1), ("musa:0", 2)]
    assert again.cards[0].model == 'An "H200"\\'
    assert (again.cards[0].numa_node, again.cards[1].numa_node) == (1, None)
    assert again.cards[2].name == "the odd one"
    assert again.nics[0].bandwidth == 5e10
    assert again.links[0].kind == "nvlink"
    assert again != hmc.Topology()


def test_people_write_comments_and_any_order() -> None:
    text = """
    # the lab
    hmc-topology 1   # a version
    link a b kind=cable
    card a host=left device=mlu:0 process=1
    card b host="right side" device=cuda process=0

    host left
    host "right side"
    """
    topology = hmc.Topology.parse(text)
    assert [(card.name, card.device) for card in topology.members()] == [("b", "cuda:0"), ("a", "mlu:0")]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("card a host=nowhere", "no listed host"),
        ("card a", "no listed host"),
        ("card a host=h device=gpu:0", "line 3.*gpu"),
        ("card a host=h process=-2", "process -2"),
        ("card a host=h process=1", "process 0 brings no card"),
        ("card a host=h numa=two", 'line 3.*"two" is no value for numa'),
        ("card a host=h bandwidth=-1", "no value for bandwidth"),
        ("card a host=h bandwidth=inf", "no value for bandwidth"),
        ("card a host=h colour=red", 'no "colour"'),
        ("card", 'line 3.*"card" needs a name'),
        ("card a host=h\ncard a host=h", "twice"),
        ("host h", "twice"),
        ("link a b", 'ends at "a"'),
        ("card a host=h\nlink a a", "to itself"),
        ("card a host=h\ncard b host=h\nlink a b\nlink b a", "twice"),
        ("nic n host=x", "no listed host"),
        ("nic n host=h\nnic n host=h", "twice"),
        ("bus a", 'line 3.*"bus" is none of'),
        ('card "a', "line 3.*quote"),
        ("card a host=", "no listed host"),
        ("card a host", "line 3.*neither"),
        ("card a host=h device=cpu process=0\nhost g\ncard b host=g process=0", "two hosts"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(line: str, complaint: str) -> None:
    with pytest.raises(hmc.InvalidArgumentError, match=complaint):
        hmc.Topology.parse(f"hmc-topology 1\nhost h\n{line}\n")


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(hmc.InvalidArgumentError, match="first line"):
        hmc.Topology.parse("hmc-topology 2\n")
    with pytest.raises(hmc.InvalidArgumentError, match="empty"):
        hmc.Topology.parse("# nothing\n")
    with pytest.raises(hmc.InvalidArgumentError, match=r"absent\.topo.*cannot be read"):
        hmc.Topology.load(str(tmp_path / "absent.topo"))
    with pytest.raises(hmc.InvalidArgumentError, match="cannot be written"):
        two_hosts().save(str(tmp_path / "no" / "folder.topo"))
    topology = hmc.Topology()
    topology.add_card("h", "cpu", 0)
    with pytest.raises(hmc.InvalidArgumentError, match="twice"):
        topology.add_card("h", "cpu", 1)
    with pytest.raises(hmc.InvalidArgumentError, match="no card"):
        topology.add_link("h/cpu", "h/cuda:0")


def test_this_host_is_discovered() -> None:
    topology = hmc.Topology.discover()
    assert len(topology.hosts) == 1
    assert [card.device for card in topology.cards] == hmc.devices()
    assert topology.processes == 0
    assert hmc.Topology.parse(str(topology)) == topology


MIXED = """
import os
PLAN = [["cuda:0", "musa:0", "cpu"], ["rocm:1", "mlu:0"], ["hygon:0"]]
topology = hmc.Topology()
for process, devices in enumerate(PLAN):
    for device in devices:
        topology.add_card("left" if process < 2 else "right", device, process)
topology.add_link("left/cuda:0", "left/musa:0", kind="wire", bandwidth=1e9)

def filled(device, data):
    memory = hmc.Memory(len(data), device=device)
    memory.copy_from(data)
    return memory

def read(memory):
    out = np.empty(len(memory), np.uint8)
    memory.copy_to(out)
    return out

with hmc.init(topology=topology) as comm:
    size, local = comm.size, comm.local
    assert size == 6 and [m.device for m in local] == PLAN[int(os.environ["HMC_RANK"])]

    # Every ordered pair by send and recv, the members of one process included.
    n = 70001
    inboxes = {(m.rank, src): filled(m.device, np.zeros(n, np.uint8)) for m in local for src in range(size)}
    receiving = [m.irecv(inboxes[m.rank, src], src=src, tag=5) for m in local for src in range(size)]
    sending = [m.isend(filled(m.device, pattern(n, 10 * m.rank + dst)), dst=dst, tag=5) for m in local for dst in range(size)]
    hmc.wait_all(sending + receiving, timeout=60)
    for (me, src), inbox in inboxes.items():
        assert np.array_equal(read(inbox), pattern(n, 10 * src + me)), ("send", src, me)

    # exchange, put and notification between every pair.
    slot = 5003
    buffers = {m: m.buffer(size * slot) for m in local}
    remotes = comm.exchange(buffers, timeout=60)
    assert [r.device for r in remotes] == [device for devices in PLAN for device in devices]
    sources = {m: m.buffer(slot + 7) for m in local}
    works = []
    for m in local:
        sources[m].memory[7:].copy_from(pattern(slot, 100 + m.rank))
        works += [m.put(sources[m][7:], remotes[dst][m.rank * slot : (m.rank + 1) * slot], notify=3) for dst in range(size)]
    hmc.wait_all(works, timeout=60)
    for m in local:
        for src in range(size):
            m.wait_notify(src, 3, timeout=60)
        got = read(buffers[m].memory)
        for src in range(size):
            assert np.array_equal(got[src * slot : (src + 1) * slot], pattern(slot, 100 + src)), ("put", src, m.rank)
    said = comm.exchange_bytes({m: f"rank {m.rank}".encode() for m in local}, timeout=60)
    assert said == [f"rank {rank}".encode() for rank in range(size)]

    # Even and uneven all-to-all.
    pairs = {m: (filled(m.device, np.zeros(size * slot, np.uint8)), filled(m.device, pattern(size * slot, m.rank))) for m in local}
    comm.all_to_all(pairs, timeout=60)
    for m, (out, _) in pairs.items():
        whole = read(out)
        for src in range(size):
            expected = pattern(size * slot, src)[m.rank * slot : (m.rank + 1) * slot]
            assert np.array_equal(whole[src * slot : (src + 1) * slot], expected), ("all_to_all", src, m.rank)
    def count(src, dst):
        return (src * 7 + dst * 3) % 5 * 1001
    uneven = {}
    for m in local:
        to = [count(m.rank, dst) for dst in range(size)]
        frm = [count(src, m.rank) for src in range(size)]
        inp = filled(m.device, pattern(sum(to), 50 + m.rank))
        uneven[m] = (filled(m.device, np.zeros(sum(frm), np.uint8)), frm, inp, to)
    comm.all_to_all_v(uneven, timeout=60)
    for m, (out, frm, _, _) in uneven.items():
        whole, at = read(out), 0
        for src in range(size):
            start = sum(count(src, dst) for dst in range(m.rank))
            part = pattern(sum(count(src, dst) for dst in range(size)), 50 + src)[start : start + frm[src]]
            assert np.array_equal(whole[at : at + frm[src]], part), ("all_to_all_v", src, m.rank)
            at += frm[src]
    comm.barrier(timeout=60)

    # Refusals hit everybody alike and leave the group usable.
    for wrong in ({local[0]: buffers[local[0]]} if len(local) > 1 else {}, {}):
        try:
            comm.exchange(wrong, timeout=5)
        except hmc.InvalidArgumentError as error:
            assert "exactly once" in str(error), error
        else:
            raise SystemExit("a partial exchange was taken")

    found = comm.topology(timeout=60)
    assert found.hosts == ["left", "right"], found.hosts
    assert [card.name for card in found.members()] == [f"{h}/{d}" for h, ds in zip(["left", "left", "right"], PLAN) for d in ds]
    assert any(link.kind == "wire" for link in found.links)
    assert all(card.provenance == "simulated" for card in found.members() if card.device != "cpu")

    half = comm.split([m.rank % 2 for m in local][0] if len(local) == 1 else [0] * len(local), timeout=60)
    assert half is not None
    part = half.topology(timeout=60)
    assert len(part.members()) == half.size
    half.close()
    print("members", len(local))
"""


def test_several_cards_per_process_uneven_and_mixed(run_job: Callable[..., str]) -> None:
    out = run_job(MIXED, ranks=3, timeout=110, environment={**hmc.testing.environment(), "HMC_STAGING_CHUNK_BYTES": "262144"})
    assert sorted(line.split("members ")[1] for line in out.splitlines() if "members " in line) == ["1", "2", "3"]


def test_every_process_must_be_given_the_same(run_job: Callable[..., str]) -> None:
    out = run_job(
        """
import os
topology = hmc.Topology()
topology.add_card("h", "cpu", 0)
topology.add_card("h", "cuda:0" if os.environ["HMC_RANK"] == "0" else "cuda:1", 1, name="other")
try:
    hmc.init(topology=topology, timeout=20)
except hmc.InvalidArgumentError as error:
    assert "process 1" in str(error) and "cuda:1" in str(error), error
    print("refused")
except hmc.HmcError as error:
    print("left alone", type(error).__name__)
""",
        timeout=60,
        environment=hmc.testing.environment("cuda"),
    )
    assert "refused" in out


def test_a_topology_of_another_size_is_refused() -> None:
    topology = two_hosts()
    with pytest.raises(hmc.InvalidArgumentError, match=r"3 processes.*the job has 1"):
        hmc.init(topology=topology)
    one = hmc.Topology()
    one.add_card("h", "cpu", 0)
    with pytest.raises(hmc.InvalidArgumentError, match="not both"):
        hmc.init(topology=one, devices=["cpu"])


def topo(*arguments: str, folder: Path) -> str:
    result = run_hmc("topo", *arguments, cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_command_asks_every_card(tmp_path: Path) -> None:
    out = topo("--simulate", "cuda,mlu", "--save", "t.topo", "--json", "t.json", "--picture", "t.svg", folder=tmp_path)
    assert "ipc 50" in out
    assert "staging" in out
    assert "simulated" in out
    saved = hmc.Topology.load(str(tmp_path / "t.topo"))
    assert sorted(card.device for card in saved.members()) == ["cpu", "cuda:0", "cuda:1", "mlu:0", "mlu:1"]
    assert any(link.kind == "peer" for link in saved.links)
    assert (tmp_path / "t.svg").stat().st_size > 1000
    shown = topo("--file", "t.topo", folder=tmp_path)
    assert "mlu:1" in shown
    assert "paths" not in shown


def test_network_cards_and_the_cards_near_them(tmp_path: Path) -> None:
    topology = hmc.Topology()
    for index, bus in enumerate(("pci0000:17/0000:17:01.0/0000:18:00.0", "pci0000:97/0000:97:01.0")):
        topology.add_card("alpha", f"cuda:{index}", index, numa_node=index, bus=bus)
    topology.add_nic("alpha", "mlx5_0", kind="roce", pci="0000:1b:00.0", numa_node=0, bus="pci0000:17/0000:17:01.0/0000:18:01.0")
    topology.add_nic("alpha", "mlx5_1", kind="roce", numa_node=1, bus="pci0000:97/0000:97:03.0")
    topology.add_nic("alpha", "eth0")
    again = hmc.Topology.parse(str(topology))
    assert again == topology
    near, other, unknown = again.nics
    assert again.near(near) == ["alpha/cuda:0"]
    assert again.near(other) == ["alpha/cuda:1"]
    assert again.near(unknown) == []
    assert [hmc.Topology.distance(card, near) for card in again.cards] == ["switch", "system"]
    assert hmc.Topology.distance(again.cards[1], other) == "root"
    assert hmc.Topology.distance(again.cards[0], unknown) == ""
    topology.save(str(tmp_path / "near.topo"))
    out = topo("--file", "near.topo", "--json", "near.json", "--picture", "near.svg", folder=tmp_path)
    assert "near cuda:0 (by a PCIe switch)" in out
    assert "near cuda:1 (under one PCIe root)" in out
    nics = {nic["name"]: nic for nic in json.loads((tmp_path / "near.json").read_text())["nics"]}
    assert (nics["mlx5_0"]["near"], nics["mlx5_0"]["distance"]) == (["alpha/cuda:0"], "switch")
    assert (nics["eth0"]["near"], nics["eth0"]["distance"]) == ([], "")
    if "no picture" not in out:
        assert "mlx5_0" in (tmp_path / "near.svg").read_text()


def test_a_path_as_good_as_it_can_be_is_no_warning(run_job: Callable[..., str]) -> None:
    out = run_job(
        """
import os
with hmc.init(devices=[["cuda:0", "musa:0"][int(os.environ["HMC_RANK"])]]) as comm:
    path = comm.path(1 - comm.rank)
    assert path.transport == "staging" and path.bandwidth > 0 and path.hardware_bandwidth == 0, str(path)
    data = pattern(300001, comm.rank)
    source, target = comm.local[0].buffer(len(data)), comm.local[0].buffer(len(data))
    source.memory.copy_from(data)
    receiving = comm.irecv(target, src=1 - comm.rank)
    comm.send(source, dst=1 - comm.rank, timeout=30)
    receiving.wait(timeout=30)
    got = np.empty(len(data), np.uint8)
    target.memory.copy_to(got)
    assert np.array_equal(got, pattern(300001, 1 - comm.rank))
    comm.barrier(timeout=30)
    print("moved")
""",
        environment=hmc.testing.environment("cuda", "musa"),
    )
    assert out.count("moved") == 2
    assert "warning" not in out
