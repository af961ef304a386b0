#!/usr/bin/env python3
"""Real verbs without an RDMA card: a throw-away virtual machine whose kernel has Soft-RoCE (rdma_rxe).

    tools/rdma_vm.py [--timeout SECONDS] [--memory SIZE] [--share FOLDER]... COMMAND...
    tools/rdma_vm.py --check            # says why it cannot run here, if it cannot

The guest sees the host's files read-only at the same places (what it writes goes to memory and is lost, except below --share).
Two Soft-RoCE devices, rxe0 (10.99.0.1, fd99::1) and rxe1 (10.99.0.2, fd99::2), sit on the two ends of a virtual cable that what
they send to each other really crosses, so they stand for two hosts; rxe2 (10.99.1.1, fd99:0:0:1::1) and rxe3 (10.99.1.2,
fd99:0:0:1::2), on another cable, are a second card of each. GID 1 of each is its IPv4 address, GID 2 the IPv6 one (which UCX
needs to get its `rc` to work: UCX_IB_GID_INDEX=2). The stock kernel of the distribution is fetched with apt-get and unpacked into
a cache, never installed. Needs: qemu-system-x86, busybox-static, kmod, iproute2 (and zstd where modules are compressed with it).

From Python: `with Guest() as guest: guest.run("ibv_devices")`, one boot for many commands.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import lzma
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hmc" / "rdma_vm"
PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "depmod": "kmod", "rdma": "iproute2"}
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "veth", "sch_netem", "crc32_generic", "ib_uverbs", "rdma_rxe")
# Names of the meta package of the stock kernel. The small kernels for clouds have no rdma_rxe.
KERNELS = {"debian": "linux-image-amd64", "ubuntu": "linux-image-generic"}
BOOT_SECONDS = 240  # without hardware virtualisation and on a busy machine; 10 to 30 is usual

# In the initial file system: finds the host's files, and starts the agent in them.
INIT = """#!/bin/sh
export PATH=/bin
/bin/busybox --install -s /bin
mkdir /proc /sys /host /top /new /run
mount -t proc none /proc
mount -t sysfs none /sys
while read -r module; do insmod "/modules/$module"; done </modules/order
options=trans=virtio,version=9p2000.L,msize=262144
mount -t 9p -o $options,ro,cache=loose host /host
mount -t tmpfs none /top
mkdir /top/upper /top/work
mount -t overlay -o lowerdir=/host,upperdir=/top/upper,workdir=/top/work none /new
mount -t proc none /new/proc
mount -t sysfs none /new/sys
mount -t devtmpfs none /new/dev
mkdir -p /new/dev/shm /new/dev/pts /new/run
mount -t tmpfs none /new/dev/shm
mount -t devpts -o ptmxmode=666 none /new/dev/pts
mount -t tmpfs none /new/run
ln -s /proc/self/fd /new/dev/fd
mkdir /new/run/guest
mount -t 9p -o $options,cache=none control /new/run/guest
number=0
while read -r folder; do
  mount -t 9p -o $options,cache=none share$number "/new$folder"
  number=$((number + 1))
done </new/run/guest/shares
exec chroot /new /bin/bash /run/guest/agent
"""

# In the host's files: lays the cable, then runs one command after the other as they appear.
AGENT = r"""
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
cd /run/guest
(
  set -e
  hostname guest
  ip link set lo up
  for end in 0 2; do ip link add cable$end type veth peer name cable$((end + 1)); done
  address() { echo 10.99.$(($1 / 2)).$(($1 % 2 + 1)); }
  address6() { echo fd99:0:0:$(($1 / 2))::$(($1 % 2 + 1)); }
  for end in 0 1 2 3; do
    echo 1 >/proc/sys/net/ipv4/conf/cable$end/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/cable$end/rp_filter
    ip link set cable$end mtu 4200 up
    # What arrives is for one processor: else packets overtake one another, and Soft-RoCE soon runs out of retries.
    echo 1 >/sys/class/net/cable$end/queues/rx-0/rps_cpus
    ip address add $(address $end)/24 dev cable$end
    ip address add $(address6 $end)/64 dev cable$end nodad
  done
  echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
  echo 100000 >/proc/sys/net/core/netdev_max_backlog  # packets; the usual 1000 is less than may be under way
  # All addresses are this machine's, so the kernel would take the short way. From one end to the other: over the cable.
  for end in 0 1 2 3; do
    other=$((end ^ 1))
    for family in 4 6; do
      [ $family = 4 ] && from=$(address $end) to=$(address $other) || from=$(address6 $end) to=$(address6 $other)
      ip -$family rule add priority 10 iif cable$end lookup local  # codespell:ignore iif
      ip -$family rule add priority 20 from $from to $to lookup $((200 + end))
      ip -$family route add $to dev cable$end table $((200 + end))
    done
  done
  for family in 4 6; do
    ip -$family rule add priority 30 lookup local
    ip -$family rule delete priority 0
  done
  for end in 0 1 2 3; do rdma link add rxe$end type rxe netdev cable$end; done
  for try in $(seq 200); do
    port=/sys/class/infiniband/rxe3/ports/1
    [ -e /dev/infiniband/uverbs3 ] && grep -q ACTIVE $port/state && grep -q fd99 $port/gids/2 && break
    sleep 0.05
  done
) >setup.log 2>&1
[ $? = 0 ] && touch ready
ulimit -l unlimited
next=0
while [ ! -e stop ]; do
  if [ -e job.$next ]; then
    bash job.$next >out.$next 2>&1 </dev/null
    echo $? >status.$next.new
    mv status.$next.new status.$next
    next=$((next + 1))
  else
    sleep 0.1
  fi
