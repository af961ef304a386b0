// Grants: what one peer has imported of this Context's buffers, and its lookups of names that are not published yet. Owned by
// PeerImpl. Engine lock held.
//
// An import is a number of the importer's. Its owner counts it on the buffer until it is released, or until the importer has
// acknowledged the buffer's revocation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "comm/buffers/buffers.h"
#include "comm/wire/codec.h"

namespace hmc {

class Grants {
 public:
  explicit Grants(PeerImpl& peer) noexcept : peer_(peer) {}

  // The buffer is closed: asks the peer to acknowledge that it uses it no more.
  void revoke(const Exposure& exposure);
  // Asks the peer to release a region (regions.cc).
  void withdraw(const Registration& registration, const LocalRegion* region);
  // Answers lookups that waited for the name.
  void publish(std::string_view name, const Bytes& descriptor);
  // Ends all, or those alone that the peer cannot use without a connection.
  void drop(bool all);
  // Whether the process of the peer may read or write granted memory by itself.
  [[nodiscard]] bool accessible() const noexcept;
  // Adds the memory of all to `kept`.
  void keep(std::vector<std::shared_ptr<const void>>& kept) const;

  void on_import(const wire::Import& m);
  void on_release(std::uint64_t request);
  void on_revoked(const wire::BufferName& name);
  void on_lookup(const wire::Lookup& m);
  void on_lookup_cancel(std::uint64_t request) { lookups_.erase(request); }

 private:
  struct Grant {
    std::shared_ptr<Exposure> exposure;
    const LocalRegion* region;
  };
  // `type`: imported or found.
  void answer(MessageType type, std::uint64_t request, const Status& status, Bytes bytes = {}, std::vector<UniqueFd> fds = {});
  void finish_import(const wire::Import& m, const std::shared_ptr<Exposure>& exposure, LocalRegion& region);
  [[nodiscard]] bool may_access(const Grant& grant) const noexcept;
  std::shared_ptr<Exposure> end(const Grant& grant);
  void end_if(const std::function<bool(const Grant&)>& which);

  PeerImpl& peer_;                                          // its control channel, phase, endpoints and Context
  std::unordered_map<std::uint64_t, Grant> granted_;        // by the peer's request
  std::size_t registering_ = 0;                             // imports that wait for a registration
  std::unordered_map<std::uint64_t, std::string> lookups_;  // by the peer's request
};

}  // namespace hmc
