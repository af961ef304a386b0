#include "transport/ipc/announced.h"

#include "base/wire.h"
#include "transport/ipc/messages.h"

namespace hmc::ipc {

namespace {

constexpr std::size_t max_memories = 1 << 16;  // of one peer

}  // namespace

AnnouncedMemory::AnnouncedMemory(const Bytes& exported, FdGroup group) {
  if (group.cut) {
    failure_ = Status(Code::unsupported, "the descriptors of the memory could not be taken in: too many are open (ulimit -n)");
    return;
  }
  // Without an engine: the table retires all of this, and the worker may be the last to let go.
  auto region = ImportedRegion::import({exported, std::move(group.fds)}, {});
  if (region.ok()) {
    region_.reset(static_cast<ImportedRegion*>(region->release()));
  } else {
    failure_ = region.status();
  }
}

Result<bool> AnnouncedMemory::prepared(const Device& device, Worker& worker) {
  if (!region_) return failure_;
  const std::lock_guard guard(mutex_);
  const auto [place, first] = prepared_for_.try_emplace(device, false);
  if (!first) return place->second;
  Status begun = worker.run([self = shared_from_this(), device] {
    const Status outcome = self->region_->prepare(device);
    const std::lock_guard inner(self->mutex_);
    self->prepared_for_.insert_or_assign(device, outcome.ok() ? Result<bool>(true) : Result<bool>(outcome));
  });
  if (begun.ok()) return false;
  prepared_for_.erase(place);
  return begun;
}

Result<DeviceSpan> AnnouncedMemory::on(const Device& device, bool to_write) {
  if (!region_) return failure_;
  return region_->on(device, to_write);
}

Result<DeviceSpan> AnnouncedRegion::on(const Device& device, bool to_write) {
  HMC_ASSIGN(const DeviceSpan whole, memory_->on(device, to_write));
  if (offset_ > whole.bytes || bytes_ > whole.bytes - offset_) {
    return Status(Code::protocol, "a message's region outside the announced memory");
  }
  return DeviceSpan{static_cast<std::byte*>(whole.data) + offset_, bytes_, whole.device};
}

Status AnnouncedTable::take(DescriptorChannel& channel) {
  while (auto received = channel.receive(max_announcement)) {
    const auto announcement = decode_announcement(received->bytes);
    if (!announcement || memories_.size() >= max_memories) return {Code::protocol, "the peer announced memory that cannot be"};
    auto memory = std::make_shared<AnnouncedMemory>(announcement->exported, std::move(received->group));
    if (!memories_.emplace(announcement->memory, std::move(memory)).second) {
      return {Code::protocol, "the peer announced memory twice"};
    }
  }
  return {};
}

Result<std::shared_ptr<AnnouncedMemory>> AnnouncedTable::find(std::uint64_t id, DescriptorChannel& channel) {
  auto found = memories_.find(id);
  if (found == memories_.end()) {
    HMC_TRY(take(channel));
    found = memories_.find(id);
  }
  if (found == memories_.end()) return Status(Code::protocol, "the peer names memory that it has not announced");
  return found->second;
}

Result<std::unique_ptr<RemoteRegion>> AnnouncedTable::import(const Blob& exported, DescriptorChannel& channel) {
  WireReader reader(exported.bytes);
  reader.u8();  // Kind::announced
  const std::uint64_t id = reader.u64();
  const std::uint64_t offset = reader.u64();
  const std::uint64_t bytes = reader.u64();
  if (!reader.finish() || !exported.fds.empty()) return Status(Code::protocol, "malformed region of announced memory");
  HMC_ASSIGN(auto memory, find(id, channel));
  return std::unique_ptr<RemoteRegion>(
      std::make_unique<AnnouncedRegion>(std::move(memory), offset, static_cast<std::size_t>(bytes)));
}

// Unpinning and unmapping take long: not with the engine lock held.
Status AnnouncedTable::forget(std::uint64_t id, DescriptorChannel& channel) {
  HMC_ASSIGN(auto memory, find(id, channel));
  memories_.erase(id);
  engine_->retire(std::move(memory));
  return {};
}

void AnnouncedTable::clear() {
  for (auto& [id, memory] : std::exchange(memories_, {})) engine_->retire(std::move(memory));
}

}  // namespace hmc::ipc
