"""The code of the tutorials runs, as the tutorials say to run it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hmc.testing

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "python"
BIN = Path(sys.executable).parent
# Options of `hmc run`; none: started by itself.
OPTIONS = {
    "first_transfer.py": ["-n", "2"],
    "all_to_all.py": ["-n", "4"],
    "all_reduce.py": ["-n", "4"],
    "over_hosts.py": ["-n", "3"],
    "several_cards.py": ["-n", "2", "--simulate", "cuda,mlu,musa"],
    "mixed_vendors.py": ["-n", "2", "--simulate", "cuda,rocm"],
    "arrays_and_buffers.py": [],
    "asyncio_pair.py": [],
    "spawned.py": [],
    "kv_pair.py": [],
    "explain_plan.py": ["-n", "2"],
    "pages_by_index.py": ["-n", "2"],
    "train_two_islands.py": ["-n", "2", "--simulate", "cuda,rocm"],
    "shrink_after_loss.py": [],
    "replace_after_loss.py": [],
    "weights.py": [],
    "experts.py": [],
}
FOREIGN = {"inside_mpi4py.py": "mpi4py", "inside_ray.py": "ray", "inside_torch.py": "torch"}
SIMULATED = "beside_cuda_python.py"
DROP_INS = {"nixl_pair.py": "nixl", "mooncake_pair.py": "mooncake"}


def run(command: list[str], **environment: str) -> str:
    # "-m" looks for modules in the working directory first: not the source tree, whose hmc/ has no extension.
    result = subprocess.run(command, capture_output=True, text=True, timeout=110, env={**os.environ, **environment}, cwd="/")
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*OPTIONS, *FOREIGN, SIMULATED, *DROP_INS}


def test_every_example_is_in_the_documentation() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    for path in EXAMPLES.glob("*.py"):
        assert f"literalinclude}} ../../examples/python/{path.name}" in pages, path.name


def test_tutorials_hold_no_code_of_their_own() -> None:
    # Code that is written into a page is run by nobody; a page includes it from examples/.
    for path in (ROOT / "docs" / "tutorials").glob("*.md"):
        assert not re.search(r"^```(python|py|cpp|c\+\+)\s*$", path.read_text(), re.MULTILINE), path.name


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_example(name: str) -> None:
    script = str(EXAMPLES / name)
    options = OPTIONS[name]
    command = [str(BIN / "hmc"), "run", *options, script] if options else [sys.executable, script]
    assert run(command).count("done") == int(options[1] if options else 1)


@pytest.mark.parametrize("name", sorted(DROP_INS))
def test_the_program_written_for_another_library(name: str) -> None:
    assert run([sys.executable, "-m", f"hmc.integrations.{DROP_INS[name]}", str(EXAMPLES / name)]).count("done") == 1


def test_the_program_of_the_readme(tmp_path: Path) -> None:
    [program] = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "readme.py").write_text(program)
    for _ in range(5):  # whoever is done first leaves
        assert "[0 1 2 3 4 5 6 7]" in run([str(BIN / "hmc"), "run", "-n", "2", str(tmp_path / "readme.py")])


@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_example_beside_another_library(name: str) -> None:
    package = FOREIGN[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    if package == "torch":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    elif package == "ray":
        command = [sys.executable]
    else:
        mpirun = shutil.which("mpirun", path=f"{BIN}:{os.environ['PATH']}")
        if mpirun is None:
            pytest.skip("mpirun is not installed")
        command = [mpirun, "-n", "4", sys.executable]
    # Open MPI refuses root and more processes than cores unless told otherwise.
    allow = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    assert run([*command, str(EXAMPLES / name)], **allow).count("done") == 4


def test_example_beside_cuda_python(tmp_path: Path) -> None:
    for package in ("cuda", "cuda.core", "cuda.bindings"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    (tmp_path / "libcuda.so.1").symlink_to(hmc.testing.library("cuda"))
    environment = {"LD_LIBRARY_PATH": str(tmp_path), "CUDA_PYTHON_DISABLE_MAJOR_VERSION_WARNING": "1"}
    assert run([sys.executable, str(EXAMPLES / SIMULATED)], **environment).count("done") == 1
