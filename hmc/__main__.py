"""``python -m hmc`` is the ``hmc`` command."""

from __future__ import annotations

import sys

from hmc.cli import main

sys.exit(main())
