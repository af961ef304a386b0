#include "comm/connection/endpoint_slot.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "comm/context_impl.h"
#include "comm/peer_impl.h"

namespace hmc {

EndpointSlot::EndpointSlot(PeerImpl& peer, TransportSlot& transport, std::uint32_t attempt)
    : retry(*peer.impl().engine()), peer_(peer), transport_(transport), attempt_(attempt) {}

void EndpointSlot::on_signal(ByteSpan signal) { peer_.input().on_signal(*this, signal); }
bool EndpointSlot::on_signal_in_place(ByteSpan signal) { return peer_.input().on_signal_in_place(*this, signal); }
void EndpointSlot::on_failed(const Status& reason) { peer_.connections().on_failed(*this, reason); }
void EndpointSlot::complete(Status status) noexcept { peer_.connections().on_connected(*this, status); }

std::string EndpointSlot::trouble() const {
  if (state != State::failed) return "its connection is being made again";
  std::string text = "failed (" + std::string(failure.message()) + ")";
  if (!retry.pending()) return text;
  const double left = std::chrono::duration<double>(retry.due().when() - Deadline::Clock::now()).count();
  char when[64];
  std::snprintf(when, sizeof when, "; quarantined, tried again in %.1f s", std::max(0.0, left));
  return text + when;
}

bool when_flushed(EndpointSlot& slot, std::function<void(const Status&)> action) {
  class Flush final : public Completion {
   public:
    Flush(EndpointSlot& slot, std::function<void(const Status&)> action)
        : peer_(slot.peer().shared_from_this()), slot_(slot), action_(std::move(action)) {
      ++slot_.flushes;
    }
    ~Flush() { --slot_.flushes; }
    void complete(Status status) noexcept override {
      PeerImpl& peer = slot_.peer();
      const auto keep = peer_;
      {
        const std::unique_ptr<Flush> self(this);
        action_(status);
      }
      if (peer.carries()) peer.impl().peers().pump_soon(peer);  // a fence or a close may have waited for it
    }

   private:
    const std::shared_ptr<PeerState> peer_;  // owns the slot, and what the action is about
    EndpointSlot& slot_;
    const std::function<void(const Status&)> action_;
  };
  if (slot.state != EndpointSlot::State::ready) return false;
  auto made = std::make_unique<Flush>(slot, std::move(action));
  if (!slot.endpoint->flush(made.get()).ok()) return false;
  static_cast<void>(made.release());  // deletes itself, perhaps has done so
  return true;
}

}  // namespace hmc
