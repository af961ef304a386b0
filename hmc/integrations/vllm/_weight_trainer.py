"""HMCTrainerWeightTransferEngine: the trainer's side of vLLM's weight-transfer interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine

import hmc
from hmc import weights
from hmc._arguments import whole
from hmc.errors import HmcError, InvalidArgumentError
from hmc.weights._manifest import MAX_EPOCH

if TYPE_CHECKING:
    from vllm.distributed.weight_transfer.base import VLLMWeightSyncClient, WeightSource

__all__ = ["HMCTrainerInitInfo", "HMCTrainerWeightTransferEngine"]


@dataclass
class HMCTrainerInitInfo(TrainerInitInfo):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """How a rank of the trainer publishes. ``rank`` is that of this process; rank 0 calls the engine.

    ``listen``: an address of this host, as the engine reaches it, such as ``"tcp://10.0.0.1:0"``; default a Unix socket, for an
    engine on this host. ``name``: of the publication. ``timeout``: seconds that the engine's workers have to find the sources, and
    of each update. ``epoch``: of the weights as they are now. ``sources``: addresses of all ranks of the trainer; default those
    that torch's default process group has together.
    """

    backend: ClassVar[str] = "hmc"
    listen: str | None = None
    name: str = "weights"
    timeout: float = 300.0
    epoch: int = 0
    sources: list[str] = field(default_factory=list)


def _together() -> bool:
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def _failures(failure: BaseException | None) -> list[str]:
    """What each rank says that has failed. Every rank calls it."""
    if not _together():
        return []
    said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, None if failure is None else f"{type(failure).__name__}: {failure}")
    return [f"rank {rank} raised {one}" for rank, one in enumerate(said) if one is not None]


def _copied(source: Any, into: Mapping[str, Any]) -> None:
    left = set(into)
    for name, tensor in source:
        if name not in into:
            raise InvalidArgumentError(f"tensor {name}: the source had no such tensor when the trainer began; it had {len(into)}")
        if tensor.shape != into[name].shape:  # copy_() would broadcast it
            raise InvalidArgumentError(
                f"tensor {name} has shape {tuple(tensor.shape)}, and had {tuple(into[name].shape)} when the trainer began"
            )
        into[name].copy_(tensor)
        left.discard(name)
    if left:
        raise InvalidArgumentError(f"the source did not yield {len(left)} of its {len(into)} tensors: {sorted(left)[:4]}")


class HMCTrainerWeightTransferEngine(TrainerWeightTransferEngine):  # type: ignore[misc]
    """Publishes weights where they are; the engine's workers pull them. Every rank of the trainer has one.

    ``source``: what hmc.weights.publish() takes, such as ``weights.from_module(model)``. Each rank publishes its own shards in
    place, whatever the sharding, and nothing is gathered. Or a WeightSource of vLLM, which yields whole tensors on every rank:
    rank 0 copies them to host memory and publishes that.
    """

    init_info_cls = HMCTrainerInitInfo

    def __init__(
        self, *, client: VLLMWeightSyncClient, source: WeightSource | Mapping[str, Any], is_sender: bool, info: HMCTrainerInitInfo
    ) -> None:
        super().__init__(client=client, source=source, is_sender=is_sender)
        self._copies: dict[str, Any] | None = None
        self._publication: weights.Publication | None = None
        self._ctx: hmc.Context | None = None
        self.epoch = info.epoch
        tensors: Mapping[str, Any] = source if isinstance(source, Mapping) else self._first(source)
        if not (is_sender or isinstance(source, Mapping)):
            return
        self._ctx = hmc.Context() if info.listen is None else hmc.Context(listen=info.listen)
        try:
            self._publication = weights.publish(self._ctx, tensors, epoch=info.epoch, name=info.name)
        except BaseException:
            self.shutdown()
            raise

    def _first(self, source: Any) -> dict[str, Any]:
        """Copies of what a WeightSource yields, at the rank that publishes them."""
        copies = {}
        for name, tensor in source:
            if self.is_sender:
                copies[name] = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        self._copies = copies
        return copies

    @classmethod
    def trainer_init(
        cls, init_info: HMCTrainerInitInfo, *, client: VLLMWeightSyncClient, source: Any = None
    ) -> HMCTrainerWeightTransferEngine:
        """Publishes the weights as they are now, and tells the engine where. Every rank calls it.

        Raises InvalidArgumentError without a source and for what publish() refuses, at the other ranks HmcError; and at rank 0 what
        the client raises, which names the engine's error.
        """
        if source is None:
            raise InvalidArgumentError("a trainer without a source: pass weights.from_module(model), or a WeightSource of vLLM")
        made: HMCTrainerWeightTransferEngine | None = None
        failure: BaseException | None = None
        try:
            made = cls(client=client, source=source, is_sender=init_info.is_sender, info=init_info)
        except BaseException as error:  # an interrupt too: the other ranks wait for this one's addresses
            failure = error
        try:
            failed = [] if init_info.sources else _failures(failure)
            if failure is not None:
                raise failure
            assert made is not None
            if failed:
                raise HmcError(f"weights were not published: {'; '.join(failed)}. Call it again on every rank")
            sources = init_info.sources or made._gather()
            if made.is_sender:
                client.init_weight_transfer_engine({"sources": sources, "name": init_info.name, "timeout": init_info.timeout})
        except BaseException:
            if made is not None:
                made.shutdown()
            raise
        finally:
            failure = None  # its traceback refers to this frame
        return made

    @property
    def addresses(self) -> list[str]:
        """Where this rank's weights can be pulled; none where rank 0 publishes for it."""
        return [] if self._ctx is None else self._ctx.addresses[-1:]  # behind the private Unix socket

    def _gather(self) -> list[str]:
        if not _together():
            return self.addresses
        lists: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(lists, self.addresses)
        return [address for some in lists for address in some]

    def send_weights(self, epoch: int | None = None) -> None:
        """Gives the engine the weights as they are now. Every rank calls it, and returns when the engine has them or has failed.

        ``epoch``: a number for them; default one more than the last. The tensors are digested now: they may have changed since the
        last call, and must not change until this one returns.

        At rank 0 it raises what the client raises. A rank that could not publish raises its own error, and all others HmcError: the
        engine then keeps its weights, and every rank may call it again.
        """
        wanted = self.epoch + 1
        failure: BaseException | None = None
        try:
            if epoch is not None:
                wanted = whole("epoch", epoch, 0, MAX_EPOCH)
            self._publish(wanted)
        except BaseException as error:  # an interrupt too: the other ranks wait for this one
            failure = error
        try:
            failed = _failures(failure)
            if failed:
                self.epoch = wanted  # on every rank: the next one is the same for all
            if failure is not None:
                raise failure
            if failed:
                raise HmcError(f"weights of epoch {wanted} were not sent: {'; '.join(failed)}. Call it again on every rank")
            if self.is_sender:
                self.client.start_weight_update()
                self.client.update_weights({"epoch": wanted})
                self.client.finish_weight_update()
        finally:
            failure = None  # its traceback refers to this frame
            if _together():
                dist.barrier()

    def _publish(self, epoch: int) -> None:
        if self._publication is None:  # rank 0 publishes; yielding whole tensors takes all ranks
            for _ in self.source:
                pass
            self.epoch = epoch
            return
        with self._publication.update(epoch):
            if self._copies is not None:
                _copied(self.source, self._copies)
        self.epoch = epoch

    def shutdown(self) -> None:
        """Ends the publication. Pulls that are in flight fail. Idempotent."""
        for one in (self._publication, self._ctx):
            if one is not None:
                one.close()
