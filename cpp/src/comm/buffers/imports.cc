#include "comm/buffers/imports.h"

#include <algorithm>
#include <utility>

#include "comm/onesided/transfer.h"
#include "comm/peer_impl.h"

namespace hmc {
namespace {

void answered(Request& request, Status status) {
  request.id = 0;
  request.status = std::move(status);
  if (request.on_answer) std::exchange(request.on_answer, nullptr)();
}

}  // namespace

Status Imports::start(const std::shared_ptr<Request>& request) {
  const std::uint64_t id = next_request_++;
  const RemoteImport& record = *request->record;
  wire::Import m;
  m.request = id;
  m.buffer_id = record.buffer_id;
  m.generation = record.generation;
  m.nonce[0] = record.nonce[0];
  m.nonce[1] = record.nonce[1];
  m.size = record.size;
  m.access = record.access;
  m.transport = request->slot->transport().name;
  HMC_TRY(peer_.send_control(wire::import, encode(m)));
  request->id = id;
  requests_.emplace(id, request);
  return {};
}

Status Imports::start_lookup(const std::shared_ptr<Request>& request, std::string_view name) {
  const std::uint64_t id = next_request_++;
  HMC_TRY(peer_.send_control(wire::lookup, encode(wire::Lookup{id, std::string(name)})));
  request->id = id;
  request->lookup = true;
  requests_.emplace(id, request);
  return {};
}

void Imports::forget(Request& request) {
  const std::uint64_t id = std::exchange(request.id, 0);
  if (id == 0) return;
  if (request.lookup) {
    static_cast<void>(peer_.send_control(wire::lookup_cancel, wire::encode_request(id)));
    requests_.erase(id);
  } else {
    request.on_answer = nullptr;
    request.record = nullptr;  // a late answer is released at once
  }
}

std::shared_ptr<Request> Imports::take(std::uint64_t id, bool lookup) {
  const auto found = requests_.find(id);
  if (found == requests_.end() || found->second->lookup != lookup) return nullptr;
  auto request = std::move(found->second);
  requests_.erase(found);
  return request;
}

void Imports::release(std::uint64_t request) {
  static_cast<void>(peer_.send_control(wire::release, wire::encode_request(request)));
}

void Imports::on_imported(const wire::Answer& m, std::vector<UniqueFd> fds) {
  const auto request = take(m.request, false);
  if (!request) {
    if (peer_.phase() == PeerPhase::closed) return;  // given up when this side began to close; the grant ends with the peer
    return peer_.broken("an answer to an import that was not asked for");
  }
  if (m.code != Code::ok) return answered(*request, Status(m.code, "import from " + peer_.describe() + ": " + m.message));
  if (!request->record) return release(m.request);
  const auto refuse = [&](Status status) {
    release(m.request);
    answered(*request, std::move(status));
  };
  EndpointSlot& slot = *request->slot;
  if (slot.state != EndpointSlot::State::ready) return refuse(slot.failure);
  auto region = slot.endpoint->import_region(Blob{m.bytes, std::move(fds)});
  if (!region.ok()) return refuse(region.status().with_context("importing a buffer of " + peer_.describe()));
  if ((*region)->bytes() != request->record->size) {
    return refuse(Status(Code::protocol, peer_.describe() + " exported " + std::to_string((*region)->bytes()) + " bytes where " +
                                             std::to_string(request->record->size) + " were named"));
  }
  if (request->record->find(&slot) != nullptr) return refuse({});  // another thread was faster
  request->record->entries.push_back({&slot, m.request, std::move(*region), {}, false});
  answered(*request, {});
}

void Imports::on_found(const wire::Answer& m) {
  const auto request = take(m.request, true);
  if (!request) return;  // given up; the answer crossed our word
  request->bytes = m.bytes;
  answered(*request, m.code == Code::ok ? Status() : Status(m.code, "lookup at " + peer_.describe() + ": " + m.message));
}

void Imports::end_requests(const Status& reason, bool draining) {
  std::vector<std::shared_ptr<Request>> ended;
  std::erase_if(requests_, [&](const auto& entry) {
    if (draining && entry.second->for_operation) return false;
    ended.push_back(entry.second);
    return true;
  });
  for (const auto& request : ended) answered(*request, reason);
}

std::shared_ptr<RemoteBufferState> Imports::known(const Descriptor& d) const {
  for (const auto& weak : remotes_) {
    auto remote = weak.lock();
    if (!remote || !remote->record->alive.load()) continue;
    const RemoteImport& record = *remote->record;
    if (record.buffer_id == d.buffer_id && record.generation == d.generation && record.nonce[0] == d.nonce[0] &&
        record.nonce[1] == d.nonce[1] && record.size == d.size && record.access == d.access) {
      return remote;
    }
  }
  return nullptr;
}

void Imports::remember(const std::shared_ptr<RemoteBufferState>& remote) {
  std::erase_if(remotes_, [](const auto& weak) { return weak.expired(); });
  remotes_.push_back(remote);
}

void Imports::retire(const std::shared_ptr<RemoteImport>& record) {
  record->retiring = true;
  settle(record);
}

// Drops the regions of a retired record once nothing is in flight on them, puts that completed locally included.
void Imports::settle(const std::shared_ptr<RemoteImport>& record) {
  if (record->holds.count == 0) {
    for (const std::uint64_t request : std::exchange(record->holds.releases, {})) release(request);
  }
  if (!record->retiring || record->operations != 0 || record->flushing) return;
  const auto keep = record;
  if (peer_.carries() && flush(keep)) return;
  for (auto& entry : keep->entries) {
    entry.region.reset();
    if (entry.request != 0 && !keep->acknowledge) release(entry.request);
  }
  keep->entries.clear();
  std::erase(records_, keep);
  if (!std::exchange(keep->acknowledge, false)) return;
  for (const auto& other : records_) {
    if (other->acknowledge && other->buffer_id == keep->buffer_id && other->generation == keep->generation) return;
  }
  static_cast<void>(peer_.send_control(wire::revoked, encode(wire::BufferName{keep->buffer_id, keep->generation})));
}

// A flush that is in flight may have begun before the last puts here.
bool Imports::flush(const std::shared_ptr<RemoteImport>& record) {
  for (const RemoteImport::Entry& entry : record->entries) {
    EndpointSlot& slot = *entry.slot;
    if (entry.flushed || slot.state != EndpointSlot::State::ready || (!slot.unflushed && slot.flushes == 0)) continue;
    const bool unflushed = std::exchange(slot.unflushed, false);
    record->flushing = true;
    const auto on_end = [this, record, at = &slot, unflushed](const Status& status) {
      record->flushing = false;
      at->unflushed = at->unflushed || (unflushed && !status.ok());  // its connection is ending
      for (auto& each : record->entries) each.flushed = each.flushed || each.slot == at;
      settle(record);
    };
    if (when_flushed(slot, on_end)) return true;
    record->flushing = false;
    slot.unflushed = unflushed;
  }
  return false;
}

bool Imports::flushing() const noexcept {
  return std::ranges::any_of(records_, [](const auto& record) { return record->flushing; });
}

void Imports::drop_unused(RemoteImport& record, const EndpointSlot* slot) {
  const RemoteImport::Entry* entry = record.find(slot);
  if (entry == nullptr || !entry->prepared.empty() || entry->preparing || record.flushing) return;
  if (entry->request != 0) release(entry->request);
  record.entries.erase(record.entries.begin() + (entry - record.entries.data()));
}

void Imports::drop_entries(const EndpointSlot* slot) {
  for (const auto& record : records_) {
    if (record->flushing) continue;
    std::erase_if(record->entries, [&](const RemoteImport::Entry& entry) {
      if (entry.slot != slot || entry.preparing) return false;
      if (entry.request != 0 && record->holds.count != 0) {
        record->holds.releases.push_back(entry.request);
      } else if (entry.request != 0) {
        release(entry.request);
      }
      return true;
    });
  }
}

void Imports::tear_down(const Status& reason) {
  for (const auto& record : std::exchange(records_, {})) {
    record->alive.store(false);
    record->dead = reason;
    record->retiring = true;
    record->acknowledge = false;
    if (record->operations == 0) record->entries.clear();  // else when the preparation under way ends
  }
}

// The owner closed the buffer: nothing may touch it once we have acknowledged.
void Imports::on_revoke(const wire::BufferName& name) {
  if (!revoke(name, true)) static_cast<void>(peer_.send_control(wire::revoked, encode(name)));
}

bool Imports::revoke(const wire::BufferName& name, bool acknowledge) {
  const Status reason(Code::stale,
                      "buffer " + std::to_string(name.buffer_id) + " of " + peer_.describe() + " was closed by its owner");
  std::vector<std::shared_ptr<RemoteImport>> revoked;
  for (const auto& record : records_) {
    if (record->buffer_id != name.buffer_id || record->generation != name.generation) continue;
    revoked.push_back(record);
    record->alive.store(false);
    record->dead = reason;
    record->acknowledge = acknowledge;
  }
  peer_.works().stop(reason, [&](const TransferWork& work) {
    return std::ranges::any_of(revoked, [&](const auto& record) { return work.touches(record.get()); });
  });
  for (const auto& record : revoked) retire(record);
  return !revoked.empty();
}

// ---- regions that the owner wants back (regions.cc) ----

void Imports::on_withdraw(std::uint64_t request) {
  for (const auto& record : records_) {
    for (auto& entry : record->entries) {
      if (entry.request != request || entry.withdrawn) continue;
      entry.withdrawn = withdrawing_ = true;
      peer_.routes().changed();  // batches have it among their runs
      return settle_withdrawn();
    }
  }
}

// Releases what was withdrawn once nothing is in flight on it, puts that completed locally included.
void Imports::settle_withdrawn() {
  withdrawing_ = false;
  const auto records = records_;
  for (const auto& record : records) {
    std::vector<const RemoteRegion*> withdrawn;
    for (const auto& entry : record->entries) {
      if (entry.withdrawn && !entry.draining) withdrawn.push_back(entry.region.get());
    }
    for (const RemoteRegion* region : withdrawn) {
      RemoteImport::Entry* entry = record->find_region(region);
      if (entry == nullptr || entry->draining) continue;  // by a completion of one before it
      if (entry->preparing || peer_.works().uses(region)) {
        withdrawing_ = true;
        continue;
      }
      entry->draining = true;
      if (!when_flushed(*entry->slot, [this, record, region](const Status&) { drop_withdrawn(*record, region); }))
        drop_withdrawn(*record, region);
    }
  }
}

void Imports::drop_withdrawn(RemoteImport& record, const RemoteRegion* region) {
  const RemoteImport::Entry* entry = record.find_region(region);
  if (entry == nullptr) return;  // the record has been retired meanwhile
  const std::uint64_t request = entry->request;
  record.entries.erase(record.entries.begin() + (entry - record.entries.data()));
  release(request);
}

}  // namespace hmc
