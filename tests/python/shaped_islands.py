"""Two islands on this machine: each rank has a network of its own, whose link to a switch has a rate of its own."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from commands import HMC
from hosts import ROOTLESS, TOOLS, Host, Unavailable, hold

ISLANDS = ("alpha", "beta")


@dataclass(frozen=True)
class Link:
    """What joins a rank to the switch."""

    island: int
    megabits: int  # per second, in each direction


class ShapedIslands:
    """Ranks of one island share memory; those of two islands have their links alone. Both are on this machine.

    `hosts` are the ranks' networks while the context lasts; `launch` starts a job with a process in each.
    """

    def __init__(self, links: list[Link]) -> None:
        self.links = links
        self.hosts: list[Host] = []
        self.folder = Path(tempfile.mkdtemp(prefix="hmc-shaped-"))
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> ShapedIslands:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for holder in reversed(self._holders):
            holder.kill()
            holder.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def topology(self) -> str:
        """Who is where, without any bandwidth: all ranks have one kernel, by which hosts are told apart unless written down."""
        cards = (f"card c{rank} host={ISLANDS[link.island]} process={rank}\n" for rank, link in enumerate(self.links))
        return "hmc-topology 1\n" + "".join(f"host {name}\n" for name in ISLANDS) + "".join(cards)

    def launch(self, script: Path, port: int, key: str, **environment: str) -> list[subprocess.Popen[str]]:
        line = ["--nodes", str(len(self.hosts)), "-n", "1", "--rendezvous", f"tcp://{self.hosts[0].address}:{port}"]
        given = {"HMC_JOB_KEY": key, "HMC_TRANSPORTS": "local,shm,tcp", **environment}
        return [
            host.start(*HMC, "run", *line, "--node-rank", str(rank), str(script), **given) for rank, host in enumerate(self.hosts)
        ]

    def _hold(self, *prefix: str) -> subprocess.Popen[bytes]:
        self._holders.append(hold(list(prefix)))
        return self._holders[-1]

    def _make(self) -> None:
        missing = [tool for tool in (*TOOLS, "tc") if shutil.which(tool) is None]
        if missing:
            raise Unavailable(f"{', '.join(missing)} not installed")
        inside: list[str] = []
        if ROOTLESS:  # all in one user namespace, so that links can join them
            outer = self._hold("unshare", *ROOTLESS)
            inside = ["nsenter", "--target", str(outer.pid), "--user", "--preserve-credentials"]
        for name in ISLANDS:
            (self.folder / name).mkdir(mode=0o700)
        switch = Host("switch", "", "", self._hold(*inside, "unshare", "--net", "--mount", "--propagation", "private"))
        switch.run("ip", "link", "add", "switch", "type", "bridge")
        switch.run("ip", "link", "set", "switch", "up")
        for rank, link in enumerate(self.links):
            self._join(rank, link, switch, inside)

    def _join(self, rank: int, link: Link, switch: Host, inside: list[str]) -> None:
        holder = self._hold(*inside, "unshare", "--net", "--mount", "--uts", "--propagation", "private")
        own, other = ISLANDS[link.island], ISLANDS[1 - link.island]
        host = Host(f"rank{rank}", f"10.78.0.{rank + 1}", f"cable{rank}", holder, {"XDG_RUNTIME_DIR": str(self.folder / own)})
        port = f"port{rank}"
        host.run("ip", "link", "add", host.interface, "type", "veth", "peer", port, "netns", str(switch.holder.pid))
        # The other island's sockets are out of reach.
        host.run("mount", "-t", "tmpfs", "-o", "mode=0700", "none", str(self.folder / other))
        with contextlib.suppress(Unavailable):  # without it, /sys lists the interfaces of this machine
            host.run("mount", "-t", "sysfs", "none", "/sys")
        host.run("hostname", host.name)
        host.run("ip", "link", "set", "lo", "up")
        host.run("ip", "address", "add", f"{host.address}/24", "dev", host.interface)
        host.run("ip", "link", "set", host.interface, "up")
        switch.run("ip", "link", "set", port, "master", "switch", "up")
        for end, where in ((host.interface, host), (port, switch)):
            shape = ["tbf", "rate", f"{link.megabits}mbit", "burst", "64kb", "limit", "4mb"]
            where.run("tc", "qdisc", "add", "dev", end, "root", *shape)
        self.hosts.append(host)
