"""The interpreter's end while other threads and callbacks use HMC; objects, interpreters and processes that were never set up."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

REPEATS = int(os.environ.get("HMC_TEST_REPEATS", "4"))

PRELUDE = """
import faulthandler, os, sys, threading, time
faulthandler.dump_traceback_later(50, exit=True)
import numpy as np
import hmc

def daemon(function, *args):
    threading.Thread(target=function, args=args, daemon=True).start()

def pair(**settings):
    global a, b, ab, ba
    a, b = hmc.Context(transports="shm", **settings), hmc.Context(transports="shm")
    ab = a.connect(b.addresses[0], timeout=20)
    ba = b.accept(timeout=20)
"""

# What each does when its main thread ends. Every one printed "ready" and must exit with status 0 and nothing on stderr.
ENDINGS = {
    "recv": "pair(); daemon(lambda: ab.recv(np.zeros(8)))",
    "recv of many threads": "pair()\nfor tag in range(8): daemon(lambda tag=tag: ab.recv(np.zeros(8), tag=tag))",
    "accept": "pair(); daemon(a.accept)",
    "lookup": "pair(); daemon(lambda: ab.lookup('never'))",
    "wait": "pair(); work = ab.irecv(np.zeros(8)); daemon(work.wait)",
    "wait_all": "pair(); work = ab.irecv(np.zeros(8)); daemon(lambda: hmc.wait_all([work]))",
    "wait_notify": "pair(); daemon(lambda: ab.wait_notify(3))",
    "notifications": "pair(); daemon(lambda: ab.notifications(timeout=None))",
    "errors": """
comm = hmc.init(0, 1)
def loop():
    while True:
        for call in (lambda: comm.send(np.zeros(1), 99), lambda: comm.peer(99)):
            try: call()
            except hmc.InvalidArgumentError: pass
daemon(loop); daemon(loop)
""",
    "barrier of one": "comm = hmc.init(0, 1)\ndef loop():\n  while True: comm.barrier()\ndaemon(loop)",
    "send loop": """
pair()
def send():
    data = np.zeros(100_000)
    while True: ab.send(data)
def recv():
    data = np.zeros(100_000)
    while True: ba.recv(data)
daemon(send); daemon(recv)
""",
    "small send loop": """
pair()
def send():
    data = np.zeros(1)
    while True: ab.send(data)
def recv():
    data = np.zeros(1)
    while True: ba.recv(data)
daemon(send); daemon(recv)
""",
    "isend loop": """
pair()
def send():
    while True: hmc.wait_all([ab.isend(np.zeros(1000)) for _ in range(16)])
def recv():
    while True: hmc.wait_all([ba.irecv(np.zeros(1000)) for _ in range(16)])
daemon(send); daemon(recv)
""",
    "arrays whose protocol is Python code": """
pair()
class Array:
    def __init__(self): self.array = np.zeros(1000)
    def __dlpack__(self, **settings): return [self.array.__dlpack__() for _ in range(20)][-1]
    def __dlpack_device__(self): return (1, 0)
def send():
    while True: ab.isend(Array()).wait()
def recv():
    data = np.zeros(1000)
    while True: ba.recv(data)
daemon(send); daemon(recv)
""",
    "memory made and freed": "def loop():\n  while True: hmc.Memory(4 << 20)\ndaemon(loop); time.sleep(0.1)",
    "a DLPack tensor that C frees after the interpreter": """
import ctypes
memory = hmc.Memory(1 << 20)
capsule = memory.__dlpack__()
python, c = ctypes.pythonapi, ctypes.CDLL(None)
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
tensor = python.PyCapsule_GetPointer(capsule, b"dltensor")
used = ctypes.c_char_p(b"used_dltensor")
python.PyCapsule_SetName(capsule, used)
python.Py_IncRef(ctypes.py_object(used))
deleter = ctypes.c_void_p.from_address(tensor + 56)
c.__cxa_atexit.argtypes = [ctypes.c_void_p] * 3
assert c.__cxa_atexit(deleter, tensor, None) == 0
""",
    "a kernel that is being compiled": """
import hmc.testing
os.environ.update(hmc.testing.environment(), HMC_SIM_DELAY_US="400000")
source, target = hmc.Memory(1 << 16, "rocm:0"), hmc.Memory(1 << 16, "rocm:0")
daemon(lambda: target.copy_blocks_from(source, [0, 4096], [8192, 0], 4096))
""",
    "global context with on_left": "pair(on_joined=lambda peer: None, on_left=lambda peer, error: None)",
    "global context whose peer left": "pair(on_left=lambda peer, error: None); b.close(); del b, ba",
    "callbacks still queued": """
pair()
data = np.zeros(10)
works = []
for tag in range(300):
    work = ab.irecv(np.zeros(10), tag=tag)
    work.add_done_callback(lambda work: sum(range(2000)))
    works.append(work)
