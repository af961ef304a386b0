// Peer: one connected remote Context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hmc/buffer.h"
#include "hmc/deadline.h"
#include "hmc/export.h"
#include "hmc/memory.h"
#include "hmc/path.h"
#include "hmc/status.h"
#include "hmc/work.h"

namespace hmc {

class PeerState;  // comm layer

inline constexpr std::int64_t any_tag = -1;
inline constexpr int any_source = -1;

// Bytes to send from or receive into. Built from anything that has some; borrows plain pointers (they must stay valid until the
// Work completes) and shares ownership of Memory and ConnBuffer.
struct HMC_API MemoryView {
  MemoryView() noexcept = default;
  MemoryView(void* address, std::size_t size) noexcept : data(address), bytes(size) {}  // CPU memory
  MemoryView(void* address, std::size_t size, Device where) noexcept : data(address), bytes(size), device(where) {}
  MemoryView(const Memory& memory);      // NOLINT(google-explicit-constructor)
  MemoryView(const ConnBuffer& buffer);  // NOLINT(google-explicit-constructor)

  void* data = nullptr;
  std::size_t bytes = 0;
  Device device;
  StreamHandle stream = no_stream;    // of `device`: the transfer starts after what is queued on it; the host does not wait
  std::shared_ptr<const void> owner;  // kept until the operation completes; null for borrowed pointers
};

// A notification to raise at the target once the data of its put (or batch) is visible there: a counted id, or a payload.
struct Notify {
  Notify() noexcept = default;
  Notify(std::uint64_t counted) noexcept : id(counted) {}                // NOLINT(google-explicit-constructor)
  Notify(std::span<const std::byte> bytes) noexcept : payload(bytes) {}  // NOLINT(google-explicit-constructor)
  std::optional<std::uint64_t> id;                                       // below 2^63
  std::span<const std::byte> payload;                                    // at most max_notify_payload bytes; copied by the call
  [[nodiscard]] bool empty() const noexcept { return !id && payload.empty(); }
};
inline constexpr std::size_t max_notify_payload = 1024;

struct PutOptions {
  Notify notify;
  Complete complete = Complete::remote;
  StreamHandle stream = no_stream;  // of the source's device: the transfer starts after what is queued on it
};

// A payload notification as received.
struct Notification {
  int source = -1;  // rank, or -1 for a peer outside a communicator
  std::vector<std::byte> payload;
};

template <>
HMC_API Result<std::vector<Notification>> WorkOf<std::vector<Notification>>::take() const;
template <>
HMC_API Result<RemoteBuffer> WorkOf<RemoteBuffer>::take() const;

// Calls with a leading `i` return a Work at once; its deadline and cancel() end it without a trace, and no thread waits for it.
// Thread rules: any thread. Every call on a lost peer returns peer_lost; on a closed one, closed; on an empty handle,
// invalid_argument. What a Result<Work> call can check it refuses at once; what happens later is the Work's outcome.
class HMC_API Peer {
 public:
  Peer() noexcept = default;
  explicit Peer(std::shared_ptr<PeerState> state) noexcept;
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }

  [[nodiscard]] std::string name() const;     // what the peer calls itself
  [[nodiscard]] std::string address() const;  // where it is connected: "unix:pid 4711", "tcp://[::1]:7000"
  [[nodiscard]] std::uint64_t epoch() const;  // differs each time the same address comes back
  [[nodiscard]] bool alive() const;
  // Whether nothing of the peer can read or write memory of this process any more: it was lost or closed, and its process has let
  // go of the memory, or is dead.
  [[nodiscard]] bool gone() const;
  [[nodiscard]] bool same_host() const;  // a descriptor could be passed

  // Named buffers. lookup imports what the peer published under `name`; waits for it to appear until the deadline.
  // Errors: timeout, invalid_argument (a name not of 1 to 255 bytes).
  [[nodiscard]] Result<RemoteBuffer> lookup(std::string_view name, Deadline deadline = Deadline::never()) const;
  // As lookup().
  [[nodiscard]] Result<WorkOf<RemoteBuffer>> ilookup(std::string_view name, Deadline deadline = Deadline::never()) const;
  // Imports a buffer by descriptor. Errors: stale, authentication (forged), invalid_argument (of another context), protocol.
  [[nodiscard]] Result<RemoteBuffer> import(const Descriptor& descriptor, Deadline deadline = Deadline::never()) const;
  // As import().
  [[nodiscard]] Result<WorkOf<RemoteBuffer>> iimport(const Descriptor& descriptor, Deadline deadline = Deadline::never()) const;

