// The process at the other end of a Unix socket, and the proof that descriptors pass between it and us.
#pragma once

#include <string>

#include "base/fd.h"
#include "control/records.h"
#include "hmc/status.h"

namespace hmc::control {

struct PeerProcess {
  int pid = 0;     // 0 when it is not visible in our PID namespace
  UniqueFd pidfd;  // readable once the process is dead; empty where the kernel gives none (then only the socket tells)
};

// The kernel's word on who connected or listened. Errors: authentication when that was another user, peer_lost when it is gone.
// Before Linux 6.5 the descriptor comes from the process id: it is certain only once the peer has answered something afterwards.
Result<PeerProcess> peer_process(int unix_socket);

// "process 4711 was killed by signal 9", as much as can be known.
std::string describe_death(const PeerProcess& process);
bool is_dead(const PeerProcess& process) noexcept;

// A memfd that holds `secret`, and the check of one that came from the peer.
Result<UniqueFd> make_proof(const Secret& secret);
bool check_proof(int fd, const Secret& secret) noexcept;

}  // namespace hmc::control