for tag in range(300): ba.send(data, tag=tag)
""",
    "a callback that runs": """
pair()
work = ab.irecv(np.zeros(1))
work.add_done_callback(lambda work: time.sleep(0.3))
ba.send(np.zeros(1))
""",
    "callbacks of works that never complete": """
pair()
work = ab.irecv(np.zeros(1))
work.add_done_callback(lambda work: None)
""",
}


@pytest.mark.parametrize("name", ENDINGS)
def test_interpreter_ends_cleanly_during(name: str) -> None:
    script = PRELUDE + ENDINGS[name] + "\ntime.sleep(0.05)\nprint('ready', flush=True)\n"
    for _ in range(0, REPEATS, 4):
        running = [
            subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")
            for _ in range(4)
        ]
        ends = [(*process.communicate(timeout=100), process.returncode) for process in running]
        assert all(end == ("ready\n", "", 0) for end in ends), ends


def run(script: str) -> str:
    result = subprocess.run([sys.executable, "-c", PRELUDE + script], capture_output=True, text=True, timeout=100, cwd="/")
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_objects_without_init_raise() -> None:
    out = run("""
checked = 0
for cls in vars(hmc._core).values():
    if not isinstance(cls, type) or cls is hmc.MessageInfo:
        continue
    if issubclass(cls, hmc.Work):
        for make in (cls, lambda: cls.__new__(cls), lambda: object.__new__(cls), type("Derived", (cls,), {})):
            try:
                made = make()
            except TypeError:
                checked += 1
            else:
                raise SystemExit(f"{cls.__name__} made a {made!r}")
        continue
    made = cls.__new__(cls)
    protocols = ("__len__", "__getitem__", "__bytes__", "__exit__", "__dlpack__", "__dlpack_device__", "__cuda_array_interface__")
    for name in dir(cls):
        if isinstance(vars(cls).get(name), staticmethod) or name.endswith("_async"):  # without the object, or later
            continue
        if name.startswith("_") and name not in protocols:
            continue
        for arguments in ((), (1,), (np.zeros(1),), (np.zeros(1), 1), (1, 1), ("a",), (made,), (slice(0, 1),)):
            try:
                value = getattr(made, name)
                if not callable(value):
                    raise SystemExit(f"{cls.__name__}.{name} is {value!r}")
                value(*arguments)
            except Exception:
                checked += 1
            else:
                raise SystemExit(f"{cls.__name__}.{name}{arguments} did not raise")
    for call in (hmc.Memory.from_array, hmc.Context().register, lambda made: hmc.wait_all([made])):
        try:
            call(made)
        except (TypeError, ValueError):
            checked += 1
    del made
assert checked > 300, checked
print("ok")
""")
    assert out == "ok\n"


def test_a_call_on_an_object_of_two_classes_is_on_its_own() -> None:
    out = run("""
class Both(hmc.Topology, hmc.Communicator): pass
made = Both.__new__(Both)
hmc.Topology.__init__(made)
for host in range(4): made.add_card(f"a host with a long name {host}", "cpu")
for call in (made.barrier, lambda: made.send(np.zeros(1), 0), lambda: made.all_reduce(np.zeros(1)), lambda: made.wait_notify(0, 1)):
    try:
        call()
    except TypeError as error:
        assert "not initialised" in str(error), error
    else:
        raise SystemExit("a call on nothing returned")
print("ok")
""")
    assert out == "ok\n"


def test_objects_can_neither_be_pickled_nor_copied() -> None:
    out = run("""
import copy, pickle
comm = hmc.init(0, 1)
topology = hmc.Topology()
topology.add_card("host", "cpu")
objects = (comm, comm.local[0], comm.context, comm.peer(0), hmc.Memory(8), comm.buffer(8), topology, topology.cards[0],
           comm.path(0), comm.batch(), comm.irecv(np.zeros(1), 0), hmc.CompletionQueue())
