"""Another extension of pybind11 in the process keeps its exceptions."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCE = """
#include <pybind11/pybind11.h>
#include <new>
#include <system_error>
PYBIND11_MODULE(another, module) {
  module.def("no_memory", [] { throw std::bad_alloc(); });
  module.def("refused", [] { throw std::system_error(std::make_error_code(std::errc::timed_out)); });
  module.def("no_cast", [] { throw pybind11::cast_error("no cast"); });
}
"""


def test_exceptions_of_another_extension_are_its_own(tmp_path: Path, run_script: Callable[..., str]) -> None:
    pybind11 = pytest.importorskip("pybind11")
    compiler, headers = shutil.which("c++"), Path(sysconfig.get_path("include"))
    if compiler is None or not (headers / "Python.h").exists():
        pytest.skip("no C++ compiler, or not Python's headers")
    source = tmp_path / "another.cc"
    source.write_text(SOURCE)
    module = tmp_path / f"another{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = ["-shared", "-fPIC", "-std=c++17", "-fvisibility=hidden", f"-I{headers}", f"-I{pybind11.get_include()}"]
    subprocess.run([compiler, *flags, source, "-o", module], check=True, timeout=240)
    run_script(
        """
import another
for call, kind in ((another.no_memory, MemoryError), (another.refused, RuntimeError), (another.no_cast, RuntimeError)):
    try:
        call()
    except Exception as error:
        assert type(error) is kind, repr(error)
""",
        {},
    )
