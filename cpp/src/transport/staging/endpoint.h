// The endpoint of the staging transport.
//
// Whoever starts an operation moves it through its own ring, chunk by chunk: a put loads a slot from local memory and the peer
// unloads it, a get has the peer load it and unloads it here. Loading, carrying and unloading of different slots overlap.
#pragma once

#include <memory>
#include <vector>

#include "transport/kit/carried_endpoint.h"
#include "transport/staging/messages.h"
#include "transport/staging/parcel.h"
#include "transport/staging/ring.h"
#include "transport/staging/server.h"
#include "transport/staging/shared.h"

namespace hmc::staging {

struct Options {
  Geometry geometry;
  bool share = true;  // map each other's ring where that can be
};

// Engine lock held.
class StagingEndpoint final : public kit::CarriedEndpoint {
 public:
  static Result<std::shared_ptr<StagingEndpoint>> create(const std::shared_ptr<Shared>& shared, const Carriers& carriers,
                                                         const PeerDomain& peer, const Options& options, EndpointSink& sink);

  // The rings are unmapped later, without the engine lock: unpinning them waits for the devices.
  ~StagingEndpoint() override;

  Result<std::unique_ptr<RemoteRegion>> import_region(const Blob& exported) { return ServedRemoteRegion::import(exported); }
  // poll() may have something to do.
  [[nodiscard]] bool busy() const noexcept;
  bool poll();
  // False: something advances without an event. What the carrier has refused waits for room there, of which the carrier tells.
  [[nodiscard]] bool arm() const noexcept;

 private:
  // `in_flight`: slots.
  using Op = kit::Operation;
  enum class State : std::uint8_t { free, loading, loaded, sent, unloading };
  struct Slot {
    State state = State::free;
    Op* op = nullptr;
    PieceCopies copies;
    Parcel parcel;
    Bytes message;
    [[nodiscard]] bool available() const noexcept { return state == State::free && !parcel.under_way(); }
  };

  StagingEndpoint(const std::shared_ptr<Shared>& shared, std::size_t max_signal, const Geometry& geometry, EndpointSink& sink);
  Status check(const Run& run, bool is_put) const override;
  Status start(Op& op) override;
  void stop() override;
  Result<Blob> own_address() override;
  Status accept(Blob peer_address) override;
  void on_carrier_ready() override;
  Status on_message(ByteSpan message) override;
  Status on_rings(const Rings& rings);
  Status on_finished(const Finished& finished);

  [[nodiscard]] bool can_send() const noexcept { return own_shared_ || peer_mirror_ != nullptr; }
  [[nodiscard]] bool has_free_slot() const noexcept;
  bool begin_chunks();
  void begin_chunk(std::uint32_t slot, Op& op);
  bool advance(std::uint32_t slot);
  static void slot_over(Slot& slot);
  bool end_ops();

  const Geometry geometry_;
  std::unique_ptr<Ring> ring_;
  bool own_shared_ = false;                    // the peer maps ring_
  std::unique_ptr<LocalRegion> ring_region_;   // of ring_, where it is carried
  std::unique_ptr<RemoteRegion> peer_mirror_;  // of ring_ at the peer
  Server server_;                              // the peer's operations
  std::vector<std::unique_ptr<Slot>> slots_;
};

}  // namespace hmc::staging
