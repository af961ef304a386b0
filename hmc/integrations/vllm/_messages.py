"""What decode and prefill workers say to each other. JSON in one message; every field that is read is checked."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from hmc.errors import ProtocolError
from hmc.integrations.vllm._params import MOST_CHARACTERS

__all__ = ["ASK_TAG", "MAX_BYTES", "PIECE_TAG", "Answer", "Ask", "Piece"]

ASK_TAG = 0x1D6D_6376_0001
PIECE_TAG = 0x1D6D_6376_0002
MAX_BYTES = 4 << 20
_VERSION = 1
_MOST_OF_ERROR = 1000  # characters; what a peer says comes into logs


@dataclass(frozen=True)
class Ask:
    """A question about requests of the prefill engine ``engine``.

    ``lease``: let me read ``tokens`` tokens of the one request, from token ``first`` on. ``release``: I read nothing of it.
    ``renew``: keep these requests, I read them later. ``offer``: push these tokens to me, layer by layer; ``answer`` is then the
    offer's number, which pieces and a later ``release`` name. ``readers``: workers of the decode engine that ask for this request
    here. Only ``lease`` is answered, with tag ``answer``. ``model``: fingerprint of the model. ``prompt``: digest of the prompt's
    tokens, or "".
    """

    what: str
    engine: str
    requests: list[str]
    answer: int = 0
    first: int = 0
    tokens: int = 0
    readers: int = 1
    model: str = ""
    prompt: str = ""

    def encode(self) -> Any:
        """The array that is sent."""
        return _encode(asdict(self))

    @staticmethod
    def decode(data: bytes) -> Ask:
        """Raises ProtocolError."""
        found = _decode(data)
        try:
            ask = Ask(**found)
        except TypeError as error:
            raise ProtocolError(f"a question of the vLLM connector has wrong fields: {error!s:.200}") from error
        texts = [ask.what, ask.engine, ask.model, ask.prompt, *(ask.requests if isinstance(ask.requests, list) else [None])]
        numbers = [ask.answer, ask.first, ask.tokens, ask.readers]
        if (
            ask.what not in ("lease", "release", "renew", "offer")
            or not all(isinstance(text, str) and len(text) <= MOST_CHARACTERS for text in texts)
            or not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)
            or not ask.requests
            or ask.readers < 1
            or (ask.what != "renew" and len(ask.requests) != 1)
        ):
            raise ProtocolError(f"a question of the vLLM connector is damaged: {ask!r:.200}")
        return ask


@dataclass(frozen=True)
class Answer:
    """The tickets of the leases, one for each pool, or why there are none; and the (first, count) of layers and heads there."""

    tickets: list[bytes] = field(default_factory=list)
    layers: tuple[int, int] = (0, 0)
    heads: tuple[int, int] = (0, 0)
    error: str = ""

    def encode(self) -> Any:
        """The array that is sent."""
        tickets = [ticket.hex() for ticket in self.tickets]
        return _encode({"tickets": tickets, "layers": self.layers, "heads": self.heads, "error": self.error[:_MOST_OF_ERROR]})

    @staticmethod
    def decode(data: bytes) -> Answer:
        """Raises ProtocolError."""
        found = _decode(data)
        try:
            first_layer, layers = (int(number) for number in found["layers"])
            first_head, heads = (int(number) for number in found["heads"])
            tickets = [bytes.fromhex(ticket) for ticket in found["tickets"]]
            return Answer(tickets, (first_layer, layers), (first_head, heads), str(found["error"])[:_MOST_OF_ERROR])
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise ProtocolError(f"an answer of the vLLM connector is damaged: {error!r:.200}") from error


@dataclass(frozen=True)
class Piece:
    """A prefill worker pushes ``tokens`` tokens of an offer from token ``begin`` of the prompt on, or says why it never will.

    The decode worker answers with tag ``answer``, an :class:`Answer` with a ticket for each pool. ``layers`` and ``heads``: (first,
    count) of the prefill worker.
    """

    offer: int
    begin: int = 0
    tokens: int = 0
    answer: int = 0
    layers: tuple[int, int] = (0, 0)
    heads: tuple[int, int] = (0, 0)
    error: str = ""

    def encode(self) -> Any:
        """The array that is sent."""
        return _encode({**asdict(self), "error": self.error[:_MOST_OF_ERROR]})

    @staticmethod
    def decode(data: bytes) -> Piece:
        """Raises ProtocolError."""
        found = _decode(data)
        try:
            layers, heads = tuple(found.pop("layers")), tuple(found.pop("heads"))
            piece = Piece(**found, layers=layers, heads=heads)
        except (KeyError, TypeError) as error:
            raise ProtocolError(f"a piece of the vLLM connector has wrong fields: {error!r:.200}") from error
        numbers = [piece.offer, piece.begin, piece.tokens, piece.answer, *layers, *heads]
        if (
            len(layers) != 2
            or len(heads) != 2
            or not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)
            or not isinstance(piece.error, str)
        ):
            raise ProtocolError(f"a piece of the vLLM connector is damaged: {piece!r:.200}")
        return replace(piece, error=piece.error[:_MOST_OF_ERROR])


def _encode(fields: dict[str, Any]) -> Any:
    data = json.dumps({"version": _VERSION, **fields}).encode()
    if len(data) > MAX_BYTES:
        raise ProtocolError(f"a message of the vLLM connector has {len(data)} bytes; at most {MAX_BYTES} are sent")
    return np.frombuffer(data, np.uint8)


def _decode(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:  # RecursionError: thousands of brackets
        raise ProtocolError(f"a message of the vLLM connector is damaged: {error}") from error
    if not isinstance(found, dict) or found.pop("version", None) != _VERSION:
        raise ProtocolError(f"a message of the vLLM connector is not of version {_VERSION}: use one release of HMC on both sides")
    return found
