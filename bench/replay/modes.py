"""What is replayed: a pipeline-parallel training step, and the ways to move its data between two vendors' hosts."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MODES", "Mode", "Scenario"]

MIB = 1 << 20
FIRST = "cuda"  # vendor


@dataclass(frozen=True)
class Scenario:
    """One step: two stages, one per host, as many cards in each. Times and bytes are those of the modelled cluster.

    The schedule is 1F1B with sends that are not overlapped with compute. At its end each stage adds up its gradients. Layers are
    split among the stages in proportion to the speed of their cards.
    """

    cards: int = 2  # of each stage: each talks to the card of its number in the other stage
    microbatches: int = 8
    forward: float = 0.040  # seconds of a microbatch in a stage of the first vendor's cards, where both stages have them
    backward: float = 0.080
    second_speed: float = 0.96  # of the second vendor's cards, relative to the first's: the paper's all-AMD relative to all-NVIDIA
    activation: int = 32 * MIB  # bytes of a microbatch between the stages; as many of its gradient come back
    gradients: int = 512 * MIB  # bytes that the cards of a stage add up
    direct: float = 50e9  # bytes per second of a NIC that reads and writes device memory
    forwarded: float = 0.215e9  # with the copies through host memory and the sockets: "CPU, NIC per GPU" is as slow as reported
    native: float = 150e9  # of the links inside a host, by the vendor's own library
    latency: float = 20e-6  # seconds of a message
    dilation: float = 4.0  # replayed seconds per modelled second
    shrink: int = 256  # modelled bytes per replayed byte

    @property
    def payload(self) -> int:
        """Bytes of a message of the replay."""
        return self.activation // self.shrink

    @property
    def reduced(self) -> int:
        """Bytes of the arrays that the replay adds up."""
        return self.gradients // self.shrink

    def slowness(self, vendors: tuple[str, str]) -> float:
        """Time of a microbatch in each stage, relative to stages of the first vendor's cards."""
        return len(vendors) / sum(1 if vendor == FIRST else self.second_speed for vendor in vendors)


@dataclass(frozen=True)
class Mode:
    """Which vendors the stages have, and how bytes move between stages and inside them."""

    name: str
    vendors: tuple[str, str]  # of the stages, as simulated
    source: str  # "paper": its summary or a figure of it names the mode; "derived"
    text: str
    reported: str = ""  # throughput relative to all-NVIDIA, as the paper reports it for LLaMA-8B
    forwards: bool = False  # between the stages through host memory and sockets, else from device to device
    one_nic: bool = False  # the cards of a host share it, else each has its own
    forwards_inside: bool = False  # inside a stage too, else by the vendor's own library

    @property
    def transports(self) -> str:
        """What HMC may use in the replay."""
        if self.forwards_inside:
            return "staging,tcp"
        return "ipc,staging,tcp" if self.forwards else "ipc,staging,shm,tcp"


# In the order of their throughput, by the paper and by what each one adds to the one above.
MODES = (
    Mode("all-NVIDIA", ("cuda", "cuda"), "paper", "one vendor, device-direct, its own library inside hosts", "1"),
    Mode("device-direct", ("cuda", "rocm"), "paper", "two vendors, NICs read and write device memory", "0.98"),
    Mode("all-AMD", ("rocm", "rocm"), "paper", "one vendor, device-direct, its own library inside hosts", "0.96 to 0.97"),
    Mode(
        "CPU, NIC per GPU", ("cuda", "rocm"), "paper", "two vendors by CPU forwarding, a backend per group", "0.43", forwards=True
    ),
    Mode("CPU, one NIC", ("cuda", "rocm"), "derived", "the same, the cards of a host share a NIC", forwards=True, one_nic=True),
    Mode(
        "CPU, one backend",
        ("cuda", "rocm"),
        "derived",
        "the same, and CPU forwarding inside hosts too",
        forwards=True,
        one_nic=True,
        forwards_inside=True,
    ),
)
