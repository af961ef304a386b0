// Server: carries out what the peer asks for on its ring: unloads pushed slots into regions here, loads pulled ones from them.
#pragma once

#include <list>
#include <memory>
#include <utility>

#include "transport/kit/carrier.h"
#include "transport/staging/messages.h"
#include "transport/staging/parcel.h"
#include "transport/staging/pieces.h"
#include "transport/staging/ring.h"
#include "transport/staging/shared.h"

namespace hmc::staging {

// Engine lock held.
class Server {
 public:
  explicit Server(std::shared_ptr<Shared> shared) noexcept : shared_(std::move(shared)) {}

  // The peer's ring: mapped, or mirrored in memory of our own.
  Status use_shared(const Geometry& geometry, UniqueFd fd);
  Status use_mirror(const Geometry& geometry, Transport& carrier);
  [[nodiscard]] LocalRegion* mirror_region() const noexcept { return mirror_region_.get(); }
  void set_peer_ring(std::unique_ptr<RemoteRegion> region) noexcept { peer_ring_ = std::move(region); }

  // False: the peer broke the protocol.
  bool on_chunk(const Chunk& chunk);
  [[nodiscard]] bool busy() const noexcept { return !tasks_.empty(); }
  bool poll(CarrierLink& carrier);
  // Something is not answered yet for another reason than that the carrier is full, or an earlier answer on its way.
  [[nodiscard]] bool copies() const noexcept;
  // Waits for what devices copy.
  void see_out();
  // Lets go of the peer's ring. Nothing is under way.
  void close();
  // Where it was mapped or mirrored. After close(), or when nothing was begun.
  [[nodiscard]] std::unique_ptr<Ring> take_ring() noexcept { return std::move(ring_); }

 private:
  struct Task {
    Chunk chunk;
    PieceCopies copies;
    Parcel parcel;
    Status failure;
    Bytes answer;  // once the copies are over
    bool sent = false;
  };
  Status read_table(Task& task);
  bool answer(Task& task, CarrierLink& carrier);

  const std::shared_ptr<Shared> shared_;
  std::unique_ptr<Ring> ring_;
  std::unique_ptr<LocalRegion> mirror_region_;
  std::unique_ptr<RemoteRegion> peer_ring_;  // where loaded slots are carried to
  std::list<Task> tasks_;
};

}  // namespace hmc::staging
