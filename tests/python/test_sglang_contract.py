"""The plugin against SGLang's own classes: arguments, hooks, its Mooncake engine. SGLang does not serve on a CPU: no server is run.

Skipped, saying so, where SGLang is not installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = """
    import argparse, json, os, sys
    from hmc.integrations import sglang as plugin
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.server_args import ServerArgs

    def resolved(*line):
        from sglang.srt.arg_groups.pd_disaggregation_hook import handle_pd_disaggregation
        parser = argparse.ArgumentParser()
        ServerArgs.add_cli_args(parser)
        args = ServerArgs.from_cli_args(parser.parse_args(["--model-path", "/none", *line]))
        handle_pd_disaggregation(args)
        return resolving_view(args)

    plugin.register()
    plugin.register()  # of a second load
    HookRegistry.apply_hooks()
"""


def run(source: str, *arguments: str, **environment: str) -> Any:
    """What a program prints last, as JSON."""
    pytest.importorskip("sglang.srt.plugins", reason="SGLang is not installed: the plugin was not compared with its classes")
    command = [sys.executable, "-c", textwrap.dedent(source), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd="/", env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_backend_becomes_mooncake_with_the_engine_of_hmc() -> None:
    source = (
        PLUGIN
        + """
    import subprocess
    view = resolved(
        "--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "hmc", "--disaggregation-ib-device", "x"
    )
    import mooncake.engine
    child = "import mooncake.engine; print(mooncake.engine.__name__)"
    print(json.dumps([
        view.disaggregation_transfer_backend,
        view.disaggregation_ib_device,
        mooncake.engine.__name__,
        subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout,
    ]))
    """
    )
    drop_in = "hmc.integrations.mooncake.engine"
    assert run(source) == ["mooncake", None, drop_in, f"{drop_in}\n"]


def test_other_backends_stay_as_they_are() -> None:
    source = (
        PLUGIN
        + """
    before = sys.path[:], os.environ.get("PYTHONPATH")
    found = [
        resolved("--disaggregation-mode", "decode", "--disaggregation-transfer-backend", name).disaggregation_transfer_backend
        for name in ("nixl", "mori")
    ]
    assert (sys.path, os.environ.get("PYTHONPATH")) == before
    assert "mooncake.engine" not in sys.modules
    print(json.dumps(found))
    """
    )
    assert run(source) == ["nixl", "mori"]


def test_an_engine_of_mooncake_that_is_in_use_is_refused() -> None:
    source = (
        PLUGIN
        + """
    import types
    sys.modules["mooncake.engine"] = types.ModuleType("mooncake.engine")
    try:
        resolved("--disaggregation-mode", "prefill", "--disaggregation-transfer-backend", "hmc")
    except RuntimeError as error:
        print(json.dumps(str(error)))
    """
    )
    assert "mooncake.engine" in run(source)


def test_sglang_finds_the_plugin_by_its_entry_point() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points."sglang.srt.plugins"]\nhmc = "hmc.integrations.sglang:register"\n' in text
    source = """
    import json
    from sglang.srt.plugins import GENERAL_PLUGINS_GROUP
    print(json.dumps(GENERAL_PLUGINS_GROUP))
    """
    assert run(source) == "sglang.srt.plugins"


ENGINES = """
    import json, multiprocessing, sys
    import numpy as np
    from sglang.srt.distributed.device_communicators.mooncake_transfer_engine import MooncakeTransferEngine

    SIZE, COUNT = 1_000_003, 200

    def made(seed):
        engine = MooncakeTransferEngine("127.0.0.1", gpu_id=0, ib_device=None)
        memory = np.random.default_rng(seed).integers(0, 256, SIZE, dtype=np.uint8)
        assert engine.batch_register([memory.ctypes.data], [SIZE]) == 0
        return engine, memory

    def decode(pipe):
        engine, memory = made(2)
        pipe.send((engine.get_session_id(), memory.ctypes.data))
        pipe.recv()
        pipe.send(memory)
        engine.deregister(memory.ctypes.data)

    pipe, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=decode, args=(theirs,), daemon=True)
    process.start()  # before this process has an engine
    session, there = pipe.recv()
    engine, memory = made(1)
    random = np.random.default_rng(3)
    here, far = random.permutation(COUNT) * 5000, random.permutation(COUNT) * 5000
    lengths = random.choice([0, 1, 4096, 5000], COUNT)
    pieces = [(memory.ctypes.data + here).tolist(), (there + far).tolist(), lengths.tolist()]
    assert engine.batch_transfer_sync(session, *pieces) == 0
    assert engine.transfer_sync(session, memory.ctypes.data, there + SIZE - 3, 3) == 0
    assert engine.transfer_sync(session, memory.ctypes.data, there + SIZE - 3, 4) < 0
    assert engine.send_probe(session) == 0
    expected = np.random.default_rng(2).integers(0, 256, SIZE, dtype=np.uint8)
    for a, b, n in zip(here, far, lengths):
        expected[b : b + n] = memory[a : a + n]
    expected[SIZE - 3 :] = memory[:3]
    pipe.send("compare")
    assert np.array_equal(pipe.recv(), expected)
    process.join(20)
    assert engine.batch_transfer_sync(session, *pieces) < 0 and engine.send_probe(session) != 0
    print(json.dumps(type(engine.engine).__module__))
"""


def test_sglangs_transfer_engine_moves_bytes_between_processes() -> None:
    source = textwrap.dedent(PLUGIN) + "plugin._stand_in()\n" + textwrap.dedent(ENGINES)
    assert run(source) == "hmc.integrations.mooncake.engine"
