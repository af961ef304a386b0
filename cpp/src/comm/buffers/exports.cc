// Slots with generations, nonces, publication, revocation.
#include "comm/buffers/exports.h"

#include <algorithm>

#include "base/random.h"
#include "comm/context_impl.h"
#include "comm/waits.h"

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

Result<std::shared_ptr<BufferState>> Exports::add(const Memory& memory, Access access) {
  HMC_TRY(context_.usable());
  if (!memory.valid())
    return Status(Code::invalid_argument, "register_memory of an empty Memory; allocate or wrap some bytes first");
  if (memory.read_only() && access != Access::read)
    return Status(Code::invalid_argument, "registering read-only memory for writing; register it for reading (access \"r\")");
  HMC_TRY(runtime_for(memory.device()).status());
  HMC_TRY(check_extent({memory.data(), memory.size(), memory.device()}));
  auto exposure = std::make_shared<Exposure>();
  exposure->size = memory.size();
  exposure->access = access;
  exposure->read_only = memory.read_only();
  exposure->device = memory.device();
  exposure->data = memory.data();
  random_bytes(std::as_writable_bytes(std::span(exposure->nonce)));
  const auto lock = context_.engine()->lock();
  HMC_TRY(context_.usable());
  auto registration = context_.regions().get(memory, access);
  ++registration->users;
  std::size_t slot = slots_.size();
  if (free_slots_.empty()) {
    slots_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  exposure->id = slot + 1;
  exposure->generation = ++slots_[slot].generation;
  exposure->registration = registration;
  slots_[slot].open = exposure;
  return std::make_shared<BufferState>(std::static_pointer_cast<ContextImpl>(context_.shared_from_this()), std::move(exposure),
                                       std::move(registration));
}

Descriptor Exports::descriptor_of(const Exposure& exposure) const {
  Descriptor d;
  d.context_id[0] = context_.id()[0];
  d.context_id[1] = context_.id()[1];
  d.buffer_id = exposure.id;
  d.generation = exposure.generation;
  d.size = exposure.size;
  d.nonce[0] = exposure.nonce[0];
  d.nonce[1] = exposure.nonce[1];
  d.device = exposure.device.str();
  d.access = exposure.access;
  return d;
}

std::optional<Descriptor> Exports::find(std::string_view name) const {
  const auto found = published_.find(name);
  if (found == published_.end()) return std::nullopt;
  return descriptor_of(*found->second->exposure);
}

Result<std::shared_ptr<Exposure>> Exports::resolve(const wire::Import& m) const {
  if (m.buffer_id == 0 || m.buffer_id > slots_.size()) return forged(m, "no such buffer");
  const Slot& slot = slots_[m.buffer_id - 1];
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

std::shared_ptr<Exposure> Exports::open(std::uint64_t id, std::uint64_t generation) const {
  if (id == 0 || id > slots_.size() || slots_[id - 1].generation != generation) return nullptr;
  return slots_[id - 1].open;
}

void Exports::begin_close(const std::shared_ptr<Exposure>& exposure) {
  if (exposure->closed.exchange(true)) return;
  const std::size_t slot = exposure->id - 1;
  if (slot < slots_.size() && slots_[slot].open == exposure) {
    slots_[slot].open = nullptr;
    free_slots_.push_back(slot);
  }
  for (auto at = published_.begin(); at != published_.end();) {
    if (at->second->exposure != exposure) {
      ++at;
      continue;
    }
    context_.engine()->retire(std::move(at->second));
    at = published_.erase(at);
  }
  closing_.push_back(exposure);
  for (const auto& [peer, imports] : std::unordered_map(exposure->importers)) peer->grants().revoke(*exposure);
  if (context_.self()) static_cast<PeerImpl&>(*context_.self()).imports().revoke({exposure->id, exposure->generation}, false);
  settle(exposure);
}

void Exports::settle(const std::shared_ptr<Exposure>& exposure) {
  if (!exposure->closed.load() || !exposure->importers.empty() || exposure->local_operations != 0) return;
  const auto keep = exposure;
  if (auto registration = std::move(exposure->registration)) {
    if (--registration->users == 0) registration->clear();
    context_.engine()->retire(std::move(registration));
  }
  std::erase(closing_, exposure);
  context_.engine()->wake_waiters();
}

Status Exports::close(const std::shared_ptr<Exposure>& exposure, Deadline deadline) {
  if (context_.engine()->forked()) return forked_status();
  if (context_.closing().over()) return {};
  const DeviceSpan memory{exposure->data, exposure->size, exposure->device};
  const auto quiet = [&] { return !exposure->registration && !context_.messenger().receives_into(memory); };
  {
    const auto lock = context_.engine()->lock();
    begin_close(exposure);
    if (quiet()) return {};
    context_.engine()->kick();
  }
  if (context_.engine()->drive(deadline, quiet)) return {};
  const auto lock = context_.engine()->lock();
  if (quiet()) return {};
  std::string who;
  for (const auto& [peer, imports] : exposure->importers) who += (who.empty() ? "" : ", ") + peer->describe();
  if (who.empty() && exposure->local_operations != 0)
    who = std::to_string(exposure->local_operations) + " operations of this process";
  if (who.empty()) who = "a receive of this process that is in flight";
  return Status(Code::timeout,
                "the ConnBuffer is closed, but not yet let go by " + who +
                    "; HMC keeps its pages until then, and they may still be written. Call close again to go on waiting");
}

Status Exports::publish(std::string_view name, const ConnBuffer& buffer) {
  HMC_TRY(context_.usable());
  HMC_TRY(check_published_name(name));
  if (!buffer.valid() || buffer.state()->context.get() != &context_) {
    return Status(Code::invalid_argument, "publish \"" + std::string(name) + "\": the buffer is empty or of another Context");
  }
  if (buffer.offset() != 0 || buffer.size() != buffer.state()->exposure->size) {
    return Status(Code::invalid_argument, "publish \"" + std::string(name) +
                                              "\": only whole buffers can be published, not slices; register the slice's memory");
  }
  const auto lock = context_.engine()->lock();
  HMC_TRY(context_.usable());
  if (buffer.state()->exposure->closed.load())
    return Status(Code::closed, "publish \"" + std::string(name) + "\": the buffer is closed");
  if (!published_.emplace(std::string(name), buffer.state()).second) {
    return Status(Code::invalid_argument, "the name \"" + std::string(name) + "\" is taken; unpublish it first");
  }
  const auto descriptor = descriptor_of(*buffer.state()->exposure).serialise();
  for (const auto& [id, peer] : std::map(context_.peers().by_id())) peer->grants().publish(name, descriptor);
  serve_lookups(name, descriptor);
  context_.engine()->kick();
  context_.engine()->wake_waiters();
  return {};
}

Status Exports::unpublish(std::string_view name) {
  HMC_TRY(context_.usable());
  std::shared_ptr<BufferState> buffer;  // ends after the lock
  const auto lock = context_.engine()->lock();
  const auto found = published_.find(name);
  if (found == published_.end()) return Status(Code::invalid_argument, "nothing is published as \"" + std::string(name) + "\"");
  buffer = std::move(found->second);
  published_.erase(found);
  context_.engine()->retire(std::move(buffer));
  return {};
}

void Exports::end_hold() {
  if (--holds_ == 0) context_.engine()->wake_waiters();
}

std::vector<std::shared_ptr<BufferState>> Exports::unpublish_all() {
  std::vector<std::shared_ptr<BufferState>> buffers;
  for (auto& [name, buffer] : std::exchange(published_, {})) buffers.push_back(std::move(buffer));
  return buffers;
}

std::vector<std::shared_ptr<Exposure>> Exports::close_all() {
  for (const Slot& slot : slots_) {
    if (const auto open = slot.open) begin_close(open);  // a reference of our own: begin_close empties the slot
  }
  auto exposures = std::exchange(closing_, {});
  for (const auto& exposure : exposures) {
    exposure->importers.clear();
    settle(exposure);
  }
  return exposures;
}

}  // namespace hmc
