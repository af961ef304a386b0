"""A plugin of SGLang: ``--disaggregation-transfer-backend hmc`` moves KV caches over HMC.

SGLang loads it by the entry point ``sglang.srt.plugins``. Its Mooncake backend then runs on ``hmc.integrations.mooncake``
(docs/howto/mooncake.md#sglang).
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from hmc.integrations._shared.launcher import environment

__all__ = ["BACKEND", "register"]

logger = logging.getLogger(__name__)
BACKEND = "hmc"
_RESOLVES = "sglang.srt.arg_groups.pd_disaggregation_hook.handle_pd_disaggregation"
_DROP_IN = "hmc.integrations.mooncake"


def register() -> None:
    """Adds the backend. SGLang calls this in each of its processes, before it parses arguments."""
    from sglang.srt.arg_groups.choices import DISAGG_TRANSFER_BACKEND_CHOICES, add_disagg_transfer_backend_choices
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if BACKEND in DISAGG_TRANSFER_BACKEND_CHOICES:
        return
    add_disagg_transfer_backend_choices([BACKEND])
    HookRegistry.register(_RESOLVES, _resolve, HookType.BEFORE)


def _resolve(server_args: Any) -> None:
    """Makes the backend "hmc" SGLang's "mooncake" on HMC's engine. Raises RuntimeError where Mooncake's is in use."""
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

    if resolving_view(server_args).disaggregation_transfer_backend != BACKEND:
        return
    _stand_in()
    source = "hmc.integrations.sglang"
    declare_resolution(server_args, source, disaggregation_transfer_backend="mooncake")
    declare_resolution(server_args, source, disaggregation_ib_device=None)  # HMC chooses cards itself
    logger.info("disaggregation transfer backend 'hmc' -> mooncake, with HMC's TransferEngine")


def _stand_in() -> None:
    """Makes ``import mooncake.engine`` find HMC's, here and in the processes that SGLang starts."""
    from hmc.integrations.mooncake import engine

    found = sys.modules.get("mooncake.engine")
    if found is not None and found is not engine:
        raise RuntimeError("mooncake.engine of Mooncake was imported before: the backend 'hmc' cannot stand in for it any more")
    if found is None:
        paths = environment(_DROP_IN)["PYTHONPATH"].split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))  # each once: this may be called again
        if paths[0] not in sys.path[:1]:
            sys.path.insert(0, paths[0])
        sys.modules.pop("mooncake", None)  # Mooncake's package, without its engine
