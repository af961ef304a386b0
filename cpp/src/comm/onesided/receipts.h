// Receipts: whether all that was posted to a peer so far has arrived, notifications included. A fence and a goodbye wait for it.
//
// A connection keeps its signals in order; two connections keep no order between them. So what went by one connection is made sure
// of before something goes by another: it is flushed, and where notifications went by it, a mark is sent behind them, which the
// peer answers over the control channel. Owned by PostQueue; engine lock held.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/connection/endpoint_slot.h"

namespace hmc {

class Receipts {
 public:
  explicit Receipts(PeerImpl& peer) noexcept : peer_(peer) {}

  // Whether everything has arrived. Starts what is needed to know; then the queue is pumped once more is known.
  bool complete();
  // As complete() would answer, where nothing needs to be asked.
  [[nodiscard]] bool outstanding() const;

  // The peer has received the mark of that number. False: it was not sent.
  [[nodiscard]] bool on_marked(std::uint64_t number);
  void on_slot_failed(const EndpointSlot& slot);

 private:
  [[nodiscard]] bool unmarked(const EndpointSlot& slot) const;
  void flush(EndpointSlot& slot);
  void mark(EndpointSlot& slot);
  void over();

  PeerImpl& peer_;  // its connections and phase
  bool flushing_ = false;
  EndpointSlot* marked_ = nullptr;  // whose mark is on its way
  std::uint64_t number_ = 0;        // of that mark
  // Of marks whose connection failed first. Their answers come over the control channel, and so may still come.
  std::vector<std::uint64_t> given_up_;
};

}  // namespace hmc