done
echo o >/proc/sysrq-trigger
sleep 60
"""


class Unavailable(Exception):
    """The machine cannot run here; says why, and what to do."""


@dataclass
class Outcome:
    status: int  # 124: it ran past its time
    output: str  # stdout and stderr


def find_program(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin")


def program(name: str) -> str:
    found = find_program(name)
    if found is None:
        raise Unavailable(f"{name} is not installed; as root: apt-get install {PROGRAMS.get(name, name)}")
    return found


def output_of(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, "LC_ALL": "C"}, timeout=600)
    if done.returncode != 0:
        raise Unavailable(f"{shlex.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@contextlib.contextmanager
def cache_lock() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def distribution() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/etc/os-release").read_text().splitlines():
            if line.startswith("ID="):
                return line[3:].strip('"')
    return "unknown"


def unpacked_kernel() -> Path:
    """The tree of the distribution's newest stock kernel; fetched at the first call."""
    tree = CACHE / "kernel"
    if (tree / "complete").exists():
        return tree
    meta = KERNELS.get(distribution())
    if meta is None:
        raise Unavailable(f"no stock kernel is known for {distribution()} (known: {', '.join(KERNELS)})")
    packages, waiting = [], [meta]
    while waiting:
        package = waiting.pop()
        for name in re.findall(
            r"^ *Depends: (linux-(?:image|modules|binary)[\w.+~-]*)$", output_of("apt-cache", "depends", package), re.M
        ):
            if name not in packages:
                packages.append(name)
                waiting.append(name)
    if not packages:
        raise Unavailable(f"apt knows no {meta}; run apt-get update")
    shutil.rmtree(tree, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        output_of("apt-get", "-qq", "download", *packages, cwd=Path(folder))
        for archive in Path(folder).iterdir():
            output_of("dpkg-deb", "-x", str(archive), str(tree))
    if not (tree / "lib").exists():
        (tree / "lib").symlink_to("usr/lib")
    (tree / "complete").touch()
    return tree


def plain(module: Path) -> bytes:
    """A module's bytes, whatever it is compressed with."""
    data = module.read_bytes()
    if module.suffix == ".xz":
        return lzma.decompress(data)
    if module.suffix == ".zst":
        return subprocess.run([program("zstd"), "-dcq"], input=data, capture_output=True, check=True).stdout
    return data


def archive(files: list[tuple[str, int, bytes]]) -> bytes:
    """A cpio archive ("newc"), which the kernel takes as its first file system."""
    out = bytearray()
    for inode, (name, mode, data) in enumerate([*files, ("TRAILER!!!", 0, b"")]):
        encoded = name.encode() + b"\0"
        fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
        out += b"070701" + "".join(f"{field:08x}" for field in fields).encode() + encoded
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)


def initial_files(tree: Path, version: str) -> bytes:
    base = tree / "lib" / "modules" / version
    if not (base / "modules.dep").exists():
        output_of(program("depmod"), "-b", str(tree), version)
    path_of, needs = {}, {}
    for line in (base / "modules.dep").read_text().splitlines():
        path, _, dependencies = line.partition(":")
        path_of[Path(path).name.partition(".")[0].replace("-", "_")] = path
        needs[path] = dependencies.split()
    order: list[str] = []
    for name in MODULES:
        if name in path_of:  # else it is part of the kernel itself
            path = path_of[name]
            # What a module needs is listed nearest first.
            order += [each for each in [*reversed(needs[path]), path] if each not in order]
        elif name == "rdma_rxe":
            raise Unavailable(f"the kernel {version} has no rdma_rxe")
    files = [("bin", 0o40755, b""), ("modules", 0o40755, b""), ("bin/busybox", 0o100755, Path(program("busybox")).read_bytes())]
    files += [("bin/sh", 0o120777, b"busybox"), ("init", 0o100755, INIT.encode())]
    names = [Path(path).name.partition(".ko")[0] for path in order]
    files += [(f"modules/{name}", 0o100644, plain(base / path)) for name, path in zip(names, order, strict=True)]
    files.append(("modules/order", 0o100644, "".join(name + "\n" for name in names).encode()))
    return archive(files)


