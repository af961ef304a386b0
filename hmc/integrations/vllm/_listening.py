"""Messages of one tag: taken from every peer, on a thread for each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from hmc._core import Context, Peer
from hmc._process import start_thread
from hmc.errors import ClosedError, HmcError, InvalidArgumentError, PeerLostError, ProtocolError
from hmc.integrations.vllm._log import logger
from hmc.integrations.vllm._messages import MAX_BYTES

__all__ = ["Listening"]


Message = TypeVar("Message")


class Listening(Generic[Message]):
    """Hands the messages of peers to ``take``, in the order of each peer. A damaged one is logged. Any thread."""

    def __init__(self, tag: int, decode: Callable[[bytes], Message], take: Callable[[Peer, Message], None]) -> None:
        self._tag = tag
        self._decode = decode
        self._take = take
        self._lock = threading.Lock()
        self._peers: set[Peer] = set()
        self._closed = False

    def accept(self, ctx: Context) -> None:
        """Takes messages of every peer that connects from now on, until ``close``."""
        start_thread(lambda: self._accept(ctx), "hmc.vllm accept")

    def add(self, peer: Peer) -> None:
        """Takes messages of a peer, until it is lost. OutOfMemoryError: no thread is left; call it again. Idempotent."""
        with self._lock:
            if peer in self._peers:
                return
            self._peers.add(peer)
        try:
            start_thread(lambda: self._listen(peer), "hmc.vllm listen")
        except BaseException:  # no thread left: the next add() starts one
            with self._lock:
                self._peers.discard(peer)
            raise

    def close(self) -> None:
        """Accepts no further peers."""
        self._closed = True

    def _accept(self, ctx: Context) -> None:
        with contextlib.suppress(ClosedError):
            while not self._closed:
                peer = ctx.accept()
                try:
                    self.add(peer)
                except HmcError as error:  # no thread left
                    logger.warning("HMC: %s is not listened to: %s", peer.name, error)
                    peer.close()

    def _listen(self, peer: Peer) -> None:
        array = np.empty(MAX_BYTES, np.uint8)
        try:
            while True:
                try:
                    info = peer.recv(array, tag=self._tag)
                    message = self._decode(array[: info.bytes].tobytes())
                except (InvalidArgumentError, ProtocolError) as error:  # too long, or damaged
                    logger.warning("HMC: %s: %s", peer.name, error)
                    continue
                try:
                    self._take(peer, message)
                except Exception:  # of one message: the peer's others are taken all the same
                    logger.exception("HMC: a message of %s was not handled", peer.name)
        except (ClosedError, PeerLostError):
            pass
        except HmcError as error:  # its requests end now, and not at their timeouts
            logger.warning("HMC: nothing more is taken from %s: %s", peer.name, error)
            peer.close()
        finally:
            with self._lock:
                self._peers.discard(peer)
