#include "control/stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace hmc::control {
namespace {

constexpr std::size_t small_buffer = 8 * 1024;          // what an idle connection keeps
constexpr std::size_t coalesce_limit = 64 * 1024;       // small messages that wait share a system call
constexpr std::size_t most_unread_answers = 64 * 1024;  // of TLS to the peer: a key update takes 27 bytes

Status reset_status(int error) {
  return Status(Code::peer_lost, std::string("the connection broke: ") + std::strerror(error), error);
}

}  // namespace

std::span<std::byte> InputBuffer::tail(std::size_t least) {
  if (begin_ == end_) begin_ = end_ = 0;
  if (capacity_ - end_ < least) {
    const std::size_t size = end_ - begin_;
    const std::size_t wanted = std::max(size + least, small_buffer);
    if (wanted <= capacity_) {
      std::memmove(storage_.get(), storage_.get() + begin_, size);
    } else {
      auto larger = std::make_unique_for_overwrite<std::byte[]>(wanted);
      if (size > 0) std::memcpy(larger.get(), storage_.get() + begin_, size);
      storage_ = std::move(larger);
      capacity_ = wanted;
    }
    begin_ = 0;
    end_ = size;
  }
  return {storage_.get() + end_, capacity_ - end_};
}

void InputBuffer::trim() {
  if (begin_ != end_ || capacity_ <= small_buffer) return;
  storage_.reset();
  capacity_ = begin_ = end_ = 0;
}

Stream::Output Stream::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
  return Output::failed;
}

Stream::Output Stream::secure(std::unique_ptr<TlsSession> tls) {
  tls_ = std::move(tls);
  const ByteSpan early = input_.data();
  if (Status fed = tls_->feed(early); !fed.ok()) return fail(std::move(fed));
  input_.consume(early.size());
  Status stepped = tls_->handshake();
  const Output sent = take_tls_output();  // an alert goes out even when the handshake failed
  return stepped.ok() ? sent : fail(std::move(stepped));
}

// ---- input ----

Stream::Input Stream::receive(std::span<std::byte> into, std::size_t& n) {
  std::vector<FdGroup> groups;
  const ssize_t got = receive_with_fds(fd_.get(), into, groups);
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Input::blocked;
    static_cast<void>(fail(reset_status(errno)));
    return Input::failed;
  }
  for (FdGroup& group : groups) groups_.push_back(std::move(group));
  if (got == 0) return Input::ended;
  n = static_cast<std::size_t>(got);
  received_ += n;
  return Input::data;
}

Stream::Input Stream::read() {
  input_.consume(std::exchange(held_, 0));
  if (tls_) return read_tls();
  input_.trim();
  std::size_t n = 0;
  const Input outcome = receive(input_.tail(std::max(wanted_, small_buffer / 2)), n);
  input_.commit(n);
  return outcome;
}

Stream::Input Stream::read_tls() {
  std::array<std::byte, TlsSession::chunk> cipher;
  std::size_t n = 0;
  const Input outcome = receive(cipher, n);
  if (outcome != Input::data) return outcome;
  const auto failed = [this](Status status) {
    static_cast<void>(fail(std::move(status)));
    return Input::failed;
  };
  if (Status fed = tls_->feed(ByteSpan(cipher).first(n)); !fed.ok()) return failed(std::move(fed));
  if (!tls_->established()) {
    Status stepped = tls_->handshake();
    const Output sent = take_tls_output();
    if (!stepped.ok()) return failed(std::move(stepped));
    if (sent == Output::failed) return Input::failed;
  }
  input_.trim();
  while (tls_->established()) {
    const std::span<std::byte> room = input_.tail(std::max(wanted_, small_buffer / 2));
    auto plain = tls_->read(room);
    if (!plain.ok()) return plain.status().code() == Code::peer_lost ? Input::ended : failed(plain.status());
    if (*plain == 0) break;
    input_.commit(*plain);
  }
  return take_tls_output() == Output::failed ? Input::failed : Input::data;
}

Result<bool> Stream::next_frame(std::size_t limit, Frame& frame) {
  input_.consume(std::exchange(held_, 0));
  frame.fds.clear();
  const ByteSpan in = input_.data();
  wanted_ = 0;
  if (in.size() < frame_header_bytes) {
    // A group comes with the first byte of its frame.
    if (groups_.size() > (in.empty() ? 0U : 1U)) return Status(Code::protocol, "descriptors that no message announced");
    return false;
  }
  HMC_ASSIGN(frame.header, decode_frame_header(in.first(frame_header_bytes), limit));
  if (frame.header.fds > 0 && !unix_) return Status(Code::protocol, "descriptors announced where none can be passed");
  const std::size_t total = frame_header_bytes + frame.header.length;
  if (in.size() < total) {
    wanted_ = total - in.size();
    if (groups_.size() > (frame.header.fds > 0 ? 1U : 0U)) return Status(Code::protocol, "descriptors that no message announced");
    return false;
  }
  if (frame.header.fds > 0) {
    if (groups_.empty()) return Status(Code::protocol, "a message came without its descriptors");
    FdGroup group = std::move(groups_.front());
    groups_.pop_front();
    if (!group.cut && group.fds.size() != frame.header.fds) {
      return Status(Code::protocol, "a message with " + std::to_string(group.fds.size()) + " descriptors that announced " +
                                        std::to_string(frame.header.fds));
    }
    if (!group.cut) frame.fds = std::move(group.fds);
  }
  frame.payload = in.subspan(frame_header_bytes, frame.header.length);
  held_ = total;
  return true;
}

