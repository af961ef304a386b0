// DescriptorChannel: what goes between two processes of a host besides their signals, which carry no descriptors. Each side has a
// socket pair of its own, and gives one end away with its address; what it sends is there before a signal sent after it.
#pragma once

#include <optional>

#include "base/fd_passing.h"
#include "hmc/status.h"

namespace hmc::ipc {

class DescriptorChannel {
 public:
  // Errors: as of the system, EMFILE for one.
  static Result<DescriptorChannel> create();

  // For the peer.
  [[nodiscard]] Result<UniqueFd> far_end() const;
  // The peer's, which receive() reads from. The far end is the peer's alone from now on.
  void connect(UniqueFd peers);

  // Errors: would_block (the peer has much to take in yet), unsupported (the descriptors cannot be passed), peer_lost, transport.
  Status send(ByteSpan bytes, std::span<const UniqueFd> fds);
  struct Received {
    Bytes bytes;
    FdGroup group;
  };
  // The next one that has come, of at most so many bytes.
  std::optional<Received> receive(std::size_t most);

  // Tells the peer that this side does nothing more with what it was sent.
  void stop() { near_.reset(); }
  // Waits, at most so long, for the peer's word of that, or its end.
  [[nodiscard]] bool peer_stops_within(int milliseconds) const;

 private:
  UniqueFd near_;
  UniqueFd far_;     // until the peer has it
  UniqueFd theirs_;  // the far end of the peer's
};

}  // namespace hmc::ipc
