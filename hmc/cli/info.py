"""``hmc info``: what this process could use, and why not the rest."""

from __future__ import annotations

import os
from typing import Any

from hmc.cli.text import entry, paragraph, write_json

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


def show_info(json_file: str = "") -> int:
    """Prints the report, or writes it as JSON. Always returns 0: an absent device is information, not a failure."""
    report = collect()
    if json_file:
        write_json(report, json_file)
    if json_file == "-":
        return 0
    print(f"hmc {report['version']}, wire version {report['wire_version']}")
    launch = report["launch"]
    if "error" in launch:
        print(paragraph(f"launcher: unclear: {launch['error']}", "", "  "))
    else:
        print(f"launcher: {launch['launcher']} (rank {launch['rank']} of {launch['size']})")
    print("\ndevices")
    for runtime in report["runtimes"]:
        if not runtime["available"]:
            print(entry(runtime["vendor"], f"not available: {runtime['reason']}", 11))
        for device in runtime["devices"]:
            size = f"{device['memory_bytes'] / 2**30:.1f} GiB"
            place = f", {device['pci']}" if device["pci"] else ""
            able = f"; {', '.join(device['capabilities'])}" if device["capabilities"] else ""
            print(entry(device["device"], f"{device['name']} ({size}{place}; {device['provenance']}{able})", 11))
    print("\ntransports")
    for transport in report["transports"]:
        state = transport["reason"] if transport["available"] else f"not available: {transport['reason']}"
        print(entry(transport["name"], state, 11))
    print("\nsettings (environment)")
    for row in report["settings"]:
        value = row["value"] or (f"{row['default']} (default)" if row["default"] else "unset")
        print(entry(row["name"], value, 28))
        print(paragraph(row["help"], "      ", "      "))
    return 0
