"""Which vendors are simulated, and their libraries in this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from abi_cnrt import Cnrt
from abi_cuda import Cuda
from abi_runtime import Runtime

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("cuda", "rocm", "rocm5", "hygon", "musa", "mlu")


def library_path(name: str) -> Path | None:
    """$HMC_SIM_DIR, else the build folders of this tree but for sanitizers', whose libraries Python cannot load."""
    folder = os.environ.get("HMC_SIM_DIR")
    folders = [Path(folder)] if folder else [ROOT / "build" / build / "sim" for build in (".", "package", "dev", "gpu")]
    return next((path for path in (where / f"libhmcsim_{name}.so" for where in folders) if path.exists()), None)


def load(name: str) -> Any:
    """The vendor's library in this process, started, with device 0 current."""
    path = library_path(name)
    assert path is not None, f"libhmcsim_{name}.so is not built"
    vendor: Any = {"cuda": Cuda, "mlu": Cnrt}.get(name, Runtime)(name, path)
    vendor.start()
    return vendor
