"""``python -m hmc.integrations.mooncake PROGRAM ARGUMENTS...``, or ``-m MODULE``: its ``import mooncake.engine`` finds HMC."""

import sys

from hmc.integrations._shared.launcher import launch

if __name__ == "__main__":
    sys.exit(launch("hmc.integrations.mooncake", sys.argv[1:]))