  // One-sided. Sizes of source and target must be equal; zero bytes are allowed (a notification still arrives).
  // A stream of the local buffer's device: the transfer starts after what is queued on it, and the call does not wait for that.
  // Errors: invalid_argument (sizes, a buffer of another peer or Context, read-only target, a stream with CPU memory), stale,
  // closed, unsupported (no path). The first operation between two buffers asks the peer for what it requires; the call does not
  // wait for the answer, and errors of it are the Work's.
  [[nodiscard]] Result<Work> put(const ConnBuffer& source, const RemoteBuffer& target, const PutOptions& options = {}) const;
  [[nodiscard]] Result<Work> get(const ConnBuffer& target, const RemoteBuffer& source, StreamHandle stream = no_stream) const;
  // Validates offsets against the slices, `block` bytes each, and against the peer. Overlapping targets: last writer unspecified.
  // Errors: invalid_argument naming the pair and the block that does not fit, or no pair, or blocks of no bytes.
  [[nodiscard]] Result<BlockBatch> prepare_blocks(std::span<const BlockPair> pairs, std::size_t block) const;
  [[nodiscard]] Result<Work> put_blocks(const BlockBatch& batch, const PutOptions& options = {}) const;
  [[nodiscard]] Result<Work> get_blocks(const BlockBatch& batch, StreamHandle stream = no_stream) const;
  // Raises a notification without data. Ordered behind nothing; see fence(). Returns once it is queued; waits while thousands
  // before it are not accepted by a peer that is stopped or does not read. Errors: timeout (nothing was sent), invalid_argument
  // (empty, id from 2^63 on, payload beyond max_notify_payload).
  [[nodiscard]] Status notify(const Notify& notify, Deadline deadline = Deadline::never()) const;
  // As notify(). Complete once the transport has it; until then cancel() withdraws it, and so does the deadline.
  [[nodiscard]] Result<Work> inotify(const Notify& notify, Deadline deadline = Deadline::never()) const;
  // What is posted to this peer after a fence, messages and collectives included, becomes visible only after the puts, gets and
  // notifications posted before it. Messages posted before it are not waited for. Does not block.
  [[nodiscard]] Status fence() const;

  // Waits until `id` has been raised `count` times by this peer and consumes them. Errors: timeout (consumes nothing), peer_lost.
  [[nodiscard]] Status wait_notify(std::uint64_t id, std::uint64_t count = 1, Deadline deadline = Deadline::never()) const;
  // As wait_notify(). Works of one id are served in turn. cancel() consumes nothing.
  [[nodiscard]] Result<Work> iwait_notify(std::uint64_t id, std::uint64_t count = 1, Deadline deadline = Deadline::never()) const;
  // Payload notifications from this peer in arrival order; waits for at least one until the deadline (default: returns at once).
  [[nodiscard]] Result<std::vector<Notification>> notifications(Deadline deadline = Deadline::after_seconds(0)) const;
  // As notifications(); an empty list at the deadline. What is not taken returns to its queue with the last handle.
  [[nodiscard]] Result<WorkOf<std::vector<Notification>>> inotifications(Deadline deadline = Deadline::never()) const;

  // Two-sided. Messages match in order per peer and tag. tag: 0 .. 2^62; recv also takes any_tag. A message longer than the
  // receive view completes the receive with invalid_argument (the sender completes ok); a shorter one reports its size in info().
  // After a timeout send and recv have withdrawn the operation, or the message says that the memory is still in use.
  [[nodiscard]] Status send(const MemoryView& view, std::int64_t tag = 0, Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Result<MessageInfo> recv(const MemoryView& view, std::int64_t tag = 0, Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Result<Work> isend(const MemoryView& view, std::int64_t tag = 0) const;
  [[nodiscard]] Result<Work> irecv(const MemoryView& view, std::int64_t tag = 0) const;

  // The route between two devices, as chosen now; connects if need be. Errors: unsupported (no path; the message lists why),
  // timeout.
  [[nodiscard]] Result<Path> path(Device source = Device::cpu(), Device target = Device::cpu(),
                                  Deadline deadline = Deadline::after_seconds(30)) const;

  // Closes without waiting: what was posted arrives, what the peer posted ends, then both sides say bye. Messages and receives
  // without a match end with closed.
  void close() const;

  [[nodiscard]] const std::shared_ptr<PeerState>& state() const noexcept { return state_; }
  friend bool operator==(const Peer& a, const Peer& b) noexcept { return a.state_ == b.state_; }

 private:
  std::shared_ptr<PeerState> state_;
};

}  // namespace hmc
