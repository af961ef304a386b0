"""The state of an agent, its backends' names, and its descriptor lists."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from hmc._core import Context
from hmc.errors import HmcError
from hmc.integrations._shared.frames import MAX_MESSAGE
from hmc.integrations.nixl._descs import nixlRegDList, nixlRemoteDList, nixlXferDList, octets, restore
from hmc.integrations.nixl._errors import nixlInvalidParamError, nixlNotSupportedError
from hmc.integrations.nixl._handles import nixl_agent_config
from hmc.integrations.nixl._links import Links
from hmc.integrations.nixl._memory import LocalMemory
from hmc.integrations.nixl._types import nixl_mem_t, nixl_xfer_op_t
from hmc.integrations.nixl.logging import get_logger

__all__ = ["ALL", "AgentBase", "agent_name", "message_bytes"]

logger = get_logger("api")
# NIXL's backends that move memory. All of them are HMC here.
_MEMORY_BACKENDS = ("LIBFABRIC", "MOONCAKE", "UCCL", "UCX")
_CLOSE_SECONDS = 2.0
_NO_OPTIONS: dict[str, str] = {}  # never changed, like ALL
ALL: list[str] = []  # the default of calls that take names of backends


def agent_name(name: str | bytes) -> str:
    """An agent's name; add_remote_agent() returns it as bytes, and calls take both."""
    return name.decode(errors="replace") if isinstance(name, (bytes, bytearray)) else name


def message_bytes(message: bytes | str) -> bytes:
    """A notification as bytes. Raises nixlInvalidParamError where it is too long to be sent."""
    data = octets(message)
    if len(data) > MAX_MESSAGE:
        raise nixlInvalidParamError(f"a message of {len(data)} bytes; at most {MAX_MESSAGE} can be sent as a notification")
    return data


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")  # a tensor exists only where torch was imported
    return torch is not None and isinstance(value, torch.Tensor)


def _tensor_row(tensor: Any) -> tuple[int, int, int]:
    device = tensor.get_device()
    return tensor.data_ptr(), tensor.numel() * tensor.element_size(), max(device, 0)


def _end(ctx: Context) -> None:
    with contextlib.suppress(HmcError):
        ctx.close(timeout=_CLOSE_SECONDS)


