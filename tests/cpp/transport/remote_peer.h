// RemotePeer: the other end of a link in a process of its own, to be stopped and killed.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "transport/pair.h"

namespace hmc::testing {

// Blobs with their descriptors over a Unix socket. Blocking; false when the other end is gone.
inline bool send_blob(int socket, const Blob& blob) {
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  std::uint64_t size = blob.bytes.size();
  iovec pieces[2] = {{&size, sizeof size}, {const_cast<std::byte*>(blob.bytes.data()), blob.bytes.size()}};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = 2;
  if (!blob.fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(blob.fds.size() * sizeof(int));
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(blob.fds.size() * sizeof(int));
    for (std::size_t i = 0; i < blob.fds.size(); ++i) {
      const int fd = blob.fds[i].get();
      std::memcpy(CMSG_DATA(part) + i * sizeof fd, &fd, sizeof fd);
    }
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof size + blob.bytes.size());
}

inline bool receive_blob(int socket, Blob& blob) {
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  std::uint64_t size = 0;
  iovec piece{&size, sizeof size};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC) != sizeof size || size > 65536) return false;
  blob.bytes.resize(size);
  blob.fds.clear();
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    for (std::size_t i = 0; i < (part->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      blob.fds.emplace_back(fd);
    }
  }
  return size == 0 || recv(socket, blob.bytes.data(), size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

// What both processes do to get connected; each offers one area. The same calls on both sides.
struct RemoteLink {
  Side side;
  std::unique_ptr<RemoteRegion> region;  // the other's area

  Status connect(Node& node, int socket, int pid, const Area& own) {
    side.node = &node;
    Blob domain;
    domain.bytes = node.transport->domain();
    HMC_TRY(exchange(node, socket, domain));
    PeerDomain peer;
    peer.same_host = true;
    peer.pid = pid;
    peer.domain = domain.bytes;
    Blob address;
    {
      const auto lock = side.lock();
      HMC_ASSIGN(side.endpoint, node.transport->create_endpoint(peer, side.sink));
      HMC_ASSIGN(address, side.endpoint->address());
    }
    HMC_TRY(exchange(node, socket, address));
    Done done;
    {
      const auto lock = side.lock();
      HMC_TRY(side.endpoint->connect(address, &done));
    }
    const Deadline deadline = Deadline::after_seconds(100);
    while (!done.done()) {
      if (deadline.passed()) return Status(Code::timeout, "the two processes did not connect");
      if (!node.poll()) sched_yield();
    }
    HMC_TRY(Status(done.status()));
    Blob exported;
    {
      const auto lock = side.lock();
      HMC_ASSIGN(exported, own.region()->exported());
    }
    HMC_TRY(exchange(node, socket, exported));
    {
      const auto lock = side.lock();
      HMC_ASSIGN(region, side.endpoint->import_region(exported));
    }
    return region->prepare(Device::cpu());
  }

 private:
  // Polls while it waits, as an engine would: the other process may need it to get connected.
  static Status exchange(Node& node, int socket, Blob& blob) {
    if (!send_blob(socket, blob)) return Status(Code::peer_lost, "the other process is gone");
    pollfd readable{socket, POLLIN, 0};
    while (::poll(&readable, 1, 0) == 0) {
      if (!node.poll()) sched_yield();
    }
    if (!receive_blob(socket, blob)) return Status(Code::peer_lost, "the other process is gone");
    return {};
  }
};

class RemotePeer {
 public:
  inline static const std::size_t bytes = lengthy(32U << 20);

  // Forks: make it before any engine of the test. The child offers `bytes` of memory with pattern 77, polls, and, if `busy`, puts
  // all of it to the other side again and again.
  RemotePeer(const TransportFactory& factory, bool shareable, bool busy) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(ends[0]);
      serve(factory, ends[1], parent, shareable, busy);
    }
    close(ends[1]);
    socket = UniqueFd(ends[0]);
  }
  ~RemotePeer() { kill(); }
  void stop() const { stop_process(pid_); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  [[nodiscard]] int pid() const noexcept { return pid_; }

  UniqueFd socket;

 private:
  [[noreturn]] static void serve(const TransportFactory& factory, int socket, int parent, bool shareable, bool busy) {
    auto node = Node::create(factory);
    if (!node.ok()) _exit(1);
    const Area area(**node, bytes, shareable);
    fill_pattern(area.span(), 77);
    RemoteLink link;
    if (!link.connect(**node, socket, parent, area).ok()) _exit(2);
    for (;;) {
      std::optional<Transfer> put;
      if (busy && link.side.sink.failure.ok()) {
        put.emplace(link.side, area, *link.region, std::vector<std::uint64_t>{0}, std::vector<std::uint64_t>{0}, bytes);
        if (!put->put().ok()) put.reset();
      }
      do {
        if (!(*node)->poll()) usleep(100);
      } while (put && !put->done.done());
    }
  }

  pid_t pid_ = 0;
};

}  // namespace hmc::testing
