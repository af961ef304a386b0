// ContextImpl: buffers that peers may import. Slots with generations, nonces, publication, revocation.
#include <unistd.h>

#include <algorithm>

#include "base/random.h"
#include "comm/context_impl.h"

namespace hmc {
namespace {

// In constant time: the time of a refusal must not tell how much of a guess was right.
bool same_nonce(const std::uint64_t (&a)[2], const std::uint64_t (&b)[2]) noexcept {
  volatile std::uint64_t difference = (a[0] ^ b[0]) | (a[1] ^ b[1]);
  return difference == 0;
}

Status forged(const wire::Import& m, std::string_view why) {
  return Status(Code::authentication, "the descriptor of buffer " + std::to_string(m.buffer_id) +
                                          " is not one that was given away here (" + std::string(why) + ")");
}

}  // namespace

Result<std::shared_ptr<BufferState>> ContextImpl::expose(const Memory& memory, Access access) {
  HMC_TRY(usable());
  if (!memory.valid())
    return Status(Code::invalid_argument, "register_memory of an empty Memory; allocate or wrap some bytes first");
  HMC_TRY(runtime_for(memory.device()).status());
  auto exposure = std::make_shared<Exposure>();
  exposure->size = memory.size();
  exposure->access = access;
  exposure->device = memory.device();
  random_bytes(std::as_writable_bytes(std::span(exposure->nonce)));
  const auto lock = engine_->lock();
  HMC_TRY(usable());
  bool hit = false;
  auto registration = registrations_.get(memory, access, hit);
  count(hit ? "registration_cache.hits" : "registration_cache.misses", 1);
  ++registration->users;
  std::size_t slot = buffer_slots_.size();
  if (free_slots_.empty()) {
    buffer_slots_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  exposure->id = slot + 1;
  exposure->generation = ++buffer_slots_[slot].generation;
  exposure->registration = registration;
  buffer_slots_[slot].open = exposure;
  return std::make_shared<BufferState>(std::static_pointer_cast<ContextImpl>(shared_from_this()), std::move(exposure),
                                       std::move(registration));
}

Descriptor ContextImpl::descriptor_of(const Exposure& exposure) const {
  Descriptor d;
  d.context_id[0] = id_[0];
  d.context_id[1] = id_[1];
  d.buffer_id = exposure.id;
  d.generation = exposure.generation;
  d.size = exposure.size;
  d.nonce[0] = exposure.nonce[0];
  d.nonce[1] = exposure.nonce[1];
  d.device = exposure.device.str();
  d.access = exposure.access;
  return d;
}

Result<std::shared_ptr<Exposure>> ContextImpl::resolve(const wire::Import& m) {
  if (m.buffer_id == 0 || m.buffer_id > buffer_slots_.size()) return forged(m, "no such buffer");
  const BufferSlot& slot = buffer_slots_[m.buffer_id - 1];
  if (m.generation == 0 || m.generation > slot.generation) return forged(m, "no such generation");
  if (m.generation != slot.generation || !slot.open) {
    return Status(Code::stale, "buffer " + std::to_string(m.buffer_id) +
                                   " was closed or registered anew since its descriptor was made; " +
                                   "get a new descriptor from its owner");
  }
  if (!same_nonce(slot.open->nonce, m.nonce)) return forged(m, "wrong nonce");
  if (m.size != slot.open->size) return forged(m, "wrong size");
  if (m.access == Access::read_write && slot.open->access != Access::read_write) return forged(m, "it may only be read");
  return slot.open;
}

void ContextImpl::begin_close(const std::shared_ptr<Exposure>& exposure) {
  if (exposure->closed.exchange(true)) return;
  const std::size_t slot = exposure->id - 1;
  if (slot < buffer_slots_.size() && buffer_slots_[slot].open == exposure) {
    buffer_slots_[slot].open = nullptr;
    free_slots_.push_back(slot);
  }
  for (auto at = published_.begin(); at != published_.end();) {
    if (at->second->exposure != exposure) {
      ++at;
      continue;
    }
    engine_->retire(std::move(at->second));
    at = published_.erase(at);
  }
  closing_buffers_.push_back(exposure);
  for (const auto& [peer, imports] : std::unordered_map(exposure->importers)) peer->revoke(exposure);
  if (self_) static_cast<PeerImpl&>(*self_).revoke_own(*exposure);
  settle(exposure);
}

void ContextImpl::settle(const std::shared_ptr<Exposure>& exposure) {
  if (!exposure->closed.load() || !exposure->importers.empty() || exposure->local_operations != 0) return;
  const auto keep = exposure;
  if (auto registration = std::move(exposure->registration)) {
    if (--registration->users == 0) registration->clear();
    engine_->retire(std::move(registration));
  }
  for (auto* closer : std::exchange(exposure->closers, {})) closer->store(1);
  std::erase(closing_buffers_, exposure);
  engine_->wake_waiters();
}

Status ContextImpl::close_buffer(const std::shared_ptr<Exposure>& exposure, Deadline deadline) {
  if (fork_epoch_ != fork_epoch()) return forked_status();
  if (shut_down_.load()) return {};
  std::atomic<std::uint32_t> quiet{0};
  {
    const auto lock = engine_->lock();
    begin_close(exposure);
    if (!exposure->registration) return {};
    exposure->closers.push_back(&quiet);
    engine_->kick();
  }
  const bool done = engine_->drive_flag(deadline, quiet);
  const auto lock = engine_->lock();
  std::erase(exposure->closers, &quiet);
  if (done || quiet.load() != 0) return {};
  std::string who;
  for (const auto& [peer, imports] : exposure->importers) who += (who.empty() ? "" : ", ") + peer->describe();
  if (who.empty()) who = std::to_string(exposure->local_operations) + " operations of this process";
  return Status(Code::timeout,
                "the ConnBuffer is closed, but not yet let go by " + who +
                    "; HMC keeps its pages until then, and they may still be written. Call close again to go on waiting");
}

Status ContextImpl::publish(std::string_view name, const ConnBuffer& buffer) {
  HMC_TRY(usable());
  if (name.empty() || name.size() > wire::max_name) {
    return Status(Code::invalid_argument, "a published name has 1 to 255 bytes, this one " + std::to_string(name.size()));
  }
  if (!buffer.valid() || buffer.state()->context.get() != this) {
    return Status(Code::invalid_argument, "publish \"" + std::string(name) + "\": the buffer is empty or of another Context");
  }
  if (buffer.offset() != 0 || buffer.size() != buffer.state()->exposure->size) {
    return Status(Code::invalid_argument, "publish \"" + std::string(name) +
                                              "\": only whole buffers can be published, not slices; register the slice's memory");
  }
  const auto lock = engine_->lock();
  HMC_TRY(usable());
  if (buffer.state()->exposure->closed.load())
    return Status(Code::closed, "publish \"" + std::string(name) + "\": the buffer is closed");
  if (!published_.emplace(std::string(name), buffer.state()).second) {
    return Status(Code::invalid_argument, "the name \"" + std::string(name) + "\" is taken; unpublish it first");
  }
  const auto descriptor = descriptor_of(*buffer.state()->exposure).serialise();
  for (const auto& [id, peer] : std::map(peers_)) {
    for (const std::uint64_t request : peer->waiting_lookups(name)) peer->answer(request, {}, descriptor, {}, true);
  }
  engine_->kick();
  engine_->wake_waiters();
  return {};
}

Status ContextImpl::unpublish(std::string_view name) {
  HMC_TRY(usable());
  std::shared_ptr<BufferState> buffer;  // ends after the lock
  const auto lock = engine_->lock();
  const auto found = published_.find(name);
  if (found == published_.end()) return Status(Code::invalid_argument, "nothing is published as \"" + std::string(name) + "\"");
  buffer = std::move(found->second);
  published_.erase(found);
  engine_->retire(std::move(buffer));
  return {};
}

Result<std::shared_ptr<LocalRegion>> ContextImpl::transient_region(Route& route, const MemoryView& view) {
  RegionView region;
  region.span = DeviceSpan{view.data, view.bytes, view.device};
  region.transient = true;
  HMC_ASSIGN(auto made, route.transport->register_region(region));
  return std::shared_ptr<LocalRegion>(std::move(made));
}

}  // namespace hmc
