#include "comm/onesided/receipts.h"

#include <algorithm>
#include <utility>

#include "base/random.h"
#include "comm/connection/signals.h"
#include "comm/context_impl.h"
#include "comm/peer_impl.h"

namespace hmc {
namespace {

bool is_ready(const EndpointSlot& slot) noexcept { return slot.state == EndpointSlot::State::ready; }

}  // namespace

bool Receipts::complete() {
  bool quiet = !flushing_ && marked_ == nullptr;
  for (const auto& slot : peer_.connections().all()) {
    if (!quiet) return false;
    if (!is_ready(*slot)) continue;
    if (slot->unflushed) flush(*slot);
    if (slot->flushes != 0 || slot->unflushed || slot->operations != 0) {
      quiet = false;
    } else if (unmarked(*slot)) {
      mark(*slot);
      quiet = !unmarked(*slot) && marked_ == nullptr;
    }
  }
  return quiet;
}

bool Receipts::outstanding() const {
  return flushing_ || marked_ != nullptr || std::ranges::any_of(peer_.connections().all(), [this](const auto& slot) {
           return is_ready(*slot) && (slot->operations != 0 || slot->unflushed || slot->flushes != 0 || unmarked(*slot));
         });
}

// Where there is one connection, or the goodbye goes by it, what follows stays behind the notifications by itself.
bool Receipts::unmarked(const EndpointSlot& slot) const {
  if (!slot.notified || (peer_.closing().in_progress() && peer_.messages().carried_by(slot))) return false;
  return std::ranges::any_of(peer_.connections().all(),
                             [&](const auto& other) { return other.get() != &slot && is_ready(*other); });
}

void Receipts::flush(EndpointSlot& slot) {
  flushing_ = true;
  slot.unflushed = false;
  const auto on_end = [this, at = &slot](const Status& status) {
    flushing_ = false;
    if (!status.ok()) at->unflushed = true;  // its connection is ending
    over();
  };
  if (when_flushed(slot, on_end)) return;
  flushing_ = false;
  slot.unflushed = true;
}

void Receipts::mark(EndpointSlot& slot) {
  marked_ = &slot;
  number_ = random_u64();
  slot.notified = false;
  const Status sent = slot.endpoint->signal(number_signal(NotifyKind::mark, {}, number_), {});
  if (sent.ok() || marked_ == nullptr) return;
  marked_ = nullptr;
  slot.notified = true;
  if (sent.code() == Code::would_block) peer_.impl().peers().pump_with_room(peer_);  // otherwise its connection is ending
}

bool Receipts::on_marked(std::uint64_t number) {
  if (marked_ == nullptr || number != number_) return std::erase(given_up_, number) != 0;
  marked_ = nullptr;
  over();
  return true;
}

void Receipts::on_slot_failed(const EndpointSlot& slot) {
  if (marked_ != &slot) return;
  marked_ = nullptr;
  given_up_.push_back(number_);
  over();
}

void Receipts::over() {
  if (peer_.carries()) peer_.impl().peers().pump_soon(peer_);
}

}  // namespace hmc
