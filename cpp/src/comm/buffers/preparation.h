// Preparation: finds or makes all that operations with an imported buffer require: a route, the registration of the memory here,
// the owner's region and its mapping. Imports and the first operations of two buffers share it.
//
// The peer's answers and changes of its routes drive it. Only calls that may be slow run on a thread (Transfers::worker), and
// those wait for no peer. Engine lock held throughout.
#pragma once

#include <functional>
#include <memory>

#include "comm/buffers/buffers.h"
#include "comm/buffers/imports.h"

namespace hmc {

class Preparation : public std::enable_shared_from_this<Preparation> {
 public:
  using Done = std::function<void(Status)>;

  // For operations between `local` and `remote`.
  Preparation(std::shared_ptr<BufferState> local, std::shared_ptr<RemoteBufferState> remote, Done done);
  // Of `remote` alone, for operations with memory of `device` here.
  Preparation(std::shared_ptr<RemoteBufferState> remote, const Device& device, Done done);

  // `done` runs once, perhaps within this call. Errors: unsupported (no transport reaches both), stale (the buffer was closed),
  // peer_lost, closed, as the vendors'.
  void start() { advance(); }
  // `done` does not run any more.
  void cancel();

 private:
  void advance();
  void ask_owner();
  void run_slow_part();
  // Lock not held.
  Status register_here();
  Status fetch_own();
  Status map();
  // What one transport gave: the end, or the next transport.
  void conclude(Status reached, bool failed_here);
  void on_device_error(const Status& status);
  void finish_with_peer(const std::shared_ptr<bool>& undecided);
  void try_next(const Status& reached, bool failed_here);
  void finish(Status status);
  [[nodiscard]] TransportSet refused() const;
  [[nodiscard]] RemoteImport& record() const noexcept { return *remote_->record; }
  [[nodiscard]] PeerImpl& peer() const noexcept { return *remote_->peer; }

  const std::shared_ptr<BufferState> local_;  // null: of the remote alone
  const std::shared_ptr<RemoteBufferState> remote_;
  const Device device_;
  Done done_;
  // That is being prepared. The route and the slot live while the peer carries operations; without the lock they are not used.
  Route* route_ = nullptr;
  EndpointSlot* slot_ = nullptr;
  Transport* transport_ = nullptr;  // of the Context
  std::shared_ptr<Request> request_;
};

}  // namespace hmc