for one in objects:
    calls = [lambda protocol=protocol: pickle.dumps(one, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for call in (*calls, lambda: copy.copy(one), lambda: copy.deepcopy(one)):
        try:
            raise SystemExit(repr(call()))
        except TypeError as error:
            assert type(one).__name__ in str(error), error
class Named(hmc.Memory):
    def __reduce__(self): return Named, (self.nbytes,)
assert pickle.loads(pickle.dumps(Named(5))).nbytes == 5
print("ok")
""")
    assert out == "ok\n"


SUBINTERPRETER = """
try:
    import _interpreters as interpreters
    made = interpreters.create("legacy")
except ImportError:
    import _xxsubinterpreters as interpreters
    made = interpreters.create(isolated=False)
interpreters.run_string(made, '''
try:
    import hmc
except ImportError as error:
    assert "main interpreter" in str(error), error
    print("refused", flush=True)
''')
"""


def test_a_subinterpreter_raises_import_error() -> None:
    # Once where the main interpreter has imported hmc, once where it has not.
    assert run(SUBINTERPRETER) == "refused\n"
    script = "import faulthandler; faulthandler.dump_traceback_later(50, exit=True)\n" + SUBINTERPRETER
    alone = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, cwd="/")
    assert (alone.stdout, alone.returncode) == ("refused\n", 0), alone.stderr


# Every public method and function on objects of the parent. What has no meaning without the parent's Context raises ClosedError.
FORKED = """
pair()
comm = hmc.init(0, 1)
member = comm.local[0]
local, target = a.buffer(100), b.buffer(100)
b.publish("x", target)
remote = ab.lookup("x", timeout=20)
batch = ab.prepare_blocks([(local, [0], remote, [0])], block=10)
work = ab.irecv(np.zeros(1))
done = ab.put(local, remote); done.wait(20)
mine = comm.exchange(comm.buffer(10))
x = np.zeros(10, np.uint8)
one = comm.buffer(10)
calls = {
    "connect": lambda: a.connect("unix:/nowhere", timeout=1), "accept": lambda: a.accept(timeout=1),
    "buffer": lambda: a.buffer(10), "register": lambda: a.register(x), "publish": lambda: a.publish("y", local),
    "unpublish": lambda: b.unpublish("x"), "progress": a.progress, "counters": a.counters, "peers": lambda: a.peers,
    "addresses": lambda: a.addresses,
    "send": lambda: ab.send(x, timeout=1), "recv": lambda: ab.recv(x, timeout=1), "isend": lambda: ab.isend(x),
    "irecv": lambda: ab.irecv(x), "put": lambda: ab.put(local, remote), "get": lambda: ab.get(local, remote),
    "put_blocks": lambda: ab.put_blocks(batch), "get_blocks": lambda: ab.get_blocks(batch),
    "prepare_blocks": lambda: ab.prepare_blocks([(local, [0], remote, [0])], block=10),
    "wait_notify": lambda: ab.wait_notify(1, timeout=1), "notifications": lambda: ab.notifications(),
    "notify": lambda: ab.notify(1), "fence": ab.fence, "lookup": lambda: ab.lookup("x", timeout=1),
    "import_buffer": lambda: ab.import_buffer(target.descriptor(), timeout=1), "path": ab.path,
    "wait": lambda: work.wait(1), "cancel": work.cancel, "wait_any": lambda: hmc.wait_any([work], 1),
    "wait_all": lambda: hmc.wait_all([work], 1), "callback": lambda: work.add_done_callback(print),
    "descriptor": local.descriptor, "buffer close": lambda: local.close(1),
    "barrier": lambda: comm.barrier(1), "all_to_all": lambda: comm.all_to_all(x, x), "iall_to_all": lambda: comm.iall_to_all(x, x),
    "exchange": lambda: comm.exchange(one, 1), "exchange_bytes": lambda: comm.exchange_bytes(b"", 1),
    "subgroup": lambda: comm.subgroup([0], 9),
    "split": lambda: comm.split(0, timeout=1), "comm buffer": lambda: comm.buffer(10), "topology": lambda: comm.topology(1),
    "comm send": lambda: comm.send(x, 0, timeout=1), "comm isend": lambda: comm.isend(x, 0), "comm irecv": lambda: comm.irecv(x, 0),
    "comm put": lambda: comm.put(one, mine[0]), "comm notify": lambda: comm.notify(0, 1), "comm fence": lambda: comm.fence(0),
    "comm wait_notify": lambda: comm.wait_notify(0, 1, timeout=1), "comm notifications": comm.notifications,
    "comm path": lambda: comm.path(0), "comm peer": lambda: comm.peer(0), "lost": lambda: comm.lost,
    "member barrier": lambda: member.barrier(1), "member buffer": lambda: member.buffer(10),
}
child = os.fork()
if child == 0:
    returned = {}
    for name, call in calls.items():
        try:
            returned[name] = call()
        except hmc.ClosedError:
            pass
        except Exception as error:
            returned[name] = error
    print(returned, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_calls_in_a_forked_child_raise() -> None:
    assert run(FORKED) == "{}\n"


def test_a_child_forked_in_a_callback_ends_with_it() -> None:
    out = run(
        """
        pair()
        children = []
        def fork(work):
            child = os.fork()
            if child: children.append(child)
        work = ab.irecv(np.zeros(1))
        work.add_done_callback(fork)
        ba.send(np.zeros(1))
        while not children: time.sleep(0.01)
        for _ in range(1000):
            ended, status = os.waitpid(children[0], os.WNOHANG)
            if ended: break
            time.sleep(0.02)
        else:
            os.kill(children[0], 9)
        print(ended == children[0], status, flush=True)
        """.replace("\n        ", "\n")
    )
    assert out == "True 0\n"
