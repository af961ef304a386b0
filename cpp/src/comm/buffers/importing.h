// Importing buffers of a peer, or of one's own, by the published name or by the descriptor. Engine lock not held.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/peer_state.h"
#include "hmc/buffer.h"

namespace hmc {

Result<RemoteBuffer> lookup_buffer(const std::shared_ptr<PeerState>& peer, std::string_view name, Deadline deadline);
Result<RemoteBuffer> import_buffer(const std::shared_ptr<PeerState>& peer, const Descriptor& descriptor, Deadline deadline);
// Several imports at once, one round trip for each peer; entry i belongs to peers[i].
Result<std::vector<RemoteBuffer>> import_buffers(std::span<const std::shared_ptr<PeerState>> peers,
                                                 std::span<const Descriptor> descriptors, Deadline deadline);
// As Works that deliver a RemoteBuffer and end at the deadline.
Result<std::shared_ptr<WorkState>> ilookup_buffer(const std::shared_ptr<PeerState>& peer, std::string_view name, Deadline deadline);
Result<std::shared_ptr<WorkState>> iimport_buffer(const std::shared_ptr<PeerState>& peer, const Descriptor& descriptor,
                                                  Deadline deadline);

}  // namespace hmc
