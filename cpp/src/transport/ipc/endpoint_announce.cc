// What the peer needs to reach memory here that no signal can describe: its descriptors go by the channel, before the first signal
// that names it.
#include <algorithm>
#include <string>
#include <utility>

#include "base/wire.h"
#include "transport/ipc/endpoint.h"

namespace hmc::ipc {

namespace {

// Ranges of pieces that stay mapped at the peer for the next message. While they do, their memory is not free although its owner
// may have given it back.
constexpr std::size_t max_held = 32;

bool contains(const DeviceSpan& whole, const DeviceSpan& part) {
  const auto* const from = static_cast<const std::byte*>(whole.data);
  const auto* const at = static_cast<const std::byte*>(part.data);
  return whole.device == part.device && at >= from && at + part.bytes <= from + whole.bytes;
}

}  // namespace

// Known to the peer from the first use on, until the region's end.
Result<std::uint64_t> IpcEndpoint::announce(const HostRegion& region, bool to_write) {
  // Only what a get has to write beyond what peers may: an honest peer cannot write the rest by mistake.
  const Access access = to_write ? Access::read_write : region.view().access;
  const auto known = announced_.find(&region);
  if (known != announced_.end() && (known->second.access == Access::read_write || access == Access::read)) return known->second.id;
  auto exported = region.exported_for(access);
  if (!exported.ok()) {
    return Status(Code::unsupported, std::string(exported.status().message()), exported.status().native());
  }
  HMC_TRY(channel_.send(encode(Announcement{last_memory_ + 1, std::move(exported->bytes)}), exported->fds));
  if (known != announced_.end()) forget(region);
  announced_[&region] = {++last_memory_, access};
  return last_memory_;
}

void IpcEndpoint::forget(const LocalRegion& region) {
  const auto known = announced_.find(&region);
  if (known == announced_.end()) return;
  forget(known->second.id);
  announced_.erase(known);
}

void IpcEndpoint::forget(std::uint64_t memory) {
  outbox_.push_back(encode(Forget{memory}));
  outbox_refused_ = false;
  engine_->kick();
}

Result<const IpcEndpoint::Held*> IpcEndpoint::hold(const DeviceSpan& span) {
  const auto known = std::ranges::find_if(held_, [&](const Held& held) { return contains(held.chunks->span(), span); });
  if (known != held_.end() && known->chunks->in_place()) {
    std::rotate(known, known + 1, held_.end());
    return &held_.back();
  }
  // What its owner has given back is given up.
  std::erase_if(held_, [this](const Held& held) {
    if (held.chunks->in_place()) return false;
    forget(held.id);
    return true;
  });
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(span.device));
  HMC_ASSIGN(auto chunks, runtime->sharing().hold_chunks(span));
  HMC_ASSIGN(const Blob handle, runtime->sharing().export_handle(chunks->span(), HandleKind::chunks));
  const Bytes exported = encode_region(Kind::pieces, chunks->span(), handle.bytes, 0);
  HMC_TRY(channel_.send(encode(Announcement{last_memory_ + 1, exported}), handle.fds));
  if (held_.size() == max_held) {
    forget(held_.front().id);
    held_.pop_front();
  }
  held_.push_back({std::move(chunks), ++last_memory_});
  return &held_.back();
}

Result<Blob> IpcEndpoint::describe(LocalRegion& region) {
  auto exported = region.exported();
  const DeviceSpan& span = region.view().span;
  if (exported.ok() || span.device.is_cpu() || exported.status().code() == Code::invalid_argument) return exported;
  if (stopped()) return not_ready();
  const auto held = hold(span);
  if (held.status().code() == Code::would_block) return held.status();
  if (!held.ok()) {
    const Status& refused = exported.status();
    return Status(refused.code(), std::string(refused.message()) + ", and " + std::string(held.status().message()),
                  refused.native());
  }
  const auto* const base = static_cast<const std::byte*>((*held)->chunks->span().data);
  Blob blob;
  WireWriter writer(blob.bytes);
  writer.u8(static_cast<std::uint8_t>(Kind::announced)).u64((*held)->id);
  writer.u64(static_cast<std::uint64_t>(static_cast<const std::byte*>(span.data) - base)).u64(span.bytes);
  return blob;
}

Result<std::unique_ptr<RemoteRegion>> IpcEndpoint::import_region(const Blob& exported) {
  const bool announced = !exported.bytes.empty() && exported.bytes[0] == static_cast<std::byte>(Kind::announced);
  if (announced) return memories_.import(exported, channel_);
  return ImportedRegion::import(exported, {messages_, shared_->engine});
}

}  // namespace hmc::ipc
