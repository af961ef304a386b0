// What two sides may send one another before the receiver asks for it, as one side counts it. Without any network.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "comm/wire/messages.h"

namespace hmc::messaging {

// What a peer may have under way to us that nobody has asked for yet: bytes of eager payload, and messages.
inline constexpr std::uint64_t payload_credit = 1 << 20;
inline constexpr std::uint64_t head_credit = 4096;
// What one such message takes beside its payload, about.
inline constexpr std::uint64_t unexpected_bytes = 256;

// As sender: what the peer holds of us. Engine lock held.
class SentCredit {
 public:
  [[nodiscard]] bool has_head() const noexcept { return out_.heads < head_credit; }
  [[nodiscard]] bool has_payload(std::uint64_t bytes) const noexcept { return out_.payload + bytes <= payload_credit; }
  void spend(std::uint64_t payload) noexcept {
    out_.payload += payload;
    ++out_.heads;
  }
  // False: more than was spent.
  [[nodiscard]] bool take_back(const Credit& credit) noexcept {
    if (credit.payload > out_.payload || credit.heads > out_.heads) return false;
    out_.payload -= credit.payload;
    out_.heads -= credit.heads;
    return true;
  }

 private:
  Credit out_;
};

// As receiver: what we hold of the peer, and what we have consumed and not given back yet. Engine lock held.
class HeldCredit {
 public:
  // False: more than the peer had credit for.
  [[nodiscard]] bool hold(std::uint64_t payload) noexcept {
    held_.payload += payload;
    ++held_.heads;
    return held_.payload <= payload_credit && held_.heads <= head_credit;
  }
  // One message that was held is not any more; its credit is not given back.
  void release(std::uint64_t payload) noexcept {
    held_.payload -= payload;
    --held_.heads;
  }
  void release_all() noexcept { held_ = {}; }
  void consume(std::uint64_t payload) noexcept {
    owed_.payload += payload;
    ++owed_.heads;
  }
  // What to give back now. At half, so that a stream of messages costs one more signal in thousands; earlier when a sender may be
  // waiting because the rest of its credit lies here unread.
  [[nodiscard]] std::optional<Credit> take_due() noexcept {
    const bool needed = owed_.heads >= head_credit / 16 && owed_.heads + held_.heads >= head_credit;
    if (owed_.payload < payload_credit / 2 && owed_.heads < head_credit / 2 && !needed) return std::nullopt;
    return std::exchange(owed_, {});
  }
  [[nodiscard]] const Credit& held() const noexcept { return held_; }
  [[nodiscard]] std::uint64_t memory() const noexcept { return held_.payload + held_.heads * unexpected_bytes; }

 private:
  Credit held_;
  Credit owed_;
};

}  // namespace hmc::messaging