def prepare() -> tuple[Path, Path]:
    """(kernel, initial file system); made at the first call. Raises Unavailable."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise Unavailable("only on x86-64 Linux")
    for name in PROGRAMS:
        program(name)
    with cache_lock():
        tree = unpacked_kernel()
        version = next((tree / "lib" / "modules").iterdir()).name
        initial = CACHE / "initial.cpio"
        if not initial.exists() or initial.stat().st_mtime < Path(__file__).stat().st_mtime:
            part = initial.with_suffix(".part")
            part.write_bytes(initial_files(tree, version))
            part.rename(initial)
        return tree / "boot" / f"vmlinuz-{version}", initial


class Guest:
    """A running machine. Commands run one after the other, as root, with the environment and folder of the caller."""

    def __init__(self, memory: str = "3G", shares: tuple[str, ...] = ()) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rdma_vm."))
        self._jobs = 0
        try:
            self._process = self._start(memory, shares)
            self._wait_for("ready", time.monotonic() + BOOT_SECONDS)
        except BaseException:
            self.close()
            raise

    def _start(self, memory: str, shares: tuple[str, ...]) -> subprocess.Popen[bytes]:
        kernel, initial = prepare()
        (self._folder / "agent").write_text(AGENT)
        (self._folder / "shares").write_text("".join(os.path.abspath(share) + "\n" for share in shares))
        # One processor would be a hundred times slower: sender and receiver take turns within a tick.
        command = [program("qemu-system-x86_64"), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        # Emulated: hardware virtualisation, where a machine offers it, is not always there for those who are guests themselves.
        command += ["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", memory]
        command += ["-kernel", str(kernel), "-initrd", str(initial), "-device", "virtio-rng-pci"]
        command += [
            "-append",
            "console=ttyS0 loglevel=4 panic=-1 mitigations=off nokaslr random.trust_cpu=on tsc=reliable net.ifnames=0",
        ]
        command += ["-serial", f"file:{self._folder / 'console'}"]
        folders = [("host", "/", ",readonly=on"), ("control", str(self._folder), "")]
        folders += [(f"share{i}", os.path.abspath(share), "") for i, share in enumerate(shares)]
        for tag, path, extra in folders:
            command += ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{extra}"]
            command += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def _wait_for(self, name: str, deadline: float) -> None:
        while not (self._folder / name).exists():
            if self._process.poll() is not None:
                raise RuntimeError(f"the guest has ended\n{self.console()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the guest has not come to {name!r}\n{self.console()}")
            time.sleep(0.05)

    def console(self) -> str:
        """What the kernel and the set-up said, for when something went wrong."""
        texts = []
        for name in ("console", "setup.log"):
            with contextlib.suppress(OSError):
                texts.append((self._folder / name).read_text(errors="replace")[-8000:])
        return "\n".join(texts)

    def run(self, line: str, timeout: float = 120, environment: dict[str, str] | None = None) -> Outcome:
        """Runs a line of shell. Past its time it is killed with its children."""
        variables = {**os.environ, **(environment or {})}
        exports = "".join(
            f"export {name}={shlex.quote(value)}\n" for name, value in variables.items() if re.fullmatch(r"[A-Za-z_]\w*", name)
        )
        number, self._jobs = self._jobs, self._jobs + 1
        script = f"{exports}cd {shlex.quote(os.getcwd())} || exit 1\nexec timeout -k 5 {timeout} bash -c {shlex.quote(line)}\n"
        part = self._folder / "job.part"
        part.write_text(script)
        part.rename(self._folder / f"job.{number}")
        self._wait_for(f"status.{number}", time.monotonic() + timeout + 60)
        output = (self._folder / f"out.{number}").read_text(errors="replace")
        return Outcome(int((self._folder / f"status.{number}").read_text()), output)

    def close(self) -> None:
        process = getattr(self, "_process", None)
        if process is not None and process.poll() is None:
            process.kill()  # nothing in it is worth saving
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether it can run here")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for the command (300)")
    parser.add_argument("--memory", default="3G", help="of the guest (3G)")
    parser.add_argument(
        "--share", action="append", default=[], metavar="FOLDER", help="a folder of the host that the guest may write to"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="a command with its arguments, or one line of shell in quotes")
    arguments = parser.parse_args()
    try:
        if arguments.check:
            prepare()
            return 0
        if not arguments.command:
            parser.error("a command is missing")
        line = arguments.command[0] if len(arguments.command) == 1 else shlex.join(arguments.command)
        with Guest(arguments.memory, tuple(arguments.share)) as guest:
            outcome = guest.run(line, arguments.timeout)
    except (Unavailable, RuntimeError, TimeoutError) as error:
        print(f"rdma_vm: {error}", file=sys.stderr)
        return 125
    sys.stdout.write(outcome.output)
    return outcome.status


if __name__ == "__main__":
    sys.exit(main())
