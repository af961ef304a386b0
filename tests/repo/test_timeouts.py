"""Every public call that may wait takes a timeout: `timeout=` in Python, a Deadline in C++. The others are listed with a reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "hmc" / "_core.pyi"
HEADERS = ROOT / "cpp" / "include" / "hmc"
TALKING = {"CompletionQueue", "Communicator", "ConnBuffer", "Context", "Member", "Peer", "RemoteBuffer", "Work"}

LOCAL = "looks at this process alone"
POSTS = "returns a Work at once, which is waited for, awaited or cancelled"
HARDWARE = "allocates, registers or copies here; no peer is asked"
EXCEPTIONS = {
    **dict.fromkeys(("put", "get", "put_blocks", "get_blocks", "prepare_blocks"), POSTS),
    **dict.fromkeys(
        ("isend", "irecv", "iall_to_all", "iall_to_all_v", "iall_reduce", "ireduce_scatter", "ireduce_scatter_v"), POSTS
    ),
    **dict.fromkeys(("ireduce", "iall_gather", "iall_gather_v", "ibroadcast", "igather", "igather_v"), POSTS),
    **dict.fromkeys(("iscatter", "iscatter_v"), POSTS),
    **dict.fromkeys(
        ("buffer", "register", "register_memory", "numpy", "native", "connect_native", "slice", "descriptor"), HARDWARE
    ),
    **dict.fromkeys(
        (
            "publish",
            "unpublish",
            "progress",
            "counters",
            "peers",
            "parse",
            "self",
            "device",
            "local",
            "memory",
            "loadable",
            "storable",
        ),
        LOCAL,
    ),
    "subgroup": "joins the group here; sends nothing",
    "invite": "draws a ticket here; sends nothing",
    **dict.fromkeys(("status", "error", "info", "add_done_callback", "then", "watch", "drain", "fileno", "take"), LOCAL),
    **dict.fromkeys(("generate_job_key", "list_settings", "detect_launch", "plan", "islands"), LOCAL),
    "create": "starts this Context or queue; no peer is asked",
    "cancel": "stops the operation under the engine lock, or refuses",
    "withdraw": "stops the operation under the engine lock, or refuses",
    "join": "makes a stream wait, not the caller",
    "abort": "ends collectives here, and notifies the others in the background",
    "fence": "orders what is posted afterwards; does not wait",
    "init": "InitOptions::timeout_seconds, `timeout=` in Python",
}
# Peer.close() posts the goodbye.
EXCEPTIONS_OF = {("Peer", "close"): "posts the goodbye; does not wait for it"}
# In Python the block of a with statement runs the batch, so batch() has the timeout there.
EXCEPTIONS_OF_CPP = {(owner, "batch"): "Batch::run takes the Deadline" for owner in ("Member", "Communicator")}


def stub_calls() -> list[tuple[str, str, list[str]]]:
    """(class, method, parameters) of every public method; properties and special methods do not wait."""
    found = []
    for node in ast.parse(STUB.read_text()).body:
        if not isinstance(node, ast.ClassDef) or node.name not in TALKING:
            continue
        for item in node.body:
            if not isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) or item.name.startswith("_"):
                continue
            if any(isinstance(d, ast.Name) and d.id == "property" for d in item.decorator_list):
                continue
            found.append((node.name, item.name, [a.arg for a in item.args.args + item.args.kwonlyargs]))
    return found


# Classes of the Python packages above the core, by file. Their pushes and pulls are Works, which wait() with a timeout.
CLASSES = {
    "kv/_pool.py": "Pool",
    "kv/_push.py": "Push",
    "kv/_receive.py": "Inbox",
    "kv/_leases.py": "Lease",
    "weights/_plan.py": "Plan",
    "weights/_publish.py": "Publication",
    "experts/_buffer.py": "Buffer",
    "_threaded.py": "ThreadedWork",
}
WITHOUT_TIMEOUT = {
    ("Pool", "push"): POSTS,
    ("Pool", "migrate"): POSTS,
    ("Pool", "pull"): POSTS,
    ("Pool", "remote"): "for the pool's parts: ten seconds",
    ("Plan", "commit"): "copies from memory to memory",
    ("Plan", "move"): LOCAL,
    ("Plan", "excerpt"): LOCAL,
    ("Plan", "leave_shadow"): LOCAL,
    ("Plan", "pulled"): LOCAL,
    ("Publication", "update"): "refuses while another one runs",
    ("Publication", "check_open"): LOCAL,
    **{("Buffer", name): LOCAL for name in ("experts_of", "counters")},
    **{("Pool", name): LOCAL for name in ("allocate", "free", "lease", "counters")},
    **{("Lease", name): LOCAL for name in ("renew", "release")},
    **{(owner, name): LOCAL for owner in ("Push", "Inbox", "ThreadedWork") for name in ("cancel", "error")},
}


def package_calls() -> list[tuple[str, str, list[str]]]:
    """As stub_calls()."""
    found = []
    for file, owner in CLASSES.items():
        tree = ast.parse((STUB.parent / file).read_text())
        (definition,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner]
        for item in definition.body:
            if not isinstance(item, ast.FunctionDef) or item.name.startswith("_"):
                continue
            if not any(isinstance(d, ast.Name) and d.id == "property" for d in item.decorator_list):
                found.append((owner, item.name, [a.arg for a in item.args.args + item.args.kwonlyargs]))
    return found


@pytest.mark.parametrize(("owner", "name", "parameters"), [pytest.param(*one, id=f"{one[0]}.{one[1]}") for one in package_calls()])
def test_calls_of_the_packages_that_wait_take_a_timeout(owner: str, name: str, parameters: list[str]) -> None:
    assert ("timeout" in parameters) != ((owner, name) in WITHOUT_TIMEOUT), f"{owner}.{name}"


DECLARATION = re.compile(r"(?:Status|Result<[^;()]*>)\s+(\w+)\(([^;{]*)\)\s*(?:const)?\s*(?:noexcept)?\s*[;{]")


def header_calls() -> list[tuple[str, str, str]]:
    """(class, function, parameters) of every public function that can fail."""
    found = []
    for name in ("buffer.h", "communicator.h", "completion_queue.h", "context.h", "peer.h", "work.h"):
        text = re.sub(r"//[^\n]*", "", (HEADERS / name).read_text())
        classes = [(m.start(), m.group(1)) for m in re.finditer(r"^class (?:HMC_API )?(\w+)", text, re.MULTILINE)]
        for match in DECLARATION.finditer(text):
            owner = [cls for start, cls in classes if start < match.start()]
            found.append((owner[-1] if owner else "", match.group(1), match.group(2)))
    return found


@pytest.mark.parametrize(("owner", "name", "parameters"), [pytest.param(*one, id=f"{one[0]}.{one[1]}") for one in stub_calls()])
def test_python_calls_that_wait_take_a_timeout(owner: str, name: str, parameters: list[str]) -> None:
    excepted = name in EXCEPTIONS or (owner, name) in EXCEPTIONS_OF
    assert ("timeout" in parameters) != excepted, f"{owner}.{name}: give it timeout=, or say in EXCEPTIONS why it does not wait"


@pytest.mark.parametrize(("owner", "name", "parameters"), [pytest.param(*one, id=f"{one[0]}::{one[1]}") for one in header_calls()])
def test_cpp_calls_that_wait_take_a_deadline(owner: str, name: str, parameters: str) -> None:
    excepted = name in EXCEPTIONS or (owner, name) in EXCEPTIONS_OF | EXCEPTIONS_OF_CPP
    assert ("Deadline" in parameters) != excepted, f"{owner}::{name}: give it a Deadline, or say in EXCEPTIONS why it does not wait"


def test_the_walk_finds_the_api() -> None:
    assert len(stub_calls()) > 80
    assert {("Peer", "wait_notify"), ("Context", "accept"), ("Work", "wait")} <= {(owner, name) for owner, name, _ in stub_calls()}
    assert {("Peer", "notify"), ("Context", "iaccept"), ("Member", "ibarrier")} <= {
        (owner, name) for owner, name, _ in header_calls()
    }
    assert all(EXCEPTIONS.values())
