"""The ``hmc`` command: info, topo, doctor, keygen, run, plan, demo, bench."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hmc.cli.devices import vendor_list
from hmc.cli.options import count, picture, size, writable_file
from hmc.cli.plan import island_list, rate, rate_list, seconds
from hmc.testing import VENDORS

__all__ = ["main"]


def _package_folder(*parts: str) -> str:
    return str(Path(__file__).resolve().parent.parent.joinpath(*parts))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hmc",
        description="HMC moves bytes between any two memories of a mixed cluster.",
        epilog="Run `hmc COMMAND --help` for the options of a command.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("--includedir", action="store_true", help="print the folder of the C++ headers and exit")
    parser.add_argument("--cmakedir", action="store_true", help="print the folder of the CMake package and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    simulate: dict[str, Any] = {
        "type": vendor_list,
        "default": [],
        "metavar": "VENDORS",
        "help": f"simulated devices in place of these vendors' own, comma-separated: {', '.join(VENDORS)}",
    }

    as_json: dict[str, Any] = {
        "type": writable_file,
        "nargs": "?",
        "const": "-",
        "default": "",
        "metavar": "FILE",
        "help": "write the results as JSON: to FILE, or in place of the text where FILE is - or not given",
    }

    info = commands.add_parser("info", help="devices, transports and settings, each with a reason when absent")
    info.add_argument("--json", **as_json)

    topo = commands.add_parser("topo", help="cards, what joins them, and the path chosen for every pair")
    topo.add_argument("--devices", default="", help="cards to ask, e.g. 'cuda:0,cuda:1,cpu'; default: all of this host")
    topo.add_argument("--simulate", **simulate)
    topo.add_argument("--file", default="", help="show this written topology; no card is asked")
    topo.add_argument(
        "--save",
        type=writable_file,
        default="",
        metavar="FILE",
        help="write the topology, for hmc.Topology.load; - prints it in place of the text",
    )
    topo.add_argument(
        "--picture", type=picture, default="", metavar="FILE", help="draw hosts, cards, links and paths (.png or .svg)"
    )
    topo.add_argument("--json", **as_json)

    doctor = commands.add_parser("doctor", help="check this machine and say how to fix what is wrong")
    doctor.add_argument("--json", **as_json)
    doctor.add_argument("--vllm", action="store_true", help="check vLLM too: version, connector, layouts of its caches on this CPU")

    commands.add_parser("keygen", help="print a fresh job key (for HMC_JOB_KEY or key=)")

    run = commands.add_parser("run", help="start N processes of a script as one job")
    run.add_argument("-n", "--processes", type=count(1), default=2, metavar="N", help="processes on this host (default 2)")
    run.add_argument("--nodes", type=count(1), default=1, help="hosts in the job (default 1)")
    run.add_argument("--node-rank", type=count(0), default=0, help="this host's number, 0 to nodes - 1 (default 0)")
    run.add_argument("--rendezvous", default="", help="tcp://HOST:PORT where process 0 listens; needed with --nodes > 1")
    run.add_argument("--simulate", **simulate)
    run.add_argument("--no-prefix", action="store_true", help="do not put [rank] before each line of output")
    run.add_argument(
        "--grace", type=seconds, default=5.0, help="seconds the others get when one process fails, or such as 500ms (default 5)"
    )
    run.add_argument("-m", nargs=argparse.REMAINDER, dest="module", metavar="MODULE ...", help="run a module, with its arguments")
    run.add_argument("script", nargs="?", default="", help="a Python file or a program")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script gets")

    plan = commands.add_parser("plan", help="how a collective would be carried out and how long it should take, without a job")
    plan.add_argument("call", nargs="?", default="all_reduce", metavar="CALL", help="all_reduce (default), broadcast, barrier, ...")
    plan.add_argument("--bytes", type=size, help="of the largest array of a rank, with K, M, G (default 1G)")
    plan.add_argument("--ranks", type=count(1, 256), help="ranks, all alike (default 8, at most 256)")
    plan.add_argument("--latency", type=seconds, default=1e-5, help="of a message one way (default 10us)")
    plan.add_argument("--bandwidth", type=rate, help="of a link, bytes per second with K, M, G (default 50G)")
    plan.add_argument("--injection", type=rate, help="of all links of a rank together (default: that of a link)")
    plan.add_argument("--algorithm", help="one that the call can be carried out by, as a plan lists them (default: HMC chooses)")
    plan.add_argument("--exact", action="store_true", help="sums that are rounded once, in any order of the ranks")
    plan.add_argument("--reduction", type=rate, help="bytes of inputs per second that a rank reduces (default 10G)")
    plan.add_argument(
        "--islands", type=island_list, default=[], metavar="LIST", help="the call over islands of cards, such as 8xH200,8xMI325X"
    )
    plan.add_argument(
        "--border", type=rate_list, default=[], metavar="LIST", help="rates of each island's links to the others, in place of NICs"
    )
    plan.add_argument("--even", action="store_true", help="also the time of equal shares for all islands and border links")
    plan.add_argument(
        "--export",
        nargs=2,
        default=[],
        metavar=("FORMAT", "PATH"),
        help="also write the schedule: chakra (traces PATH.0.et, ...; requires protobuf) or msccl (XML)",
    )
    plan.add_argument("--json", **as_json)

    demo = commands.add_parser("demo", help="the main job on real work: KV cache, activations, experts, every byte checked")
    demo.add_argument(
        "--ranks",
        type=count(2),
        help="processes, each in the role of a card (at least 2; default 4, or 2 to --train on few cores)",
    )
    demo.add_argument("--tokens", type=count(16), help="prompt length per prefill card (default 1024: 128 MiB of KV cache)")
    other = demo.add_mutually_exclusive_group()
    other.add_argument("--train", action="store_true", help="train a model on two islands of different vendor and speed instead")
    other.add_argument(
        "--serve", action="store_true", help="prefill on two ranks, decode with another KV cache, one engine killed; no picture"
    )
    demo.add_argument("--quick", action="store_true", help="a small prompt (128 tokens), or few steps: seconds on a laptop")
    demo.add_argument("--devices", default="", help="memory of the ranks, cycling, e.g. 'cuda:0,cpu'; default: accelerators")
    demo.add_argument("--simulate", **simulate)
    demo.add_argument("--transports", default="", help="as HMC_TRANSPORTS: shm, tcp, ^shm, ...")
    demo.add_argument("--picture", type=picture, help="where the picture goes, .png or .svg (default hmc-demo.png); '' for none")
    demo.add_argument("--json", **as_json)

    bench = commands.add_parser("bench", help="speed of this machine, against memcpy and a raw shared flag in the same run")
    bench.add_argument(
        "--operations", default="send,put,get,blocks", help="comma-separated: send, put, get, stream, rate, blocks, alltoall"
    )
    bench.add_argument(
        "--ranks", type=count(2), default=2, help="processes for alltoall; the other operations take two (default 2)"
    )
    bench.add_argument("--sizes", default="", help="comma-separated bytes, with K, M, G; default 8 to 256M")
    bench.add_argument("--devices", default="", help="memory of each rank, e.g. 'cuda:0,cuda:1' or 'cuda:0,cpu'; default: cpu")
    bench.add_argument("--simulate", **simulate)
    bench.add_argument("--transports", default="", help="one run per entry, e.g. 'shm,tcp'; default: the best path")
    bench.add_argument("--blocks", help="block counts and sizes for `blocks`, e.g. 4096x16K,16384x4K (default 4096x16K)")
    bench.add_argument("--repeat", type=count(1), default=5, help="samples per point, the median is reported (default 5)")
    bench.add_argument("--json", **as_json)
    bench.add_argument("--plot", type=picture, default="", metavar="FILE", help="draw bandwidth and latency (.png or .svg)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line. Returns the exit status: 0 success, 1 a check or a process failed, 2 wrong usage."""
    # Closed by the caller (`hmc info >&-`).
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a caller may have put another one there
            stream.reconfigure(errors="backslashreplace")
    command, status = "hmc", 0
    try:
        try:
            parser = _parser()
            options = parser.parse_args(argv)
            command = f"hmc {options.command}" if options.command else "hmc"
            status = _dispatch(options, parser)
        finally:  # also of --help, which exits
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has gone. What is still buffered would raise again when the interpreter flushes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return status or 1
    except OSError as error:  # a file that cannot be read or written
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):  # as above
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"{command}: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", file=sys.stderr)
        return status or 2


def _dispatch(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if options.version:
        from hmc import __version__

        print(__version__)
        return 0
    if options.includedir:
        print(_package_folder("include"))
        return 0
    if options.cmakedir:
        print(_package_folder("lib", "cmake", "hmc"))
        return 0
    if options.command is None:
        parser.print_help()
        return 2
    if options.command == "info":
        from hmc.cli.info import show_info

        return show_info(options.json)
    if options.command == "topo":
        from hmc.topo import run_topo

        return run_topo(options)
    if options.command == "doctor":
        from hmc.cli.doctor import examine

        return examine(options.json, options.vllm)
    if options.command == "keygen":
        from hmc import keygen

        print(keygen())
        return 0
    if options.command == "run":
        from hmc.cli.run import run_command

        return run_command(options)
    if options.command == "plan":
        from hmc.cli.plan import run_plan

        return run_plan(options)
    if options.command == "demo":
        if options.train:
            from hmc.demo.train import run_training

            return run_training(options)
        if options.serve:
            from hmc.demo.serve import run_serving

            return run_serving(options)
        from hmc.demo import run_demo

        return run_demo(options)
    from hmc.bench import run_bench

    return run_bench(options)


if __name__ == "__main__":
    sys.exit(main())
