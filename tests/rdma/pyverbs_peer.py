"""An RDMA program that is not HMC: pyverbs on the device named, told what to do by lines of JSON. Debian's Python runs it."""

import json
import sys
import time

from pyverbs import enums
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

ROOM = 2 << 20
PORT = 1
OPCODES = {"write": enums.IBV_WR_RDMA_WRITE, "read": enums.IBV_WR_RDMA_READ}


class Peer:
    def __init__(self, device: str, gid: str) -> None:
        self.context = Context(name=device)
        length = self.context.query_port(PORT).gid_tbl_len
        self.gid_index = next(i for i in range(length) if str(self.context.query_gid(PORT, i)) == gid)
        self.domain = PD(self.context)
        self.completions = CQ(self.context, 16, None, None, 0)
        self.memory = MR(self.domain, ROOM, enums.IBV_ACCESS_LOCAL_WRITE)
        self.pairs: list[QP] = []

    def open(self) -> dict[str, int]:
        """A queue pair; its number is its place."""
        cap = QPCap(max_send_wr=16, max_recv_wr=1)
        init = QPInitAttr(qp_type=enums.IBV_QPT_RC, scq=self.completions, rcq=self.completions, cap=cap)
        self.pairs.append(QP(self.domain, init))
        return {"qp_num": self.pairs[-1].qp_num, "psn": 77 + len(self.pairs)}

    def connect(self, pair: int, psn: int, there: dict) -> None:
        attributes = QPAttr(port_num=PORT)
        attributes.path_mtu = there["mtu"].bit_length() - 8
        attributes.dest_qp_num = there["qp_num"]
        attributes.sq_psn, attributes.rq_psn = psn, 0
        attributes.max_rd_atomic = min(there["max_dest_rd_atomic"], 4)
        attributes.max_dest_rd_atomic = 1
        attributes.min_rnr_timer, attributes.timeout, attributes.retry_cnt, attributes.rnr_retry = 12, 17, 6, 6
        route = GlobalRoute(dgid=GID(there["gid"]), sgid_index=self.gid_index)
        attributes.ah_attr = AHAttr(port_num=PORT, is_global=1, gr=route)
        self.pairs[pair].to_rts(attributes)

    def move(self, what: str, pair: int, address: int, rkey: int, data: str = "", length: int = 0) -> dict[str, object]:
        """Writes `data` there or reads `length` bytes from there; answers with the status of the completion."""
        raw = bytes.fromhex(data)
        length = length or len(raw)
        self.memory.write(raw or bytes(length), length)
        part = SGE(self.memory.buf, length, self.memory.lkey)
        work = SendWR(opcode=OPCODES[what], num_sge=1, sg=[part], send_flags=enums.IBV_SEND_SIGNALED)
        work.set_wr_rdma(rkey, address)
        self.pairs[pair].post_send(work)
        deadline = time.monotonic() + 60
        while True:
            found, completions = self.completions.poll()
            if found:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(what)
            time.sleep(0.001)
        status = completions[0].status
        came = self.memory.read(length, 0).hex() if what == "read" and status == enums.IBV_WC_SUCCESS else ""
        return {"status": status, "data": came}


def main() -> None:
    peer = Peer(sys.argv[1], sys.argv[2])
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(getattr(peer, command.pop("do"))(**command)), flush=True)


main()
