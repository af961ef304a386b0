// PeerImpl: importing the peer's buffers, and answering its imports of ours.
//
// An import is a number of the importer's. Its owner counts it on the buffer until it is released, or until the importer has
// acknowledged the buffer's revocation.
#include <algorithm>

#include "base/wire.h"
#include "comm/context_impl.h"
#include "comm/peer_impl.h"
#include "comm/transfer.h"

namespace hmc {
namespace {

// Imports one peer may hold.
constexpr std::size_t max_grants = 1 << 18;

}  // namespace

// ---- importer's side ----

Status PeerImpl::start_import(const std::shared_ptr<Request>& request, std::uint64_t& id) {
  id = next_request_++;
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
  HMC_TRY(send_control(wire::import, encode(m)));
  imports_.emplace(id, request);
  return {};
}

Status PeerImpl::start_lookup(const std::shared_ptr<Request>& request, std::string_view name, std::uint64_t& id) {
  id = next_request_++;
  HMC_TRY(send_control(wire::lookup, encode(wire::Lookup{id, std::string(name)})));
  lookups_.emplace(id, request);
  return {};
}

void PeerImpl::forget_request(std::uint64_t id, bool lookup) {
  if (lookup) {
    if (lookups_.erase(id) != 0) static_cast<void>(send_control(wire::lookup_cancel, wire::encode_request(id)));
  } else if (const auto found = imports_.find(id); found != imports_.end()) {
    found->second->remaining = found->second->all_done = nullptr;  // a late answer is released at once
    found->second->record = nullptr;
  }
}

void PeerImpl::answered(const std::shared_ptr<Request>& request, Status status) {
  request->status = std::move(status);
  if (request->remaining != nullptr && request->remaining->fetch_sub(1) == 1) request->all_done->store(1);
  request->remaining = request->all_done = nullptr;
}

void PeerImpl::on_imported(const wire::Answer& m, std::vector<UniqueFd> fds) {
  const auto found = imports_.find(m.request);
  if (found == imports_.end()) return broken("an answer to an import that was not asked for");
  const auto request = std::move(found->second);
  imports_.erase(found);
  if (m.code != Code::ok) {
    answered(request, Status(m.code, "import from " + describe() + ": " + m.message));
    return;
  }
  const auto release = [&] { static_cast<void>(send_control(wire::release, wire::encode_request(m.request))); };
  if (!request->record) return release();
  if (request->slot->state != EndpointSlot::State::ready) {
    release();
    answered(request, request->slot->failure);
    return;
  }
  auto region = request->slot->endpoint->import_region(Blob{m.bytes, std::move(fds)});
  if (!region.ok()) {
    release();
    answered(request, region.status().with_context("importing a buffer of " + describe()));
    return;
  }
  if ((*region)->bytes() != request->record->size) {
    release();
    answered(request, Status(Code::protocol, describe() + " exported " + std::to_string((*region)->bytes()) + " bytes where " +
                                                 std::to_string(request->record->size) + " were named"));
    return;
  }
  if (request->record->find(request->slot) != nullptr) {  // another thread was faster
    release();
  } else {
    request->record->entries.push_back({request->slot, m.request, std::move(*region), {}, false});
  }
  answered(request, {});
}

void PeerImpl::on_found(const wire::Answer& m) {
  const auto found = lookups_.find(m.request);
  if (found == lookups_.end()) return;  // given up; the answer crossed our word
  const auto request = std::move(found->second);
  lookups_.erase(found);
  request->bytes = m.bytes;
  answered(request, m.code == Code::ok ? Status() : Status(m.code, "lookup at " + describe() + ": " + m.message));
}

void PeerImpl::end_requests(const Status& reason) {
  for (auto* table : {&imports_, &lookups_}) {
    for (auto& [id, request] : std::exchange(*table, {})) answered(request, reason);
  }
}

std::shared_ptr<RemoteBufferState> PeerImpl::known_remote(const Descriptor& d) const {
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

void PeerImpl::remember_remote(const std::shared_ptr<RemoteBufferState>& remote) {
  std::erase_if(remotes_, [](const auto& weak) { return weak.expired(); });
  remotes_.push_back(remote);
}

void PeerImpl::retire(const std::shared_ptr<RemoteImport>& record) {
  record->retiring = true;
  settle(record);
}

// Drops the regions of a retired record once nothing is under way on them, puts that completed locally included.
void PeerImpl::settle(const std::shared_ptr<RemoteImport>& record) {
  if (!record->retiring || record->operations != 0 || record->flushing) return;
  class Drained final : public Completion {
   public:
    Drained(std::shared_ptr<PeerImpl> peer, std::shared_ptr<RemoteImport> record)
        : peer_(std::move(peer)), record_(std::move(record)) {}
    void complete(Status) noexcept override {
      const std::unique_ptr<Drained> self(this);
      record_->flushing = false;
      peer_->settle(record_);
    }

   private:
    std::shared_ptr<PeerImpl> peer_;
    std::shared_ptr<RemoteImport> record_;
  };
  if (phase_ == PeerPhase::ready) {
    for (auto& entry : record->entries) {
      if (!entry.slot->unflushed || entry.slot->state != EndpointSlot::State::ready) continue;
      record->flushing = true;
      entry.slot->unflushed = false;
      auto drained = std::make_unique<Drained>(std::static_pointer_cast<PeerImpl>(shared_from_this()), record);
      if (entry.slot->endpoint->flush(drained.get()).ok()) {
        static_cast<void>(drained.release());  // deletes itself
        return;
      }
      record->flushing = false;
    }
  }
  const auto keep = record;
  for (auto& entry : record->entries) {
    entry.region.reset();
    if (entry.request != 0 && !record->acknowledge)
      static_cast<void>(send_control(wire::release, wire::encode_request(entry.request)));
  }
  record->entries.clear();
  std::erase(records_, record);
  if (!std::exchange(record->acknowledge, false)) return;
  for (const auto& other : records_) {
    if (other->acknowledge && other->buffer_id == record->buffer_id && other->generation == record->generation) return;
  }
  static_cast<void>(send_control(wire::revoked, encode(wire::BufferName{record->buffer_id, record->generation})));
}

void PeerImpl::drop_unused(RemoteImport& record, const EndpointSlot* slot) {
  const RemoteImport::Entry* entry = record.find(slot);
  if (entry == nullptr || !entry->prepared.empty() || entry->preparing || record.flushing) return;
  if (entry->request != 0) static_cast<void>(send_control(wire::release, wire::encode_request(entry->request)));
  record.entries.erase(record.entries.begin() + (entry - record.entries.data()));
}

void PeerImpl::drop_entries(RemoteImport& record, const EndpointSlot* slot) {
  if (record.flushing) return;
  std::erase_if(record.entries, [&](const RemoteImport::Entry& entry) {
    if (entry.slot != slot || entry.preparing) return false;
    if (entry.request != 0) static_cast<void>(send_control(wire::release, wire::encode_request(entry.request)));
    return true;
  });
}

// The owner closed the buffer: nothing may touch it once we have acknowledged.
void PeerImpl::on_revoke(const wire::BufferName& name) {
  if (!end_records(name, true)) static_cast<void>(send_control(wire::revoked, encode(name)));
}

bool PeerImpl::end_records(const wire::BufferName& name, bool acknowledge) {
  const Status reason(Code::stale, "buffer " + std::to_string(name.buffer_id) + " of " + describe() + " was closed by its owner");
  std::vector<std::shared_ptr<RemoteImport>> revoked;
  for (const auto& record : records_) {
    if (record->buffer_id == name.buffer_id && record->generation == name.generation) revoked.push_back(record);
  }
  for (const auto& record : revoked) {
    record->alive.store(false);
    record->dead = reason;
    record->acknowledge = acknowledge;
  }
  std::vector<std::shared_ptr<WorkState>> touched;
  for (TransferWork* work = works_; work != nullptr; work = work->next_) {
    for (const auto& record : revoked) {
      if (!work->touches(record.get())) continue;
      touched.push_back(work->shared_from_this());
      break;
    }
  }
  for (const auto& work : touched) static_cast<TransferWork&>(*work).stop(reason);
  for (const auto& record : revoked) retire(record);
  return !revoked.empty();
}

// ---- owner's side ----

void PeerImpl::answer(std::uint64_t request, const Status& status, Bytes bytes, std::vector<UniqueFd> fds, bool lookup) {
  const wire::Answer m{request, status.code(), std::string(status.message()), std::move(bytes)};
  const Status sent = send_control(lookup ? wire::found : wire::imported, encode(m), std::move(fds));
  if (sent.ok() || phase_ != PeerPhase::ready || !status.ok()) return;
  // It cannot be told the answer (descriptors do not cross hosts, ...): it learns that much, and may ask for another transport.
  if (!lookup) on_release(request);
  const wire::Answer refusal{request, Code::unsupported, std::string(sent.message()), {}};
  static_cast<void>(send_control(lookup ? wire::found : wire::imported, encode(refusal)));
}

void PeerImpl::on_import(const wire::Import& m) {
  if (granted_.contains(m.request)) return broken("an import number twice");
  if (granted_.size() >= max_grants) {
    return answer(m.request, Status(Code::out_of_memory, "more than " + std::to_string(max_grants) + " imports held by one peer"));
  }
  auto resolved = context_.resolve(m);
  if (!resolved.ok()) return answer(m.request, resolved.status());
  const auto exposure = std::move(*resolved);
  EndpointSlot* slot = find_slot(m.transport);
  if (slot == nullptr || slot->state == EndpointSlot::State::failed) {
    return answer(m.request, Status(Code::transport, "there is no " + m.transport + " connection to import through"));
  }
  Transport* transport = slot->transport().transport.get();
  if (const auto* region = exposure->registration->find(transport)) return finish_import(m, exposure, **region);
  // Registering may pin memory for seconds: not under the lock, and not on the caller's time.
  auto self = std::static_pointer_cast<PeerImpl>(shared_from_this());
  context_.worker().run([self, m, exposure, transport, held = exposure->registration]() mutable {
    auto region = self->context_.register_region(*held, *transport, Deadline::never());
    const auto lock = self->context_.engine()->lock();
    const auto registration = held;
    self->context_.engine()->retire(std::move(held));  // perhaps the last reference to user memory
    if (self->phase_ != PeerPhase::ready) return;
    if (!region.ok()) return self->answer(m.request, region.status());
    LocalRegion& kept = registration->add(transport, std::move(*region));
    self->finish_import(m, exposure, kept);
    self->context_.engine()->kick();
  });
}

void PeerImpl::finish_import(const wire::Import& m, const std::shared_ptr<Exposure>& exposure, LocalRegion& region) {
  if (exposure->closed.load()) return answer(m.request, Status(Code::stale, "buffer was closed while it was being imported"));
  auto blob = region.exported();
  if (!blob.ok()) return answer(m.request, blob.status());
  if (!granted_.emplace(m.request, Grant{exposure, &region}).second) return broken("an import number twice");
  exposure->registration->grant(&region);
  ++exposure->importers[this];
  answer(m.request, {}, std::move(blob->bytes), std::move(blob->fds));
}

void PeerImpl::on_release(std::uint64_t request) {
  const auto found = granted_.find(request);
  if (found == granted_.end()) return;  // crossed by a revocation
  end_grant(found->second);
  const auto exposure = std::move(found->second.exposure);
  granted_.erase(found);
  context_.engine()->wake_waiters();  // an eviction may wait for it
  if (const auto importer = exposure->importers.find(this); importer != exposure->importers.end() && --importer->second == 0) {
    exposure->importers.erase(importer);
    if (exposure->closed.load()) context_.settle(exposure);
  }
}

void PeerImpl::revoke(const std::shared_ptr<Exposure>& exposure) {
  static_cast<void>(send_control(wire::revoke, encode(wire::BufferName{exposure->id, exposure->generation})));
}

void PeerImpl::on_revoked(const wire::BufferName& name) {
  std::shared_ptr<Exposure> exposure;
  std::erase_if(granted_, [&](const auto& item) {
    const Exposure& one = *item.second.exposure;
    if (one.id != name.buffer_id || one.generation != name.generation || !one.closed.load()) return false;
    end_grant(item.second);
    exposure = item.second.exposure;
    return true;
  });
  if (!exposure) return;
  exposure->importers.erase(this);
  context_.settle(exposure);
}

void PeerImpl::drop_grants() {
  std::vector<std::shared_ptr<Exposure>> exposures;
  for (auto& [request, grant] : granted_) {
    end_grant(grant);
    if (grant.exposure->importers.erase(this) != 0) exposures.push_back(grant.exposure);
  }
  granted_.clear();
  lookup_waiters_.clear();
  for (const auto& exposure : exposures) {
    if (exposure->closed.load()) context_.settle(exposure);
  }
}

std::vector<std::uint64_t> PeerImpl::waiting_lookups(std::string_view name) {
  std::vector<std::uint64_t> requests;
  std::erase_if(lookup_waiters_, [&](const auto& item) {
    if (item.second != name) return false;
    requests.push_back(item.first);
    return true;
  });
  return requests;
}

}  // namespace hmc
