"""The logger of the connector. What clients and peers name may hold lone surrogates, which no log file takes."""

from __future__ import annotations

import logging


class _Encodable(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if not text.isascii():
            record.msg, record.args = text.encode("utf-8", "backslashreplace").decode(), ()
        return True


logger = logging.getLogger("vllm.hmc")
logger.addFilter(_Encodable())