// ---- output ----

ssize_t Stream::transmit(ByteSpan first, ByteSpan second, const std::vector<UniqueFd>& fds, Output& outcome) {
  std::array<iovec, 2> pieces{iovec{const_cast<std::byte*>(first.data()), first.size()},
                              iovec{const_cast<std::byte*>(second.data()), second.size()}};
  const ssize_t sent = send_with_fds(fd_.get(), {pieces.data(), second.empty() ? 1U : 2U}, fds);
  if (sent >= 0) return sent;
  switch (errno) {
    case EAGAIN:
      outcome = Output::blocked;
      break;
    case ENOBUFS:
    case ENOMEM:
    case ETOOMANYREFS:
      outcome = Output::later;
      break;  // too many descriptors under way: the peer must take some first
    default:
      outcome = fail(reset_status(errno));
      break;
  }
  return -1;
}

void Stream::enqueue(ByteSpan first, ByteSpan second, std::vector<UniqueFd> fds) {
  queued_ += first.size() + second.size();
  if (!fds.empty() || output_.empty() || output_.back().bytes.size() + first.size() + second.size() > coalesce_limit) {
    output_.push_back({{}, 0, std::move(fds)});
  }
  Bytes& bytes = output_.back().bytes;
  if (bytes.empty()) bytes.reserve(first.size() + second.size());  // else it doubles: many small messages may come
  bytes.insert(bytes.end(), first.begin(), first.end());
  bytes.insert(bytes.end(), second.begin(), second.end());
}

Stream::Output Stream::flush() {
  if (!status_.ok()) return Output::failed;
  while (!output_.empty()) {
    Chunk& chunk = output_.front();
    Output outcome = Output::done;
    const ssize_t sent = transmit(ByteSpan(chunk.bytes).subspan(chunk.sent), {}, chunk.fds, outcome);
    if (sent < 0) return outcome;
    chunk.fds.clear();
    chunk.sent += static_cast<std::size_t>(sent);
    queued_ -= static_cast<std::size_t>(sent);
    if (chunk.sent < chunk.bytes.size()) return Output::blocked;
    output_.pop_front();
  }
  unread_answers_ = 0;
  return Output::done;
}

Stream::Output Stream::take_tls_output() {
  Bytes cipher;
  tls_->take_output(cipher);
  if (!cipher.empty()) enqueue(cipher, {}, {});
  unread_answers_ += cipher.size();
  const Output sent = flush();
  if (sent == Output::failed || unread_answers_ <= most_unread_answers) return sent;
  return fail(Status(Code::protocol, "TLS has to answer more than the peer reads"));
}

Stream::Output Stream::encrypt(ByteSpan first, ByteSpan second) {
  // Header and payload share a record: together they are one write and one segment.
  Bytes plain;
  plain.reserve(first.size() + second.size());
  plain.insert(plain.end(), first.begin(), first.end());
  plain.insert(plain.end(), second.begin(), second.end());
  Bytes cipher;
  for (ByteSpan rest(plain); !rest.empty(); rest = rest.subspan(std::min(rest.size(), TlsSession::chunk))) {
    if (Status written = tls_->write(rest.first(std::min(rest.size(), TlsSession::chunk))); !written.ok())
      return fail(std::move(written));
    tls_->take_output(cipher);
  }
  if (!cipher.empty()) enqueue(cipher, {}, {});
  return flush();
}

Stream::Output Stream::send_raw(ByteSpan bytes) { return tls_ ? encrypt(bytes, {}) : (enqueue(bytes, {}, {}), flush()); }

Stream::Output Stream::send_frame(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) {
  if (!status_.ok()) return Output::failed;
  const auto header =
      encode_frame_header({static_cast<std::uint32_t>(payload.size()), type, static_cast<std::uint8_t>(fds.size())});
  if (tls_) return encrypt(header, payload);
  if (!output_.empty()) {
    enqueue(header, payload, std::move(fds));
    return Output::blocked;
  }
  Output outcome = Output::done;
  const ssize_t sent = transmit(header, payload, fds, outcome);
  if (outcome == Output::failed) return outcome;
  const auto taken = static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
  if (taken == header.size() + payload.size()) return Output::done;
  if (taken > 0) fds.clear();
  const std::size_t of_header = std::min(taken, header.size());
  enqueue(ByteSpan(header).subspan(of_header), payload.subspan(taken - of_header), std::move(fds));
  return outcome == Output::done ? Output::blocked : outcome;
}

void Stream::shutdown_write() noexcept { shutdown(fd_.get(), SHUT_WR); }

}  // namespace hmc::control
