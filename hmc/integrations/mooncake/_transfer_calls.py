"""Transfers of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hmc.errors import HmcError
from hmc.integrations._shared import frames as wire
from hmc.integrations._shared.inbox import send
from hmc.integrations.mooncake import _arguments as arguments
from hmc.integrations.mooncake._endpoint import Endpoint, notification
from hmc.integrations.mooncake._engine_base import EngineBase
from hmc.integrations.mooncake._transfer import DONE, FAILED, PENDING, Transfer
from hmc.integrations.mooncake._types import INVALID_ARGUMENT, Refused, TransferNotify, TransferOpcode, failing_with, logger

__all__ = ["AsyncCalls", "SyncCalls"]

Read, Write = TransferOpcode


class SyncCalls(EngineBase):
    """Transfers that are over when the call returns."""

    def transfer_sync_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Writes registered memory into that of an engine, "host:port". Returns 0 once every byte is there, else -1."""
        return self._transfer_sync(target_hostname, [buffer], [peer_buffer_address], [length], Write, None, transport_hint)

    def transfer_sync_read(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Reads registered memory of an engine into registered memory."""
        return self._transfer_sync(target_hostname, [buffer], [peer_buffer_address], [length], Read, None, transport_hint)

    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """As those two. ``notify`` is sent when the last byte is in place."""
        return self._transfer_sync(target_hostname, [buffer], [peer_buffer_address], [length], opcode, notify, transport_hint)

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Writes any number of pieces. Lists, tuples or arrays of integers."""
        return self._transfer_sync(target_hostname, buffers, peer_buffer_addresses, lengths, Write, None, transport_hint)

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Reads any number of pieces."""
        return self._transfer_sync(target_hostname, buffers, peer_buffer_addresses, lengths, Read, None, transport_hint)

    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """As those two. ``notify`` is sent when the last byte is in place."""
        return self._transfer_sync(target_hostname, buffers, peer_buffer_addresses, lengths, opcode, notify, transport_hint)

    @failing_with()
    def _transfer_sync(
        self, target: str, here: Any, there: Any, lengths: Any, opcode: Any, notify: TransferNotify | None, hint: str
    ) -> int:
        if notify is not None and not isinstance(notify, TransferNotify):
            raise TypeError(f"notify is a TransferNotify or None, not {type(notify).__name__}")
        endpoint = self._ready()
        message = b"" if notify is None else notification(notify)
        transfer = self._post(endpoint, target, here, there, lengths, opcode, hint)
        if transfer.wait() != DONE:
            return INVALID_ARGUMENT
        if message:  # not to a successor by that name, which has not got the bytes
            send((transfer.session or endpoint.session(target)).peer, wire.NOTIFY, message)
        return 0

    def _post(self, endpoint: Endpoint, target: str, here: Any, there: Any, lengths: Any, opcode: Any, hint: str) -> Transfer:
        if not isinstance(opcode, TransferOpcode):
            raise TypeError(f"opcode is a TransferOpcode, not {type(opcode).__name__}")
        arguments.text("transport_hint", hint)
        near, far = arguments.numbers("buffers", here), arguments.numbers("peer_buffer_addresses", there)
        sizes = arguments.numbers("lengths", lengths)
        if not len(near) == len(far) == len(sizes):
            raise Refused(
                INVALID_ARGUMENT, f"{len(near)} buffers, {len(far)} peer addresses, {len(sizes)} lengths; they must be equally many"
            )
        session = endpoint.session(arguments.text("target_hostname", target))
        transfer = Transfer(session, self._seconds)
        if len(sizes) and not sizes.all():  # pieces of 0 bytes lie nowhere
            near, far, sizes = near[sizes > 0], far[sizes > 0], sizes[sizes > 0]
        if len(sizes):
            transfer.post(endpoint.memory, opcode, near, far, sizes)
        return transfer


class AsyncCalls(SyncCalls):
    """Transfers that are started, and asked about."""

    @failing_with(0)
    def transfer_submit_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Starts a write. Returns its number for transfer_check_status(), or 0 where the engine cannot be reached."""
        return self._submit(target_hostname, [buffer], [peer_buffer_address], [length], Write, transport_hint)

    @failing_with(0)
    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Starts writing any number of pieces."""
        return self._submit(target_hostname, buffers, peer_buffer_addresses, lengths, Write, transport_hint)

    @failing_with(0)
    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Starts reading any number of pieces."""
        return self._submit(target_hostname, buffers, peer_buffer_addresses, lengths, Read, transport_hint)

    @failing_with(0)
    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
        transport_hint: str = "",
    ) -> int:
        """As those two."""
        return self._submit(target_hostname, buffers, peer_buffer_addresses, lengths, opcode, transport_hint)

    @failing_with()
    def transfer_check_status(self, batch_id: int) -> int:
        """0 while it is in flight, 1 when it is done, -1 failed, -2 timed out. The number is void after any but 0."""
        self._ready()
        state = self._transfer(batch_id).state()
        if state != PENDING:
            self._forget(batch_id)
        return state

    @failing_with()
    def get_batch_transfer_status(self, batch_ids: Sequence[int]) -> int:
        """Waits for transfers. Returns 0 when all are done, -1 when one failed or timed out. The numbers are void afterwards."""
        self._ready()
        result = 0
        for number in batch_ids:
            try:
                ended = self._transfer(number).wait()
            except Refused as error:  # the others are waited for all the same
                logger.error("get_batch_transfer_status: %s", error)
                ended = FAILED
            if ended != DONE:
                result = INVALID_ARGUMENT
            self._forget(number)
        return result

    def _submit(self, target: str, here: Any, there: Any, lengths: Any, opcode: Any, hint: str) -> int:
        endpoint = self._ready()
        endpoint.session(arguments.text("target_hostname", target))
        try:
            transfer = self._post(endpoint, target, here, there, lengths, opcode, hint)
        except HmcError as error:
            transfer = Transfer(None, self._seconds)
            transfer.fail(error)
        number = next(self._numbers)
        with self._lock:
            self._transfers[number] = transfer
        return number

    def _transfer(self, number: int) -> Transfer:
        with self._lock:
            found = self._transfers.get(arguments.number("batch_id", number))
        if found is None:
            raise Refused(FAILED, f"{number} is no transfer in flight: it was never started, or its end was reported")
        return found

    def _forget(self, number: int) -> None:
        with self._lock:
            self._transfers.pop(number, None)
