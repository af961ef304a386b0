// PeerRoutes: which transport moves what between this Context and one peer. Owned by PeerImpl; engine lock held throughout.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "comm/buffers/buffers.h"
#include "comm/routing/route.h"
#include "comm/wire/codec.h"
#include "transport/transport.h"

namespace hmc {

class ContextImpl;
class PeerImpl;
struct TransportSlot;

class PeerRoutes {
 public:
  struct Candidate {
    TransportSlot* transport;
    Reach reach;
  };

  PeerRoutes(PeerImpl& peer, ContextImpl& context) noexcept : peer_(peer), context_(context) {}

  // What the peer offers: its transports with their domains.
  void offer(std::vector<wire::Hello::TransportDomain> domains) { domains_ = std::move(domains); }
  [[nodiscard]] std::optional<PeerDomain> domain_of(std::string_view transport_name) const noexcept;
  // Usable transports between the two devices, best first: by bandwidth, then by the order of the table. The others end in
  // `rejected`; in `resting` also those that would do, but failed in use and are left alone for now.
  std::vector<Candidate> rank(const Device& local, const Device& remote, TransportSet refused, std::vector<std::string>& rejected,
                              std::vector<Candidate>* resting = nullptr);

  // ---- ready, or closing: operations that were posted before are sent ----
  // The best without `refused`. Errors: unsupported with every candidate's reason; would_block: it is being made; ask again when
  // epoch() has changed.
  Result<Route*> find(const Device& local, const Device& remote, TransportSet refused);
  Result<Route*> find(const BufferState& local, const RemoteBufferState& remote) {
    return find(local.exposure->device, remote.record->device,
                local.registration->refused | remote.record->refused(local.exposure->device));
  }
  // For a message, the one by the transport of that name, which the peer has chosen.
  Result<Route*> find_by(const Device& local, const Device& remote, std::string_view transport_name);
  // What takes over for memory that `failed` does not reach; `refused` names it and those that failed before. Warns once.
  // Errors: as find(), with `reason` in front.
  Result<Route*> next(const Route& failed, TransportSet refused, const Status& reason);
  // Transports between the two devices that take memory of buffers alone (Reach::transient): a message leaves them out.
  TransportSet buffers_only(const Device& local, const Device& remote);

  // A signal of a message went with a put over that transport: a goodbye by another one stays behind it (Receipts).
  void signalled_by(std::string_view transport_name) noexcept;

  // Changes whenever a route may have changed; never 0.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  void changed();
  // Runs `action` once when epoch() changes, outside the current call chain.
  void when_changed(std::function<void()> action) { actions_.push_back(std::move(action)); }
  // A connection failed: what goes by it is chosen anew. Null: a better one is back, and everything is.
  void retire(const EndpointSlot* slot);
  void clear() noexcept;  // the peer has ended

 private:
  Status none(const Device& local, const Device& remote, const std::vector<std::string>& rejected, bool resting) const;
  Route& add(const Device& local, const Device& remote, TransportSet refused, const std::vector<Candidate>& candidates,
             std::vector<std::string> rejected, EndpointSlot& slot);

  PeerImpl& peer_;
  ContextImpl& context_;
  std::vector<wire::Hello::TransportDomain> domains_;
  std::vector<std::unique_ptr<Route>> routes_;
  std::vector<std::unique_ptr<Route>> old_routes_;  // of failed endpoints; others may hold the pointer until the peer ends
  std::uint64_t epoch_ = 1;
  std::vector<std::function<void()>> actions_;
  std::vector<std::tuple<Device, Device, TransportSet>> buffers_only_;  // answers given
};

}  // namespace hmc
