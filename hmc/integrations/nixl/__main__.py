"""``python -m hmc.integrations.nixl PROGRAM ARGUMENTS...``, or ``-m MODULE``: runs a program whose ``import nixl`` finds HMC."""

import sys

from hmc.integrations._shared.launcher import launch

if __name__ == "__main__":
    sys.exit(launch("hmc.integrations.nixl", sys.argv[1:]))
