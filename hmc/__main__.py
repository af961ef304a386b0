"""``python -m hmc`` is the ``hmc`` command."""

from __future__ import annotations

import sys

from hmc.cli import main

if __name__ == "__main__":
    sys.exit(main())
