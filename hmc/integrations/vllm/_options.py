"""Options of the connector, from vLLM's --kv-transfer-config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hmc.errors import InvalidArgumentError
from hmc.integrations.vllm._params import Remote

__all__ = ["MODES", "Options"]

_EXTRA = ("mode", "host", "kv_lease_duration", "load_timeout", "load_threads", "push_credits")
MODES = ("pull", "push")


@dataclass(frozen=True)
class Options:
    """``port``: of the first worker, as decode engines reach it at ``host``. ``mode``: one of MODES. Seconds."""

    mode: str
    engine: str
    lends: bool
    fetches: bool
    host: str
    port: int
    tp_size: int
    pp_size: int
    lease_seconds: float
    load_timeout: float
    load_threads: int
    push_credits: int

    @staticmethod
    def of(transfer: Any, parallel: Any) -> Options:
        """From a KVTransferConfig and a ParallelConfig. Raises InvalidArgumentError for an unknown or wrong option."""
        extra = dict(transfer.kv_connector_extra_config)
        unknown = sorted(set(extra) - set(_EXTRA))
        if unknown:
            raise InvalidArgumentError(f"kv_connector_extra_config has {', '.join(unknown)}; known are {', '.join(_EXTRA)}")
        tp_size, pp_size = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
        try:
            lease = float(extra.get("kv_lease_duration", 30))
            timeout = float(extra.get("load_timeout", 120))
            threads = int(extra.get("load_threads", 4))
            credits = int(extra.get("push_credits", 16))
        except (OverflowError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"kv_connector_extra_config: {error}") from error
        if not (lease > 0 and timeout > 0 and 1 <= threads <= 256 and 1 <= credits <= 4096):
            raise InvalidArgumentError(
                f"kv_connector_extra_config: kv_lease_duration {lease} and load_timeout {timeout} must be above 0, "
                f"load_threads {threads} from 1 to 256, push_credits {credits} from 1 to 4096"
            )
        mode = extra.get("mode", "pull")
        if mode not in MODES:
            raise InvalidArgumentError(f"kv_connector_extra_config: mode {mode!r} is not one of {', '.join(MODES)}")
        host = extra.get("host", "127.0.0.1")
        if not isinstance(host, str) or not host:
            raise InvalidArgumentError(f"kv_connector_extra_config: host {host!r} must be an address, as decode engines reach it")
        return Options(
            mode=mode,
            engine=transfer.engine_id,
            lends=transfer.is_kv_producer,
            fetches=transfer.is_kv_consumer,
            host=host,
            port=transfer.kv_port + parallel.data_parallel_index * tp_size * pp_size,
            tp_size=tp_size,
            pp_size=pp_size,
            lease_seconds=lease,
            load_timeout=timeout,
            load_threads=threads,
            push_credits=credits,
        )

    def here(self, request: str) -> Remote:
        """A request of this engine as others reach it."""
        return Remote(self.engine, request, self.host, self.port, self.tp_size, self.pp_size)

    def address(self, pp: int, tp: int) -> list[str]:
        """Where a worker listens; nowhere if it lends nothing."""
        return [self.here("").address(pp, tp)] if self.lends else []
