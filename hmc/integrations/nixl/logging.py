"""The loggers of the drop-in, under the names that NIXL's have."""

from __future__ import annotations

import logging
import os

__all__ = ["get_logger"]

_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def get_logger(name: str) -> logging.Logger:
    """The logger "nixl.<last part of name>". NIXL_LOG_LEVEL sets the level: TRACE, DEBUG, INFO, WARN, ERROR or FATAL."""
    root = logging.getLogger("nixl")
    level = _LEVELS.get(os.environ.get("NIXL_LOG_LEVEL", "").upper())
    if level is not None and root.level == logging.NOTSET:
        root.setLevel(level)
    return logging.getLogger(f"nixl.{name.rpartition('.')[2].lstrip('_')}")
