"""HMCWeightTransferEngine: what vLLM calls in each worker of an engine that gets new weights."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo

from hmc.errors import EpochChangedError, HmcError, InvalidArgumentError
from hmc.integrations.vllm._incoming_weights import Incoming, Read
from hmc.integrations.vllm._log import logger
from hmc.integrations.vllm._weight_loading import Kept, load

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.config.weight_transfer import WeightTransferConfig

__all__ = ["HMCWeightTransferEngine", "HMCWeightTransferInitInfo", "HMCWeightTransferUpdateInfo"]


def _check_seconds(what: str, seconds: Any) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e9:
        raise InvalidArgumentError(f"{what} {seconds!r}: pass seconds above 0")


@dataclass
class HMCWeightTransferInitInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """Where the weights are published. Plain JSON.

    ``sources``: addresses of one or more Contexts. ``name``: of their publications. ``timeout``: seconds to find them, and of each
    update.
    """

    sources: list[str]
    name: str = "weights"
    timeout: float = 300.0

    def __post_init__(self) -> None:
        if not isinstance(self.sources, list) or not self.sources or not all(isinstance(one, str) for one in self.sources):
            raise InvalidArgumentError(f"sources {self.sources!r}: pass a list of addresses, as the trainer's Context has them")
        if not isinstance(self.name, str):
            raise InvalidArgumentError(f"name {self.name!r}: pass the text that publish() was given")
        _check_seconds("timeout", self.timeout)


@dataclass
class HMCWeightTransferUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """Which weights to load. ``epoch``: of the publications; default the newest. ``timeout``: seconds; default that of the init."""

    epoch: int | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.epoch is not None and (isinstance(self.epoch, bool) or not isinstance(self.epoch, int) or self.epoch < 0):
            raise InvalidArgumentError(f"epoch {self.epoch!r}: pass an int from 0 on, or none for the newest")
        if self.timeout is not None:
            _check_seconds("timeout", self.timeout)


class HMCWeightTransferEngine(WeightTransferEngine):  # type: ignore[misc]
    """Pulls published weights into host memory, checks their digests, then loads them with the model's own load_weights().

    The model changes only when every worker of the engine has read and checked the same epoch. vLLM makes one for each worker, and
    calls it between steps. docs/howto/vllm_weights.md has the commands.
    """

    init_info_cls = HMCWeightTransferInitInfo
    update_info_cls = HMCWeightTransferUpdateInfo
    supports_draft_weight_update = False  # the sources publish the weights of one model

    def __init__(self, config: WeightTransferConfig, vllm_config: VllmConfig, device: torch.device, model: torch.nn.Module) -> None:
        super().__init__(config, vllm_config, device, model)
        self._incoming: Incoming | None = None
        self._timeout = 0.0
        self._counters: dict[str, float] = dict.fromkeys(
            ("updates", "updates_failed", "bytes_read", "read_seconds", "load_seconds"), 0
        )

    def init_transfer_engine(self, init_info: HMCWeightTransferInitInfo) -> None:
        """Finds the sources. May be called again, with other sources; the former ones are then left.

        Raises HmcTimeoutError, PeerLostError, AuthenticationError; InvalidArgumentError where the sources do not have every region
        of their tensors. The engine then has no sources.
        """
        self.shutdown()
        failure: Exception | None = None
        try:
            self._incoming = Incoming(init_info.sources, init_info.name, init_info.timeout)
        except Exception as error:
            failure = error
        try:
            _agree(failure, None)
        except Exception:
            self.shutdown()
            raise
        finally:
            failure = None  # its traceback refers to this frame
        assert self._incoming is not None
        self._timeout = init_info.timeout
        tensors = {shard.name for source in self._incoming.sources for shard in source.shards}
        logger.info(
            "HMC: weights %r at %s: %d tensors, %.1f MiB",
            init_info.name,
            ", ".join(init_info.sources),
            len(tensors),
            self._incoming.nbytes / 2**20,
        )

    def start_weight_update(self) -> None:
        """Raises InvalidArgumentError before the sources are known. The model is prepared once the weights are here."""
        self._sources()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As receive_weights(). Unlike the base class it runs without an accelerator too; the weights are in place at its end."""
        failure: Exception | None = None
        try:
            parsed = self.parse_update_info(update_info)
        except Exception as error:  # vLLM may give each worker another one
            failure = error
        try:
            _agree(failure, None)
        finally:
            failure = None
        self.receive_weights(parsed)

    def receive_weights(self, update_info: HMCWeightTransferUpdateInfo) -> None:
        """Reads an epoch and replaces the model's weights.

        Where any worker of the engine fails, all raise, and all keep their weights: PeerLostError, EpochChangedError,
        StaleBufferError, CorruptError, HmcTimeoutError; what load_weights() raises, at the first update from these sources. The
        update may be repeated, also with other sources.
        """
        incoming = self._sources()
        timeout = self._timeout if update_info.timeout is None else update_info.timeout
        try:
            read = self._read(incoming, update_info.epoch, timeout)
            begun = time.monotonic()
            self._load(incoming, read)
        except Exception as error:
            self._counters["updates_failed"] += 1
            logger.warning("HMC: weights were not updated: %s: %s", type(error).__name__, error)
            raise
        seconds = time.monotonic() - begun
        for name, more in zip(self._counters, (1, 0, read.nbytes, read.seconds, seconds), strict=True):
            self._counters[name] += more
        logger.info(
            "HMC: weights of epoch %d: %.1f MiB read and checked in %.3f s from %d sources, loaded in %.3f s",
            read.epoch,
            read.nbytes / 2**20,
            read.seconds,
            len(incoming.sources),
            seconds,
        )

    def finish_weight_update(self) -> None:
        """Nothing: update_weights() has loaded all of it, so that a failure ends vLLM's update."""

    def counters(self) -> dict[str, float]:
        """Updates, failed updates, bytes, seconds to read and check, and seconds to load, of this worker so far."""
        return dict(self._counters)

    def shutdown(self) -> None:
        """Leaves the sources. Idempotent."""
        if self._incoming is not None:
            self._incoming.close()
            self._incoming = None

    def _sources(self) -> Incoming:
        if self._incoming is None:
            raise InvalidArgumentError("a weight update without sources: call init_weight_transfer_engine() first")
        return self._incoming

    def _read(self, incoming: Incoming, epoch: int | None, timeout: float) -> Read:
        read: Read | None = None
        failure: Exception | None = None
        try:
            read = incoming.read(epoch, timeout)
        except Exception as error:
            failure = error
        try:
            found = _agree(failure, None if read is None else read.epoch)
        finally:
            failure = None
        assert read is not None
        if len(set(found)) > 1:
            raise EpochChangedError(f"the workers of the engine have read epochs {found}; pass an epoch, or update again")
        return read

    def _load(self, incoming: Incoming, read: Read) -> None:
        kept: Kept | None = None
        failure: Exception | None = None
        try:
            if not incoming.accepted:
                kept = Kept(self.model)
            load(self.model, self.model_config, incoming.tensors())
        except Exception as error:
            failure = error
        try:
            _agree(failure, read.epoch)
        except Exception as error:
            if incoming.accepted:
                raise HmcError(
                    f"weights of epoch {read.epoch} were loaded in part, where former ones of these sources were loaded: "
                    f"{error}. Update again, or restart the engine"
                ) from error
            if kept is not None:
                kept.restore()
            raise
        finally:
            failure = None  # else the error, this frame and what it has kept refer to each other
        incoming.accepted = True


def _agree(failure: Exception | None, epoch: int | None) -> list[int | None]:
    """The epochs of all workers of the engine. Raises on all of them where one has failed; each worker calls it."""
    here = f"worker (pp {get_pp_group().rank_in_group}, tp {get_tp_group().rank_in_group})"
    found: list[Any] = [(None if failure is None else f"{here}: {type(failure).__name__}: {failure}", epoch)]
    for group in (get_tp_group(), get_pp_group()):
        if group.world_size > 1:
            lists: list[Any] = [None] * group.world_size
            dist.all_gather_object(lists, found, group=group.cpu_group)
            found = [one for some in lists for one in some]
    try:
        if failure is not None:
            raise failure
    finally:
        failure = None
    failures = [text for text, _ in found if text is not None]
    if failures:
        raise HmcError(f"another worker of the engine has failed: {failures[0]}")
    return [one for _, one in found]
