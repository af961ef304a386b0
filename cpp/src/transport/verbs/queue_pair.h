// QueuePair: one reliable connection, used in one direction only: one end sends, writes and reads with it, the other is its target.
//
// So an access error (a region that was closed under way) ends nothing but the requester's own operations, and both ends know where
// they are: what completed was executed, what did not was not. The pair then starts over with the sequence of the next generation;
// the requester's packets are lost until the target has started over too, and are sent again.
#pragma once

#include <memory>

#include "transport/verbs/nic.h"

namespace hmc::verbs {

// From the environment: how patient a queue pair is.
struct Patience {
  std::uint8_t timeout = 17;  // 4.096 us * 2^timeout until a packet is sent again
  std::uint8_t retries = 6;   // 7 is the most; Soft-RoCE takes it for ever
  std::uint8_t traffic_class = 0;
  // Until a card reports that nobody answers, as it should: up to four times the timeout for each try (InfiniBand specification,
  // volume 1, 9.7.6.1.3).
  [[nodiscard]] double most_seconds() const noexcept { return 4 * 4.096e-6 * static_cast<double>(1ULL << timeout) * (retries + 1); }
};

class QueuePair {
 public:
  enum class Role : std::uint8_t { requester, target };

  // `queue`: a private one, else room in the card's is reserved.
  static Result<std::unique_ptr<QueuePair>> create(Nic& nic, Role role, unsigned sends, unsigned receives, unsigned inline_bytes,
                                                   CompletionQueues::Queue* queue = nullptr);
  ~QueuePair();  // nothing of it moves any more; the peer is not told

  [[nodiscard]] ibv_qp* handle() const noexcept { return handle_; }
  [[nodiscard]] std::uint32_t number() const noexcept { return handle_->qp_num; }
  [[nodiscard]] std::size_t inline_bytes() const noexcept { return inline_bytes_; }

  // From wherever it is to where receives can be posted.
  Status restart();
  // Ends it: what was posted comes back with an error.
  Status flush();
  // Then: connects it to the peer's `number`. `sequence` is of the first packet of the requester.
  Status connect(const PortInfo& peer, std::uint32_t number, std::uint32_t sequence, const Patience& patience);

 private:
  QueuePair(Nic& nic, Role role) noexcept : nic_(nic), role_(role) {}
  Status modify(ibv_qp_attr& attributes, int mask, const char* to);

  Nic& nic_;
  Role role_;
  ibv_qp* handle_ = nullptr;
  CompletionQueues::Queue* queue_ = nullptr;
  unsigned entries_ = 0;
  std::size_t inline_bytes_ = 0;
};

}  // namespace hmc::verbs
