// A peer made by hand: blocking sockets that say exactly what a test wants said.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "control/node.h"
#include "control/process.h"
#include "control/records.h"

namespace hmc::test {

class RawSocket {
 public:
  explicit RawSocket(int fd) : fd_(fd) {}
  // "unix:/path" or "tcp://127.0.0.1:port".
  explicit RawSocket(const std::string& address) {
    if (address.starts_with("unix:")) {
      sockaddr_un name{};
      name.sun_family = AF_UNIX;
      address.copy(name.sun_path, sizeof name.sun_path - 1, 5);
      fd_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0) << strerror(errno);
    } else {
      sockaddr_in name{};
      name.sin_family = AF_INET;
      name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      name.sin_port = htons(port_of(address));
      fd_ = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0) << strerror(errno);
    }
  }
  static std::uint16_t port_of(const std::string& address) {
    return static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  }

  // False when the peer is gone.
  bool send(ByteSpan bytes, const std::vector<int>& fds = {}) {
    alignas(cmsghdr) char control[CMSG_SPACE(32 * sizeof(int))] = {};
    iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
      cmsghdr* part = CMSG_FIRSTHDR(&message);
      part->cmsg_level = SOL_SOCKET;
      part->cmsg_type = SCM_RIGHTS;
      part->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(part), fds.data(), fds.size() * sizeof(int));
    }
    return sendmsg(fd_.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  bool send(std::string_view text) { return send(std::as_bytes(std::span(text))); }

  // Up to `size` bytes (descriptors are dropped); fewer only when the peer ended or `patience` has passed.
  Bytes receive(std::size_t size) {
    Bytes got;
    while (got.size() < size && readable()) {
      std::byte buffer[4096];
      const ssize_t n = recv(fd_.get(), buffer, std::min(sizeof buffer, size - got.size()), 0);
      if (n <= 0) {
        ended_ = true;
        break;
      }
      got.insert(got.end(), buffer, buffer + n);
    }
    return got;
  }
  // Everything up to the end of the connection; `ended()` is false if that does not come.
  Bytes receive_all() { return receive(std::size_t{1} << 30); }
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] int fd() const { return fd_.get(); }
  void close() { fd_.reset(); }

 private:
  bool readable() {
    pollfd entry{fd_.get(), POLLIN, 0};
    return poll(&entry, 1, static_cast<int>(patience * 1000)) == 1;
  }
  UniqueFd fd_;
  bool ended_ = false;
};

inline Bytes magic_and(const Bytes& more) {
  const auto magic = std::as_bytes(std::span(control_magic));
  Bytes out(magic.begin(), magic.end());
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

inline Bytes raw_hello(control::HelloKind kind, std::uint8_t detail = 0, std::uint16_t version = wire_version) {
  return magic_and(control::encode_hello({version, kind, detail, "raw"}));
}

inline Bytes raw_frame(MessageType type, const Bytes& payload, std::uint8_t fds = 0) {
  const auto header = control::encode_frame_header({static_cast<std::uint32_t>(payload.size()), type, fds});
  Bytes out(header.begin(), header.end());
  out.insert(out.end(), payload.begin(), payload.end());
  return out;
}
inline Bytes raw_frame(control::FrameType type, const Bytes& payload, std::uint8_t fds = 0) {
  return raw_frame(static_cast<MessageType>(type), payload, fds);
}

// The server's hello off the wire.
inline control::Hello receive_hello(RawSocket& socket) {
  Bytes head = socket.receive(control_magic.size() + 2);
  EXPECT_EQ(head.size(), control_magic.size() + 2) << "no hello came";
  if (head.size() != control_magic.size() + 2) return {};
  EXPECT_EQ(std::memcmp(head.data(), control_magic.data(), control_magic.size()), 0);
  Bytes hello(head.begin() + control_magic.size(), head.end());
  const std::size_t length = std::to_integer<std::size_t>(hello[0]) | std::to_integer<std::size_t>(hello[1]) << 8;
  const Bytes body = socket.receive(length);
  hello.insert(hello.end(), body.begin(), body.end());
  std::size_t used = 0;
  const auto decoded = control::decode_hello(hello, used);
  EXPECT_TRUE(decoded.ok() && decoded.value().has_value());
  return decoded.ok() && decoded.value() ? *decoded.value() : control::Hello();
}

struct RawFrame {
  control::FrameHeader header;
  Bytes payload;
};
inline RawFrame receive_frame(RawSocket& socket) {
  const Bytes head = socket.receive(control::frame_header_bytes);
  EXPECT_EQ(head.size(), control::frame_header_bytes) << "no frame came";
  if (head.size() != control::frame_header_bytes) return {};
  const auto header = control::decode_frame_header(head, max_control_payload);
  EXPECT_TRUE(header.ok());
  return {header.value(), socket.receive(header.value().length)};
}

// A client over Unix up to the server's answer to its identity.
struct RawClient {
  explicit RawClient(const std::string& address) : socket(address) {
    random_bytes(identity.proof.emplace());
    random_bytes(std::as_writable_bytes(std::span(identity.context_id)));
    identity.name = "by hand";
  }
  control::Hello greet(control::HelloKind kind = control::HelloKind::connect) {
    EXPECT_TRUE(socket.send(raw_hello(kind)));
    return receive_hello(socket);
  }
  RawFrame identify() {
    auto proof = control::make_proof(*identity.proof);
    EXPECT_TRUE(proof.ok());
    EXPECT_TRUE(socket.send(raw_frame(control::FrameType::identity, control::encode_identity(identity), 1), {proof->get()}));
    return receive_frame(socket);
  }
  void establish() {
    EXPECT_EQ(greet().kind, control::HelloKind::accept);
    EXPECT_EQ(identify().header.type, static_cast<MessageType>(control::FrameType::identity));
    EXPECT_TRUE(socket.send(raw_frame(control::FrameType::commit, {})));
  }
  RawSocket socket;
  control::Identity identity;
};

}  // namespace hmc::test
