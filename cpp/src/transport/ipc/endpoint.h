// The endpoint of the ipc transport.
//
// A device here copies what it reaches (endpoint.cc). Where the memory here is the CPU's, the peer is asked to copy, by its device
// (endpoint_asks.cc), and a Server does the same for the peer.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>

#include "transport/device_copies.h"
#include "transport/ipc/announced.h"
#include "transport/ipc/host_region.h"
#include "transport/ipc/messages.h"
#include "transport/ipc/region.h"
#include "transport/ipc/server.h"
#include "transport/kit/carried_endpoint.h"

namespace hmc::ipc {

// Engine lock held.
class IpcEndpoint final : public kit::CarriedEndpoint, private Announcer {
 public:
  static Result<std::shared_ptr<IpcEndpoint>> create(const std::shared_ptr<Shared>& shared, const Carriers& carriers,
                                                     const PeerDomain& peer, EndpointSink& sink);

  Result<std::unique_ptr<RemoteRegion>> import_region(const Blob& exported);
  Result<Blob> describe(LocalRegion& region);
  // Something that no signal of the peer will bring on by itself.
  [[nodiscard]] bool busy() const noexcept;
  bool poll();
  // False: something advances without an event. What the carrier has refused waits for room there, of which the carrier tells.
  [[nodiscard]] bool arm() const noexcept;

 private:
  // `in_flight`: asks that the peer has not answered.
  struct Op final : kit::Operation {
    DeviceCopies copies;
    DeviceRuntime* runtime = nullptr;
    bool refused = false;  // its next ask, for want of room in the carrier
  };

  IpcEndpoint(const std::shared_ptr<Shared>& shared, std::size_t max_signal, DescriptorChannel channel, EndpointSink& sink);
  Status check(const Run& run, bool is_put) const override;
  Status start(kit::Operation& operation) override;
  void stop() override;
  Result<Blob> own_address() override;
  Status accept(Blob peer_address) override;
  static Status would_block() { return {Code::would_block, "an ask must be answered first"}; }
  static Result<DeviceCopies::Ends> ends_of(const Run& run, bool is_put);
  bool advance(Op& op);
  static bool over(Op& op);
  static bool has_more(Op& op);
  [[nodiscard]] bool waits_for_peer(const kit::Operation& operation) const;
  void send_outbox();

  // ---- endpoint_announce.cc ----
  Result<std::uint64_t> announce(const HostRegion& region, bool to_write);
  void forget(const LocalRegion& region) override;
  void forget(std::uint64_t memory);
  // Pieces of memory that holds messages, known to the peer.
  struct Held {
    std::unique_ptr<HeldChunks> chunks;
    std::uint64_t id = 0;
  };
  Result<const Held*> hold(const DeviceSpan& span);

  // ---- endpoint_asks.cc ----
  Status ask(Op& op);
  Status on_message(ByteSpan bytes) override;
  bool serve();

  const std::shared_ptr<Shared> shared_;
  const std::size_t max_ask_;  // bytes
  DescriptorChannel channel_;
  AnnouncedTable memories_;  // of the peer
  Server server_;
  struct Announced {
    std::uint64_t id = 0;
    Access access = Access::read;
  };
  std::map<const LocalRegion*, Announced> announced_;
  std::deque<Held> held_;  // the latest last
  std::uint64_t last_memory_ = 0;
  std::array<Op*, max_asks> asks_{};  // by number; null: free
  std::uint32_t free_asks_ = max_asks;
  // What met a full carrier. A peer that takes no answers may not ask by their numbers again, so there are at most max_asks.
  std::deque<Answer> answers_;
  std::deque<Bytes> outbox_;
  bool outbox_refused_ = false;  // by the carrier, since something was last added
  const std::shared_ptr<MappingCache> messages_ = std::make_shared<MappingCache>();
};

}  // namespace hmc::ipc
