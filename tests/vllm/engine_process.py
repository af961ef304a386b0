"""A vLLM engine in a process of its own. Reads commands from stdin, a line of JSON each; answers on its first stdout.

Usage: engine_process.py OPTIONS, where OPTIONS is a JSON object: "engine" are arguments of vllm.LLM, "transfer" are those of
KVTransferConfig. Commands:
    {"generate": id, "prompt": tokens, "count": n, "params": kv_transfer_params}   answers {"done": id, "tokens", "params", ...}
    {"abort": id}               answers nothing
    {"zero": block}             fills a block of every layer's cache with zeros
    {"idle": seconds}           waits until no request has blocks: {"idle": whether}
    {"backends": true}          answers torch's backends of the groups of each worker: {"backends": [{"pp": name, ...}, ...]}
    {"preemptions": true}       answers {"preempted": how many requests have lost their blocks}
    {"call": name, "with": [arguments]}   calls a method of vllm.LLM: {"called": name, "error": text, or "" where it returned}
    {"counters": true}          answers the counters of each worker's weight-transfer engine: {"counters": [{name: number}, ...]}
    {"kill": pid, "after": n, "worker": w}   kills a process once, when worker w has read n tasks of weights: {"armed": pid}
    {"fail_load": w}            lets worker w fail the next time that it loads weights: {"armed": w}
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import signal
import sys
import threading
import time
from typing import Any

STARTED = 240  # seconds until vLLM has to run
# The logs of vLLM, of its children too, go to stderr; the answers to what was stdout.
ANSWERS = os.dup(1)
os.dup2(2, 1)


def say(**what: Any) -> None:
    """Answers a line."""
    os.write(ANSWERS, (json.dumps(what) + "\n").encode())


def zero_block(worker: Any, block: int) -> None:
    """Runs in each worker."""
    for cache in worker.model_runner.kv_caches:
        cache[block].zero_()


def backends(worker: Any) -> dict[str, str]:
    """Runs in each worker."""
    import torch.distributed as dist
    from vllm.distributed import parallel_state

    groups = {"pp": parallel_state.get_pp_group(), "tp": parallel_state.get_tp_group(), "world": parallel_state.get_world_group()}
    found = {name: dist.get_backend(group.device_group) for name, group in groups.items()}
    return {**found, "pp metadata": dist.get_backend(groups["pp"].cpu_group)}


def counters(worker: Any) -> dict[str, float]:
    """Runs in each worker."""
    found: dict[str, float] = worker.weight_transfer_engine.counters()
    return found


def kill_in_pull(worker: Any, pid: int, tasks: int, number: int) -> None:
    """Runs in each worker. Lets pulls that are planned from now on have small tasks, and kills a process in the middle of one."""
    import os
    import signal
    import time

    import psutil

    from hmc.weights import _cells, _pull

    _cells.TASK_BYTES = 1 << 16
    real_land, count = _pull.Worker._land, [0]
    if worker.rank != number:
        return

    def land(self: Any, *given: Any) -> None:
        real_land(self, *given)
        count[0] += 1
        if count[0] == tasks:
            _pull.Worker._land = real_land
            os.kill(pid, signal.SIGKILL)
            while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)

    _pull.Worker._land = land


def fail_load(worker: Any, number: int) -> None:
    """Runs in each worker. The next time that worker loads weights, it fails behind the first half of them."""
    if worker.rank != number:
        return
    model, calls = worker.get_model(), []
    real = model.load_weights

    def load_weights(tensors: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            return real(tensors)
        found = list(tensors)
        real(found[: len(found) // 2])
        raise MemoryError("no memory for a test")

    model.load_weights = load_weights


class Engine:
    """The commands."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.engine = llm.llm_engine
        self.inner: dict[str, str] = {}

    def generate(self, command: dict[str, Any]) -> None:
        from vllm import SamplingParams

        params = command.get("params")
        sampling = SamplingParams(
            temperature=0,
            max_tokens=command["count"],
            ignore_eos=True,
            detokenize=False,
            extra_args={"kv_transfer_params": params} if params else None,
        )
        self.engine.add_request(command["generate"], {"prompt_token_ids": command["prompt"]}, sampling)

    def idle(self, seconds: float) -> bool:
        """Whether all blocks have become free within so many seconds."""
        until = time.monotonic() + seconds
        while not self.engine.reset_prefix_cache():
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

    def step(self) -> None:
        for output in self.engine.step():
            if output.finished:
                found = output.outputs[0]
                say(
                    done=output.request_id,
                    tokens=list(found.token_ids),
                    reason=found.finish_reason,
                    params=output.kv_transfer_params,
                    cached=output.num_cached_tokens,
                )

    def take(self, command: dict[str, Any]) -> None:
        if "generate" in command:
            self.generate(command)
        elif "abort" in command:
            self.engine.abort_request([command["abort"]])
        elif "zero" in command:
            self.llm.collective_rpc(zero_block, args=(command["zero"],))
            say(zeroed=command["zero"])
        elif "idle" in command:
            say(idle=self.idle(command["idle"]))
        elif "backends" in command:
            say(backends=self.llm.collective_rpc(backends))
        elif "preemptions" in command:
            say(preempted=sum(one.value for one in self.llm.get_metrics() if one.name == "vllm:num_preemptions"))
        elif "call" in command:
            say(called=command["call"], error=self.call(command["call"], command["with"]))
        elif "counters" in command:
            say(counters=self.llm.collective_rpc(counters))
        elif "kill" in command:
            self.llm.collective_rpc(kill_in_pull, args=(command["kill"], command["after"], command["worker"]))
            say(armed=command["kill"])
        elif "fail_load" in command:
            self.llm.collective_rpc(fail_load, args=(command["fail_load"],))
            say(armed=command["fail_load"])
        else:
            raise ValueError(f"no such command: {command}")

    def call(self, name: str, arguments: list[Any]) -> str:
        """What a method has raised."""
        try:
            getattr(self.llm, name)(*arguments)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""


def main() -> None:
    """Serves until stdin ends."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    faulthandler.dump_traceback_later(STARTED, exit=True)
    options = json.loads(sys.argv[1])
    from vllm import LLM
    from vllm.config import KVTransferConfig

    transfer = options.get("transfer")
    llm = LLM(**options["engine"], kv_transfer_config=KVTransferConfig(**transfer) if transfer else None)
    faulthandler.cancel_dump_traceback_later()
    engine = Engine(llm)
    commands: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            commands.put(json.loads(line))
        commands.put(None)

    threading.Thread(target=read, daemon=True).start()
    say(ready=True)
    while True:
        busy = engine.engine.has_unfinished_requests()
        try:
            command = commands.get(timeout=0.001 if busy else None)
        except queue.Empty:
            pass
        else:
            if command is None:
                break
            engine.take(command)
            continue
        engine.step()


if __name__ == "__main__":
    main()
