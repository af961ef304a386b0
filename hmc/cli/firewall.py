"""``hmc doctor`` on what may keep other hosts from the ports of a job."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from hmc.cli.finding import GOOD, NOTE, Finding

__all__ = ["firewall"]

OPEN = (
    "let the hosts of a job reach each other: `ufw allow from SUBNET`, "
    "`firewall-cmd --zone=trusted --add-source=SUBNET`, or an accept rule for it; processes listen on ports that the kernel picks, "
    "the first one on that of the rendezvous"
)

TIMEOUT = 10  # seconds


def _said(*command: str) -> str | None:
    """What a command prints; None where it is missing, takes long, or cannot be run by this user."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _drops(rules: str) -> bool:
    """Whether a chain for incoming packets, as nft or iptables prints it, refuses by default."""
    chains = re.findall(r"hook input[^\n]*policy (\w+)", rules) + re.findall(r"^-P INPUT (\w+)", rules, re.MULTILINE)
    refusals = re.findall(r"^-A INPUT(?: -j (DROP|REJECT))", rules, re.MULTILINE)
    return any(policy.lower() == "drop" for policy in chains) or bool(refusals)


def firewall(etc: Path = Path("/etc"), run: Path = Path("/run"), rules: str | None = None) -> Finding:
    """Looks for the usual ones, and for rules of the kernel that refuse by default."""
    where = os.environ.get("HMC_RENDEZVOUS", "")
    port = where.rpartition(":")[2] if where.startswith("tcp:") else ""
    target = f"port {port} of the rendezvous and those of the other processes" if port else "the ports of a job over hosts"
    ufw = etc / "ufw" / "ufw.conf"
    try:
        enabled = ufw.exists() and re.search(r"^ENABLED=yes", ufw.read_text(), re.MULTILINE) is not None
    except OSError:
        enabled = False
    if enabled:
        return Finding("firewall", NOTE, f"ufw is enabled and may close {target}", OPEN)
    if (run / "firewalld").exists():
        return Finding("firewall", NOTE, f"firewalld runs and may close {target}", OPEN)
    if rules is None:
        listings = [_said("nft", "list", "ruleset"), _said("iptables", "-S", "INPUT")]
        known = [listing for listing in listings if listing is not None]
        if not known:
            return Finding("firewall", GOOD, "no ufw and no firewalld; the kernel's rules are not shown to this user")
        rules = "\n".join(known)
    if _drops(rules):
        return Finding("firewall", NOTE, f"the kernel's rules refuse by default and may close {target}", OPEN)
    return Finding("firewall", GOOD, "nothing refuses incoming connections by default")
