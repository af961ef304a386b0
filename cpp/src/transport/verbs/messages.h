// What the messages of one endpoint occupy: slots of registered memory, and credit at the receiver.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "transport/verbs/nic.h"

namespace hmc::verbs {

inline constexpr std::size_t slot_bytes = 4096;  // one packet where the MTU is 4096
inline constexpr std::size_t max_signal = slot_bytes - head_bytes;
inline constexpr unsigned credits = 32;  // signals that may wait at the receiver
// Besides, for messages that return credit: one is sent per half of the credits, so at most two wait, and one more is being taken;
// and one when the queue pair has started over.
inline constexpr unsigned spare_slots = 4;
inline constexpr unsigned slots = credits + spare_slots;

// Keys of a MessageMemory with one card.
struct MessageKeys {
  std::uint32_t memory = 0;     // of the slots
  std::uint32_t sink = 0;       // local one, of the sink
  std::uint32_t peer_sink = 0;  // the peer's, of the sink
};

// MessageMemory: the slots that an endpoint receives into and sends from, and the sink that a peer may write to, to no effect. The
// endpoint owns it. Engine lock held.
class MessageMemory {
 public:
  Status allocate(unsigned rails);
  // Registers it, once with each card.
  Result<MessageKeys> register_with(const Nic& nic);
  // After the queue pairs have been destroyed.
  void deregister();

  // Receives of each rail that are for no signals.
  [[nodiscard]] unsigned notes() const noexcept { return notes_; }
  [[nodiscard]] bool room_for_signal() const noexcept { return free_sends.size() > reserved_; }
  [[nodiscard]] std::byte* receive_slot(unsigned slot) const noexcept { return pages_.get() + slot * slot_bytes; }
  [[nodiscard]] std::byte* send_slot(unsigned slot) const noexcept { return pages_.get() + (receives_ + slot) * slot_bytes; }
  [[nodiscard]] std::uintptr_t sink() const noexcept { return reinterpret_cast<std::uintptr_t>(sink_.get()); }
  [[nodiscard]] std::uintptr_t scratch() const noexcept { return sink() + slot_bytes / 2; }  // for a byte that is read to settle

  std::vector<unsigned> free_sends, free_receives;
  std::uint64_t peer_sink = 0;  // where the peer's is

 private:
  struct FreePages {
    void operator()(std::byte* pages) const noexcept { std::free(pages); }
  };
  struct Registered {
    const Nic* nic;
    ibv_mr* memory;
    ibv_mr* sink;
  };
  using Pages = std::unique_ptr<std::byte, FreePages>;

  Pages pages_;  // slots that receive, then slots that send
  Pages sink_;
  std::vector<Registered> registered_;
  unsigned receives_ = 0, sends_ = 0;
  unsigned reserved_ = 0;  // of those that send, for what is no signal
  unsigned notes_ = 0;
};

// Credit: signals sent, and signals received whose slots are free again, both modulo 2^32.
class Credit {
 public:
  [[nodiscard]] bool any() const noexcept { return sent_ - taken_ < credits; }
  // The ordinal of a signal.
  std::uint32_t spend() noexcept { return ++sent_; }
  void refund() noexcept { --sent_; }
  [[nodiscard]] bool taken(std::uint32_t ordinal) const noexcept { return static_cast<std::int32_t>(taken_ - ordinal) >= 0; }
  // From the peer. False: it cannot be.
  [[nodiscard]] bool on_told(std::uint32_t consumed) noexcept {
    if (static_cast<std::int32_t>(consumed - taken_) < 0) return true;  // by another rail than what came before
    if (consumed - taken_ > sent_ - taken_) return false;
    taken_ = consumed;
    return true;
  }

  void consume() noexcept { ++consumed_; }
  [[nodiscard]] bool due() const noexcept { return consumed_ - told_ >= credits / 2; }
  // For the head of a message.
  std::uint32_t tell() noexcept { return told_ = consumed_; }

 private:
  std::uint32_t sent_ = 0, taken_ = 0;  // taken: of these, by the peer, as it told
  std::uint32_t consumed_ = 0, told_ = 0;
};

}  // namespace hmc::verbs
