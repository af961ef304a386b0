"""``hmc doctor``: checks of this machine, each with what was found and how to mend it."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import socket
import ssl
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from hmc.cli.accelerators import accelerators
from hmc.cli.finding import BAD, GOOD, NOTE, Finding
from hmc.cli.firewall import firewall
from hmc.cli.pcie import access_control, peer_memory, relaxed_ordering
from hmc.cli.rdma import rdma
from hmc.cli.text import paragraph, write_json

__all__ = ["examine", "findings"]

ENOUGH_DESCRIPTORS = 4096


def _raise_limit(option: str, name: str, wanted: int, hard: int) -> str:
    """How a resource limit is raised to ``wanted`` (or ``RLIM_INFINITY``): by the user up to the hard limit, beyond it by root."""
    unlimited = resource.RLIM_INFINITY
    service = f"`Limit{name.upper()}=` of the service"
    if hard == unlimited or (wanted != unlimited and hard >= wanted):
        return f"`ulimit -{option} {'unlimited' if wanted == unlimited else wanted}`, or {service}"
    value = "unlimited" if wanted == unlimited else wanted
    return f"the hard limit is as low: as root, set `{name} {value}` in /etc/security/limits.conf, or {service}"


def _memlock() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Finding("memlock", GOOD, "unlimited")
    size = f"{soft // 1024} KiB"
    if soft >= 64 << 20 or os.geteuid() == 0:
        return Finding("memlock", GOOD, size + (" (root may exceed it)" if os.geteuid() == 0 else ""))
    return Finding(
        "memlock",
        NOTE,
        f"{size}: pinned memory and RDMA registration are limited to it",
        _raise_limit("l", "memlock", resource.RLIM_INFINITY, hard),
    )


def _ptrace() -> Finding:
    yama = Path("/proc/sys/kernel/yama/ptrace_scope")
    scope = int(yama.read_text()) if yama.exists() else 0
    # Copying our own page through the kernel shows whether the call is there and not filtered (seccomp).
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "process_vm_readv"):
        return Finding("ptrace", NOTE, "process_vm_readv is missing", "plain arrays go through the shared ring")
    source, target = ctypes.create_string_buffer(b"hmc-probe"), ctypes.create_string_buffer(9)

    iovec = ctypes.c_size_t * 2  # address and size
    here, there = iovec(ctypes.addressof(target), 9), iovec(ctypes.addressof(source), 9)
    copied = libc.process_vm_readv(os.getpid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    if copied != 9:
        reason = os.strerror(ctypes.get_errno())
        return Finding(
            "ptrace",
            NOTE,
            f"process_vm_readv is refused ({reason}): plain arrays go through the shared ring, about 0.75x memcpy",
            "containers: allow the call (--cap-add SYS_PTRACE or a seccomp profile); or allocate with comm.buffer()",
        )
    if scope >= 1 and os.geteuid() != 0:
        return Finding(
            "ptrace",
            NOTE,
            f"kernel.yama.ptrace_scope = {scope}: processes may not copy from each other's plain arrays",
            "sysctl kernel.yama.ptrace_scope=0, or allocate with comm.buffer() (mapped memory needs no permission)",
        )
    return Finding("ptrace", GOOD, "processes of this user may copy from each other")


def _shared_memory() -> Finding:
    try:
        fd = os.memfd_create("hmc-doctor")
    except OSError as error:
        return Finding("shared memory", BAD, f"memfd_create: {error}", "a kernel from 3.17 on and no filter on memfd_create")
    try:
        os.posix_fallocate(fd, 0, 1 << 20)
    except OSError as error:
        return Finding("shared memory", BAD, f"1 MiB refused: {error}", "raise the container's memory limit")
    finally:
        os.close(fd)
    return Finding("shared memory", GOOD, "memfd works")


def _descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return Finding("descriptors", GOOD, "unlimited")
    if soft >= ENOUGH_DESCRIPTORS:
        return Finding("descriptors", GOOD, f"{soft} open files allowed")
    found = f"{soft} open files allowed: a peer takes about 8, a buffer 1"
    return Finding("descriptors", NOTE, found, _raise_limit("n", "nofile", ENOUGH_DESCRIPTORS, hard))


def _private_directory() -> Finding:
    import hmc

    try:
        with hmc.Context() as ctx:
            folders = [os.path.dirname(address.removeprefix("unix:")) for address in ctx.addresses if address.startswith("unix:")]
    except hmc.InvalidArgumentError:
        # A setting, not the folder: `transfer` names it, once.
        return Finding("socket directory", NOTE, "unknown: the settings are invalid", "fix the setting that `transfer` names")
    except hmc.HmcError as error:
        return Finding("socket directory", BAD, str(error), "if the message names a folder: set XDG_RUNTIME_DIR to one of yours")
    return Finding("socket directory", GOOD, folders[0] if folders else "none: no Unix socket is listened on")


def _loopback() -> Finding:
    reached = []
    for family, host, name in ((socket.AF_INET, "127.0.0.1", "IPv4"), (socket.AF_INET6, "::1", "IPv6")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as server:
                server.bind((host, 0))
                reached.append(name)
        except OSError:
            continue
    if not reached:
        return Finding("loopback ports", BAD, "no TCP port can be opened", "check the network namespace: `ip link set lo up`")
    return Finding("loopback ports", GOOD, " and ".join(reached))


def _key() -> Finding:
    if os.environ.get("HMC_JOB_KEY"):
        return Finding("job key", GOOD, "HMC_JOB_KEY is set")
    return Finding(
        "job key",
        NOTE,
        "none: peers must be on this host",
        "across hosts: export HMC_JOB_KEY=$(hmc keygen), the same everywhere",
    )


def _versions() -> Finding:
    from hmc import __version__

    return Finding(
        "versions",
        GOOD,
        f"hmc {__version__}, Python {sys.version.split()[0]}, {ssl.OPENSSL_VERSION}, Linux {os.uname().release}",
    )


def _space() -> Finding:
    usage = shutil.disk_usage("/dev/shm") if Path("/dev/shm").exists() else None
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    text = f"{memory / 2**30:.1f} GiB of memory"
    if usage:
        text += f", /dev/shm {usage.free / 2**30:.1f} GiB free (not needed: HMC uses memfd)"
    return Finding("memory", GOOD, text)


def _launcher() -> Finding:
    import hmc

    launch = hmc.info()["launch"]
    if "error" in launch:
        return Finding("launcher", BAD, launch["error"], "unset these variables where no launcher runs, or set all of them")
    return Finding("launcher", GOOD, f"{launch['launcher']} (rank {launch['rank']} of {launch['size']})")


def _transfer() -> Finding:
    """The real thing in small: settings that cannot be, a full table of descriptors and the like show here."""
    import numpy as np

    import hmc

    sent = np.arange(100_000, dtype=np.uint32)
    received = np.zeros_like(sent)
    try:
        with hmc.Context() as here, hmc.Context() as there:
            peer = here.connect(there.addresses[0], timeout=10)
            receiving = there.accept(timeout=10).irecv(received)
            peer.send(sent, timeout=10)
            receiving.wait(timeout=10)
            path = peer.path()
    except hmc.HmcError as error:
        return Finding("transfer", BAD, f"{error.code}: {error}", "the message says what to change; HMC_LOG=debug says more")
    if not np.array_equal(sent, received):
        return Finding("transfer", BAD, f"wrong bytes by {path.transport}", "please report this")
    return Finding("transfer", GOOD, f"two Contexts here reach each other by {path.transport} ({path.detail})")


CHECKS: tuple[Callable[[], Finding | list[Finding]], ...] = (
    _versions,
    _space,
    _shared_memory,
    _ptrace,
    _memlock,
    _descriptors,
    _private_directory,
    _loopback,
    _key,
    firewall,
    _launcher,
    _transfer,
    accelerators,
    rdma,
    peer_memory,
    relaxed_ordering,
    access_control,
)


def _vllm() -> list[Finding]:
    from hmc.integrations.vllm._doctor import findings as found

    return found()


def findings(vllm: bool = False) -> list[Finding]:
    """Every check's finding, in order; a check that itself fails is a problem, not an exception. ``vllm``: its connector too."""
    results: list[Finding] = []
    for check in (*CHECKS, _vllm) if vllm else CHECKS:
        try:
            found = check()
            results += found if isinstance(found, list) else [found]
        except Exception as error:
            results.append(Finding(check.__name__.strip("_"), BAD, f"the check failed: {error!r}", "please report this"))
    return results


def examine(json_file: str = "", vllm: bool = False) -> int:
    """Prints the findings, or writes them as JSON. Returns 1 if any is a problem, else 0."""
    results = findings(vllm)
    if json_file:
        write_json([asdict(finding) for finding in results], json_file)
    if json_file != "-":
        mark = {GOOD: "ok", NOTE: "note", BAD: "PROBLEM"}
        for finding in results:
            print(paragraph(f"{finding.name}: {finding.found}", f"{mark[finding.level]:<9}", " " * 11))
            if finding.fix:
                print(paragraph(f"fix: {finding.fix}", " " * 9, " " * 11))
    return int(any(finding.level == BAD for finding in results))
