"""vLLM engines as the tests see them."""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
TOKENS = 2048  # of every engine's cache
DEADLINE = 60.0
STARTED = 240.0
LAYERS, HEADS, DIMS = 4, 4, 32  # of the model


def save_llama(folder: Path, seed: int, **more: Any) -> Path:
    """Writes a tiny Llama whose weights are far from 0. Returns the folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        **{
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 8,
            "num_key_value_heads": HEADS,
            "head_dim": DIMS,
            "vocab_size": 1024,
            "max_position_embeddings": 2048,
            "initializer_range": 0.5,
            "tie_word_embeddings": False,
            "dtype": torch.float32,
            **more,
        }
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def save_mixtral(folder: Path, seed: int, **more: Any) -> Path:
    """Writes a tiny Mixtral whose weights are far from 0. Returns the folder."""
    import torch
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(seed)
    config = MixtralConfig(
        **{
            "hidden_size": 128,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "vocab_size": 512,
            "max_position_embeddings": 1024,
            "initializer_range": 0.2,
            "dtype": torch.float32,
            **more,
        }
    )
    MixtralForCausalLM(config).save_pretrained(folder)
    return folder


def free_port() -> int:
    """Below those that the kernel gives to outgoing connections."""
    while True:
        port = random.randrange(20000, 32000, 16)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Engine:
    """An engine in a process of its own. ``wait_ready`` before the first request."""

    def __init__(self, model: Path, log: Path, block: int, transfer: dict[str, Any] | None = None, **engine: Any) -> None:
        self.log = log
        self.port = 0 if transfer is None else transfer["kv_port"]
        self.tp_size: int = engine.get("tensor_parallel_size", 1)
        self.pp_size: int = engine.get("pipeline_parallel_size", 1)
        options = {
            "engine": {
                "model": str(model),
                "skip_tokenizer_init": True,
                "dtype": "float32",
                "enforce_eager": True,
                "max_model_len": 512,
                "max_num_seqs": 8,
                "block_size": block,
                "num_gpu_blocks_override": TOKENS // block,
                "distributed_executor_backend": "uni",
                **engine,
            },
            "transfer": transfer,
        }
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "engine_process.py"), json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd="/",  # not the source tree
                start_new_session=True,
                env={
                    **os.environ,
                    "VLLM_CPU_KVCACHE_SPACE": "1",
                    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                    "VLLM_WORKER_MULTIPROC_METHOD": "fork",
                    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
                    "VLLM_NO_USAGE_STATS": "1",
                    "OMP_NUM_THREADS": "1",
                },
            )
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._done: dict[str, dict[str, Any]] = {}
        self._count = 0
        threading.Thread(target=self._read, daemon=True).start()

    def wait_ready(self) -> None:
        self._take("ready", STARTED)

    def start(self, prompt: list[int], count: int, params: dict[str, Any] | None = None) -> str:
        """Starts a request, and returns its id."""
        self._count += 1
        name = f"r{self._count}"
        self._tell(generate=name, prompt=prompt, count=count, params=params)
        return name

    def result(self, name: str, seconds: float = DEADLINE) -> dict[str, Any]:
        """What a request has answered: tokens, params, reason, cached."""
        while name not in self._done:
            found = self._take("done", seconds)
            self._done[found["done"]] = found
        return self._done.pop(name)

    def generate(self, prompt: list[int], count: int, params: dict[str, Any] | None = None) -> dict[str, Any]:
        return self.result(self.start(prompt, count, params))

    def prefill(self, prompt: list[int]) -> dict[str, Any]:
        """The kv_transfer_params of a prompt that is computed here and decoded elsewhere."""
        params: dict[str, Any] = self.generate(prompt, 1, {"do_remote_decode": True})["params"]
        del params["remote_prefill_cached_tokens"]  # the decode engine would report them as its own
        return params

    def push(self, prompt: list[int], count: int, prefill: Engine, transfer: str) -> tuple[str, str]:
        """Starts a request here and at a prefill engine at once, as a proxy does for layered push. Returns both ids, ours first."""
        here = {"do_remote_prefill": True, "transfer_id": transfer, "remote_host": "127.0.0.1", "remote_port": prefill.port}
        mine = self.start(prompt, count, {**here, "tp_size": prefill.tp_size, "pp_size": prefill.pp_size})
        return mine, prefill.start(prompt, 1, {"do_remote_decode": True, "transfer_id": transfer})

    def pushed(self, prompt: list[int], count: int, prefill: Engine, transfer: str) -> dict[str, Any]:
        """What a request answers whose prompt a prefill engine has pushed."""
        mine, theirs = self.push(prompt, count, prefill, transfer)
        prefill.result(theirs)
        return self.result(mine)

    def abort(self, name: str) -> None:
        self._tell(abort=name)

    def zero(self, block: int) -> None:
        self._tell(zero=block)
        self._take("zeroed", DEADLINE)

    def idle(self, seconds: float = 20.0) -> bool:
        """Whether all blocks have become free within so many seconds. The prefix cache is then empty."""
        self._tell(idle=seconds)
        return bool(self._take("idle", seconds + DEADLINE)["idle"])

    def backends(self) -> list[dict[str, str]]:
        """torch's backends of the groups of each worker."""
        self._tell(backends=True)
        found: list[dict[str, str]] = self._take("backends", DEADLINE)["backends"]
        return found

    def preemptions(self) -> int:
        """Requests that have lost their blocks so far. Of an engine with ``disable_log_stats=False``."""
        self._tell(preemptions=True)
        return int(self._take("preempted", DEADLINE)["preempted"])

    def call(self, method: str, *arguments: Any, seconds: float = DEADLINE) -> str:
        """Calls a method of vllm.LLM. What it has raised, or an empty text."""
        self._tell(call=method, **{"with": arguments})
        return str(self._take("called", seconds)["error"])

    def counters(self) -> list[dict[str, float]]:
        """Of each worker's weight-transfer engine."""
        self._tell(counters=True)
        found: list[dict[str, float]] = self._take("counters", DEADLINE)["counters"]
        return found

    def kill_in_pull(self, pid: int, after: int, worker: int = 0) -> None:
        """Kills a process when a worker has read so many tasks of 64 KiB. Before the sources of the pull are given."""
        self._tell(kill=pid, after=after, worker=worker)
        self._take("armed", DEADLINE)

    def fail_load(self, worker: int) -> None:
        """Lets a worker run out of memory in the middle of the next weights that it loads."""
        self._tell(fail_load=worker)
        self._take("armed", DEADLINE)

    def kill(self) -> None:
        """Kills all of its processes, and waits."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def _tell(self, **what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def _take(self, what: str, seconds: float) -> dict[str, Any]:
        """The next answer of a kind; those of requests are kept."""
        until = time.monotonic() + seconds
        while True:
            try:
                found = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"the engine has not answered {what!r} within {seconds} s\n{self._stacks()}") from None
            if found is None:
                raise AssertionError(f"the engine has ended\n{self.text()[-6000:]}")
            if what in found:
                return found
            self._done[found["done"]] = found

    def _stacks(self) -> str:
        """The stacks of all its processes, from the log."""
        for process in [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]:
            process.send_signal(signal.SIGUSR1)
        time.sleep(2)
        return self.text()[-12000:]


def random_prompt(seed: int, tokens: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(1024) for _ in range(tokens)]


def transfer(role: str, port: int, **more: Any) -> dict[str, Any]:
    """Arguments of KVTransferConfig."""
    return {
        "kv_connector": "HMCConnector",
        "kv_connector_module_path": "hmc.integrations.vllm",
        "kv_role": role,
        "kv_port": port,
        "kv_load_failure_policy": "recompute",
        **more,
    }
