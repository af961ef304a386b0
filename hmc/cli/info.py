"""``hmc info``: what this process could use, and why not the rest."""

from __future__ import annotations

import json
import os
from typing import Any

__all__ = ["collect", "show_info"]


def collect() -> dict[str, Any]:
    """Everything that ``hmc info`` prints, as plain data (versions, launcher, runtimes, transports, settings)."""
    import hmc

    report = hmc.info()
    report["settings"] = [{**row, "value": os.environ.get(row["name"], "")} for row in report["settings"]]
    for row in report["settings"]:
        if row["name"] == "HMC_JOB_KEY" and row["value"]:
            row["value"] = "(set)"
    return report


def show_info(as_json: bool = False) -> int:
    """Prints the report. Always returns 0: an absent device is information, not a failure."""
    report = collect()
    if as_json:
        print(json.dumps(report, indent=2))
        return 0
    print(f"hmc {report['version']}, wire version {report['wire_version']}")
    launch = report["launch"]
    if "error" in launch:
        print(f"launcher: unclear: {launch['error']}")
    else:
        print(f"launcher: {launch['launcher']} (rank {launch['rank']} of {launch['size']})")
    print("\ndevices")
    for runtime in report["runtimes"]:
        if not runtime["available"]:
            print(f"  {runtime['vendor']:<8} not available: {runtime['reason']}")
        for device in runtime["devices"]:
            size = f"{device['memory_bytes'] / 2**30:.1f} GiB"
            place = f", {device['pci']}" if device["pci"] else ""
            able = f"; {', '.join(device['capabilities'])}" if device["capabilities"] else ""
            print(f"  {device['device']:<8} {device['name']} ({size}{place}; {device['provenance']}{able})")
    print("\ntransports")
    for transport in report["transports"]:
        state = transport["reason"] if transport["available"] else f"not available: {transport['reason']}"
        print(f"  {transport['name']:<8} {state}")
    print("\nsettings (environment)")
    for row in report["settings"]:
        value = row["value"] or (f"{row['default']} (default)" if row["default"] else "unset")
        print(f"  {row['name']:<20} {value:<20} {row['help']}")
    return 0
