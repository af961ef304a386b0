"""Cards that ``hmc plan --islands`` knows, with the rates that their makers publish."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CARDS", "Card"]


class Card(NamedTuple):
    """Rates of one card in bytes per second, and how many cards a host has."""

    inside: float
    """One direction, to the other cards of its host together."""
    nic: float
    """One direction, to other hosts."""
    memory: float
    per_host: int = 8


_NIC = 400e9 / 8  # one port of 400 Gb/s for each card

CARDS = {
    # NVIDIA H100 data sheet (SXM): 3.35 TB/s, NVLink 900 GB/s in both directions; DGX H100 user guide: 8 ConnectX-7 of 400 Gb/s.
    "H100": Card(450e9, _NIC, 3.35e12),
    # NVIDIA H200 data sheet (SXM): 4.8 TB/s, NVLink 900 GB/s; DGX H200 user guide: 8 ConnectX-7 of 400 Gb/s.
    "H200": Card(450e9, _NIC, 4.8e12),
    # NVIDIA DGX B200 data sheet: 64 TB/s and NVLink 14.4 TB/s for 8 cards, 8 ports of 400 Gb/s.
    "B200": Card(900e9, _NIC, 8e12),
    # AMD Instinct MI300X data sheet: 5.3 TB/s, 7 Infinity Fabric links of 128 GB/s in both directions; NIC: 400 Gb/s, as in
    # platforms with a NIC for each card.
    "MI300X": Card(7 * 64e9, _NIC, 5.3e12),
    # AMD Instinct MI325X data sheet: 6 TB/s, 7 Infinity Fabric links of 128 GB/s; NIC as of MI300X.
    "MI325X": Card(7 * 64e9, _NIC, 6e12),
}
