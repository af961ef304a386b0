// Imports: the buffers of one peer that this side has imported, and its requests to their owner. Owned by PeerImpl. Engine lock
// held.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/random.h"
#include "comm/buffers/buffers.h"
#include "comm/wire/codec.h"

namespace hmc {

// One import or lookup on its way to the owner and back.
struct Request {
  std::shared_ptr<RemoteImport> record;  // import: where the region goes; null for a lookup
  EndpointSlot* slot = nullptr;
  Status status;
  Bytes bytes;                      // lookup: the descriptor
  std::function<void()> on_answer;  // called once when answered
  std::uint64_t id = 0;             // while the answer is awaited
  bool lookup = false;
  bool for_operation = false;  // a put or get waits for it, which a close of this side drains
};

class Imports {
 public:
  explicit Imports(PeerImpl& peer) noexcept : peer_(peer) {}

  // Asks the owner for `request->record`'s region by `request->slot`.
  Status start(const std::shared_ptr<Request>& request);
  Status start_lookup(const std::shared_ptr<Request>& request, std::string_view name);
  // No answer is waited for any more.
  void forget(Request& request);
  // Answers all with `reason`. `draining`: but for those that operations wait for.
  void end_requests(const Status& reason, bool draining);

  void add(const std::shared_ptr<RemoteImport>& record) { records_.push_back(record); }
  std::shared_ptr<RemoteBufferState> known(const Descriptor& descriptor) const;
  void remember(const std::shared_ptr<RemoteBufferState>& remote);
  // No handle is left, the owner revoked it, or the peer ended: entries go once nothing is in flight on them.
  void retire(const std::shared_ptr<RemoteImport>& record);
  void settle(const std::shared_ptr<RemoteImport>& record);
  [[nodiscard]] bool flushing() const noexcept;
  // BufferHolds of the peer's buffers, which a close waits for.
  [[nodiscard]] std::size_t& holds() noexcept { return holds_; }
  // Releases what was imported for a transport that did not reach the buffer from any device.
  void drop_unused(RemoteImport& record, const EndpointSlot* slot);
  // A connection has ended.
  void drop_entries(const EndpointSlot* slot);
  // Something ended that a withdrawn region may have waited for.
  void settle_withdrawn();
  [[nodiscard]] bool withdrawing() const noexcept { return withdrawing_; }
  // The owner closed the buffer. False: nothing is imported of it.
  bool revoke(const wire::BufferName& name, bool acknowledge);
  // The peer and its endpoints have ended.
  void tear_down(const Status& reason);

  void on_imported(const wire::Answer& m, std::vector<UniqueFd> fds);
  void on_found(const wire::Answer& m);
  void on_withdraw(std::uint64_t request);
  void on_revoke(const wire::BufferName& name);

 private:
  std::shared_ptr<Request> take(std::uint64_t id, bool lookup);
  // True: the record is settled once its puts that completed locally are flushed.
  bool flush(const std::shared_ptr<RemoteImport>& record);
  void drop_withdrawn(RemoteImport& record, const RemoteRegion* region);
  void release(std::uint64_t request);

  PeerImpl& peer_;                             // its control channel, phase, works and name
  std::uint64_t next_request_ = random_u64();  // not to be guessed by control messages made up at random
  std::unordered_map<std::uint64_t, std::shared_ptr<Request>> requests_;
  std::size_t holds_ = 0;
  std::vector<std::shared_ptr<RemoteImport>> records_;
  std::vector<std::weak_ptr<RemoteBufferState>> remotes_;
  bool withdrawing_ = false;  // something withdrawn may still be in use
};

}  // namespace hmc