class AgentBase(ABC):
    """What the parts of ``nixl_agent`` share."""

    def __init__(self, agent_name: str, nixl_conf: nixl_agent_config | None = None, instantiate_all: bool = False) -> None:
        if not isinstance(agent_name, str) or not agent_name:
            raise nixlInvalidParamError(f"an agent requires a name of 1 to 255 bytes, as a str, not {agent_name!r}")
        config = nixl_conf or nixl_agent_config()
        self.name = agent_name
        self.notifs: dict[str, list[bytes]] = {}
        self._notifs_lock = threading.RLock()
        self.plugin_list = list(_MEMORY_BACKENDS)
        self.backends: dict[str, int] = {}
        self.backend_options: dict[str, dict[str, str]] = {}
        self.nixl_mems = {
            "DRAM": nixl_mem_t.DRAM_SEG,
            "VRAM": nixl_mem_t.VRAM_SEG,
            "FILE": nixl_mem_t.FILE_SEG,
            "BLOCK": nixl_mem_t.BLK_SEG,
            "OBJ": nixl_mem_t.OBJ_SEG,
            "cpu": nixl_mem_t.DRAM_SEG,
            "cuda": nixl_mem_t.VRAM_SEG,
        }
        self.nixl_ops = {"WRITE": nixl_xfer_op_t.NIXL_WRITE, "READ": nixl_xfer_op_t.NIXL_READ}
        self._telemetry = config.capture_telemetry
        for backend in self.plugin_list if instantiate_all and nixl_conf is None else config.backends:
            if backend in self.plugin_list:
                self.create_backend(backend)
            else:
                logger.warning(
                    "Backend %s is skipped: HMC moves DRAM and VRAM, by itself; %s are names for that", backend, _MEMORY_BACKENDS
                )
        keyed = bool(os.environ.get("HMC_JOB_KEY"))
        listen = None
        if config.enable_listen:
            listen = f"tcp://{'[::]' if keyed else '127.0.0.1'}:{config.port}"
        elif keyed:
            listen = "tcp://[::]:0"
        me = weakref.ref(self)

        def describe() -> bytes:
            agent = me()
            return b"" if agent is None else agent.get_agent_metadata()

        self._links = Links(agent_name, listen, describe)
        self._memory = LocalMemory(self._links.ctx, agent_name)
        self._finalizer = weakref.finalize(self, _end, self._links.ctx)
        self._links.receiver.start()  # peers may have joined, and asked for the metadata

    @abstractmethod
    def get_agent_metadata(self) -> bytes:
        """What other agents add this one by."""

    def get_plugin_list(self) -> list[str]:
        """NIXL's backends that HMC stands for: those that move memory."""
        return self.plugin_list

    def get_plugin_mem_types(self, backend: str) -> list[str]:
        """The kinds of memory of a backend; empty for one that HMC does not stand for."""
        return ["DRAM_SEG", "VRAM_SEG"] if backend in self.plugin_list else []

    def get_plugin_params(self, backend: str) -> dict[str, str]:
        """Empty: HMC has no parameters of backends."""
        return {}

    def get_backend_mem_types(self, backend: str) -> list[str]:
        """The kinds of memory of a backend that was created; else empty."""
        return ["DRAM_SEG", "VRAM_SEG"] if backend in self.backends else []

    def get_backend_params(self, backend: str) -> dict[str, str]:
        """The parameters that the backend was created with; else empty."""
        return self.backend_options.get(backend, {})

    def create_backend(self, backend: str, initParams: dict[str, str] = _NO_OPTIONS) -> None:
        """Accepts a backend that moves memory; its parameters have no effect. Raises nixlNotSupportedError for others."""
        if backend not in self.plugin_list:
            raise nixlNotSupportedError(
                f"backend {backend}: HMC moves DRAM and VRAM, and stands for {', '.join(self.plugin_list)}. Use NIXL for storage"
            )
        self.backends[backend] = len(self.backends) + 1
        self.backend_options[backend] = dict(initParams)

    def _check_backends(self, backends: list[str] | None) -> None:
        for backend in backends or ():
            if backend not in self.backends:
                raise KeyError(backend)

    def get_xfer_descs(self, descs: Any, mem_type: str | None = None) -> Any:
        """Descriptors of a transfer from tuples (address, bytes, device), an (n, 3) array, a tensor, or a list of tensors.

        Returns a nixlXferDList, or None, with an error in the log, for what is none of them.
        """
        if isinstance(descs, nixlRegDList):
            logger.error("a list of registrations was passed for a transfer; pass an nixlXferDList")
            return None
        return self._described(descs, mem_type, nixlXferDList)

    def get_reg_descs(self, descs: Any, mem_type: str | None = None) -> Any:
        """Descriptors of a registration from tuples (address, bytes, device, meta data), or what get_xfer_descs() takes.

        Returns a nixlRegDList, or None, with an error in the log, for what is none of them.
        """
        if isinstance(descs, nixlXferDList):
            logger.error("a list of a transfer was passed for a registration; pass an nixlRegDList")
            return None
        return self._described(descs, mem_type, nixlRegDList)

    def get_remote_descs(self, descs: Any, mem_type: str | None = None) -> Any:
        """Descriptors at other agents from tuples (address, bytes, device, agent name). Returns None as get_xfer_descs()."""
        if isinstance(descs, (list, tuple)) and descs and not isinstance(descs[0], tuple):
            return None
        return self._described(descs, mem_type, nixlRemoteDList)

    def _described(self, descs: Any, mem_type: str | None, made: type[Any]) -> Any:
        if isinstance(descs, made):
            return descs
        if _is_tensor(descs):
            descs = [descs]
        rows = isinstance(descs, np.ndarray) and descs.ndim == 2 and descs.shape[1] == 3
        listed = isinstance(descs, (list, tuple))
        first: Any = descs[0] if listed and descs else None
        if _is_tensor(first):
            if any(one.device != first.device or not one.is_contiguous() for one in descs):
                logger.error("a list of tensors must be contiguous, and on one device")
                return None
            kind = nixl_mem_t.DRAM_SEG if first.get_device() < 0 else nixl_mem_t.VRAM_SEG
            return made(kind, np.array([_tensor_row(one) for one in descs], np.uint64))
        if not rows and not isinstance(first, tuple) and not (listed and not descs):
            logger.error("descriptors are tuples, an (n, 3) array, or tensors; not a %s", type(descs).__name__)
            return None
        if mem_type is None:
            logger.error("Please specify a mem type if not using Tensors")
            return None
        if first is not None and len(first) != made.width:
            logger.error("tuples of %d elements are required here, not of %d", made.width, len(first))
            return None
        return made(self.nixl_mems[mem_type], descs)

    def get_serialized_descs(self, descs: Any) -> bytes:
        """A descriptor list as bytes."""
        return pickle.dumps(descs)

    def deserialize_descs(self, serialized_descs: bytes) -> Any:
        """The descriptor list of these bytes. Makes nothing else. Raises nixlMismatchError."""
        return restore(serialized_descs)
