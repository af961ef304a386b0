// PeerInput: what one peer sends, by control messages and by signals, goes to the part of the peer that it is for. Owned by
// PeerImpl. Engine lock held throughout.
#pragma once

#include <cstdint>
#include <vector>

#include "control/channel.h"

namespace hmc {

class EndpointSlot;
class PeerImpl;
struct NotifySignal;

class PeerInput final : public ChannelSink {
 public:
  explicit PeerInput(PeerImpl& peer) noexcept : peer_(peer) {}

  void on_message(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) override;
  void on_closed(const Status& reason) override;
  void on_signal(EndpointSlot& slot, ByteSpan signal);
  bool on_signal_in_place(EndpointSlot& slot, ByteSpan signal);

 private:
  void take(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds);
  void dispatch(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds);
  void on_notification(EndpointSlot& slot, const NotifySignal& m, bool attached);
  void on_mark(std::uint64_t number);

  PeerImpl& peer_;  // its parts, which take what is sent
};

}  // namespace hmc
