"""The name ``mooncake.engine`` for HMC's drop-in."""

import sys

from hmc.integrations.mooncake import engine

sys.modules[__name__] = engine
