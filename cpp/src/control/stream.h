// Stream: a connected non-blocking socket that carries plain bytes first and frames later, perhaps inside TLS, perhaps with
// descriptors. Knows no handshake and no engine; its user says when to read and when to flush. Engine lock held.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/blob.h"
#include "base/fd_passing.h"
#include "control/records.h"
#include "control/tls.h"
#include "hmc/status.h"

namespace hmc::control {

// Bytes received and not yet consumed, contiguous.
class InputBuffer {
 public:
  std::span<std::byte> tail(std::size_t least);  // room for at least so many more
  void commit(std::size_t n) noexcept { end_ += n; }
  [[nodiscard]] ByteSpan data() const noexcept { return {storage_.get() + begin_, end_ - begin_}; }
  void consume(std::size_t n) noexcept { begin_ += n; }
  void trim();  // gives a large empty buffer back

 private:
  std::unique_ptr<std::byte[]> storage_;
  std::size_t capacity_ = 0;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

class Stream {
 public:
  enum class Input { data, blocked, ended, failed };  // failed: status() says why
  enum class Output {
    done,
    blocked,
    later,
    failed
  };  // blocked: flush when writable; later: out of kernel memory, flush in a while

  struct Frame {
    FrameHeader header;
    ByteSpan payload;           // valid until the next call of read(), next_frame() or secure()
    std::vector<UniqueFd> fds;  // as many as the header says, or none if this process's descriptor limit swallowed them
  };

  // Descriptors can be passed over Unix sockets only.
  Stream(UniqueFd fd, bool unix_socket) noexcept : fd_(std::move(fd)), unix_(unix_socket) {}

  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] bool passes_fds() const noexcept { return unix_; }
  [[nodiscard]] bool encrypted() const noexcept { return tls_ != nullptr; }
  [[nodiscard]] const Status& status() const noexcept { return status_; }

  // From here on all bytes are TLS records, those already received included. The client's side sends its first flight.
  Output secure(std::unique_ptr<TlsSession> tls);
  [[nodiscard]] bool established() const noexcept { return tls_ == nullptr || tls_->established(); }

  // One system call's worth of input. `data` may have brought no application bytes (TLS), and calls for flush() while queued() > 0.
  Input read();
  [[nodiscard]] ByteSpan input() const noexcept { return input_.data(); }
  void consume(std::size_t n) noexcept { input_.consume(n); }
  [[nodiscard]] std::size_t received() const noexcept { return received_; }   // bytes off the socket so far
  [[nodiscard]] bool holds_fds() const noexcept { return !groups_.empty(); }  // received, and of no frame yet
  // Takes the next whole frame off the input. False: needs more. Errors: protocol, also for descriptors nobody announced.
  Result<bool> next_frame(std::size_t limit, Frame& frame);

  // Each message goes out in one system call if the socket takes it; the rest is queued, and the caller flushes.
  Output send_raw(ByteSpan bytes);
  Output send_frame(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds = {});
  Output flush();
  [[nodiscard]] std::size_t queued() const noexcept { return queued_; }
  void shutdown_write() noexcept;

 private:
  struct Chunk {
    Bytes bytes;
    std::size_t sent = 0;
    std::vector<UniqueFd> fds;  // go with the first byte
  };
  Input receive(std::span<std::byte> into, std::size_t& n);
  Input read_tls();
  // What sendmsg took of the two pieces: >= 0, or -1 with `outcome` set.
  ssize_t transmit(ByteSpan first, ByteSpan second, const std::vector<UniqueFd>& fds, Output& outcome);
  void enqueue(ByteSpan first, ByteSpan second, std::vector<UniqueFd> fds);
  Output encrypt(ByteSpan first, ByteSpan second);
  Output take_tls_output();
  Output fail(Status status);

  UniqueFd fd_;
  bool unix_;
  std::unique_ptr<TlsSession> tls_;
  InputBuffer input_;
  std::size_t received_ = 0;
  std::size_t held_ = 0;    // bytes of the frame handed out last
  std::size_t wanted_ = 0;  // bytes missing of the frame at the front
  std::deque<FdGroup> groups_;
  std::deque<Chunk> output_;
  std::size_t queued_ = 0;
  std::size_t unread_answers_ = 0;  // bytes that TLS has to say by itself, since the output was last empty
  Status status_;
};

}  // namespace hmc::control
