"""Two network namespaces that stand for two hosts: joined by a cable, with names, and with nothing in common but files."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

TOOLS = ("unshare", "nsenter", "ip", "mount")
# A user namespace of its own, where one is not root.
ROOTLESS = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]


class Unavailable(Exception):
    """Why there cannot be namespaces here."""


@dataclass
class Host:
    """One of the two. `run` and `start` work as if logged in there."""

    name: str
    address: str
    interface: str
    holder: subprocess.Popen[bytes]
    environment: dict[str, str] = field(default_factory=dict)

    def command(self, *line: str) -> list[str]:
        user = ["--user", "--preserve-credentials"] if ROOTLESS else []
        return ["nsenter", "--target", str(self.holder.pid), *user, "--net", "--mount", "--uts", "--", *line]

    def start(self, *line: str, **environment: str) -> subprocess.Popen[str]:
        everything = {**os.environ, **self.environment, **environment}
        return subprocess.Popen(
            self.command(*line), env=everything, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/"
        )

    def run(self, *line: str) -> str:
        done = subprocess.run(self.command(*line), capture_output=True, text=True, timeout=30, cwd="/")
        if done.returncode != 0:
            raise Unavailable(f"{shlex.join(line)} on {self.name}: {(done.stderr or done.stdout).strip()}")
        return done.stdout


Hosts = tuple[Host, Host]


def hold(prefix: list[str]) -> subprocess.Popen[bytes]:
    """A process that keeps the namespaces which the command `prefix` makes."""
    holder = subprocess.Popen(
        [*prefix, "sh", "-c", "echo; exec sleep 3600"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
    )
    assert holder.stdout is not None
    if holder.stdout.readline() != b"\n":
        assert holder.stderr is not None
        raise Unavailable(f"{shlex.join(prefix)}: {holder.stderr.read().decode().strip()}")
    return holder


class TwoHosts:
    """`alpha` and `beta` while the context lasts."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hmc-hosts-"))
        self.hosts: list[Host] = []
        self._outer: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Hosts:
        try:
            return self._make()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for holder in (*(host.holder for host in self.hosts), *([self._outer] if self._outer else [])):
            holder.kill()
            holder.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make(self) -> Hosts:
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if missing:
            raise Unavailable(f"{', '.join(missing)} not installed")
        if ROOTLESS:
            # Both in one user namespace, so that the cable can join them.
            self._outer = hold(["unshare", *ROOTLESS])
        for index, name in enumerate(("alpha", "beta")):
            inside = (
                [] if self._outer is None else ["nsenter", "--target", str(self._outer.pid), "--user", "--preserve-credentials"]
            )
            holder = hold([*inside, "unshare", "--net", "--mount", "--uts", "--propagation", "private"])
            run = self.folder / name
            run.mkdir()
            self.hosts.append(Host(name, f"10.77.0.{index + 1}", f"cable{index}", holder, {"XDG_RUNTIME_DIR": str(run)}))
        alpha, beta = self.hosts
        alpha.run("ip", "link", "add", alpha.interface, "type", "veth", "peer", beta.interface, "netns", str(beta.holder.pid))
        names = self.folder / "names"
        names.write_text("127.0.0.1 localhost\n" + "".join(f"{host.address} {host.name}\n" for host in self.hosts))
        for host in self.hosts:
            host.run("mount", "--bind", str(names), "/etc/hosts")
            # Sockets that the other one cannot reach.
            host.run("mount", "-t", "tmpfs", "-o", "mode=0700", "none", host.environment["XDG_RUNTIME_DIR"])
            with contextlib.suppress(Unavailable):  # without it, /sys lists the interfaces of this machine
                host.run("mount", "-t", "sysfs", "none", "/sys")
            host.run("hostname", host.name)
            host.run("ip", "link", "set", "lo", "up")
            host.run("ip", "address", "add", f"{host.address}/24", "dev", host.interface)
            host.run("ip", "link", "set", host.interface, "up")
        # The kernel tells of a carrier up to a second later, and UCX passes over an interface that is not running.
        for host in self.hosts:
            host.run("timeout", "10", "sh", "-c", f"until ip link show {host.interface} | grep -q 'state U'; do sleep 0.02; done")
        return alpha, beta


def wait_all(processes: list[subprocess.Popen[str]], timeout: float = 100) -> list[tuple[int, str]]:
    """(status, output) of each; none is left behind."""
    try:
        return [(process.wait(timeout), process.stdout.read() if process.stdout else "") for process in processes]
    finally:
        for process in processes:
            process.kill()
