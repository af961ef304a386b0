#include "device/accelerator_copies.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "device/accelerator_streams.h"

namespace hmc {
namespace {

// Copies up to this size do not queue behind longer ones.
constexpr std::size_t short_copy_bytes = 64 << 10;
// The copy engine takes some microseconds for each block. Longer blocks take so long on PCIe that it no longer matters.
constexpr std::size_t longest_bus_block = 512 << 10;
// Of peer access, before the vendor is asked again.
constexpr auto refused_for = std::chrono::seconds(1);

}  // namespace

// Long copies on the device and between devices take the stream with the fewest under way. One after the other, an all-to-all among
// four cards had half the speed: every rank, so we think, first fetched from the one that had announced first. Kernels stay in
// turn: each takes the multiprocessors that it may.
Result<CopyStream*> AcceleratorCopies::stream_for(AcceleratorDevice& device, CopyDirection direction, std::size_t bytes,
                                                  bool in_blocks) {
  const bool is_long = bytes > short_copy_bytes;
  std::size_t chosen = static_cast<std::size_t>(direction) * 2 + (is_long ? 1 : 0);
  if (is_long && direction == CopyDirection::on_device && !in_blocks) {
    for (std::size_t other = AcceleratorDevice::compute_stream + 1; other < device.streams.size(); ++other) {
      if (device.streams[other].pending.size() < device.streams[chosen].pending.size()) chosen = other;
    }
  }
  return devices_.stream(device, chosen);
}

int AcceleratorCopies::issue(const CopyOp& op, CopyDirection direction, bool one_launch, VendorStream stream, std::size_t& issued) {
  auto* target = static_cast<std::byte*>(op.target.data);
  const auto* source = static_cast<const std::byte*>(op.source.data);
  if (op.blocks == 0) {
    const int code = calls_.copies->copy(target, source, op.source.bytes, direction, stream);
    issued += code == 0 ? 1 : 0;
    return code;
  }
  if (one_launch) {
    const Device& by = direction == CopyDirection::to_device ? op.target.device : op.source.device;
    const BlockWay way = direction != CopyDirection::on_device  ? BlockWay::over_bus
                         : op.target.device == op.source.device ? BlockWay::on_device
                                                                : BlockWay::between_devices;
    const int code = calls_.copies->copy_blocks(
        by.index(), {target, source, op.target_offsets, op.source_offsets, op.blocks, op.block_bytes, way}, stream, issued);
    if (code == 0 || issued > 0) return code;
  }
  for (; issued < op.blocks; ++issued) {
    const int code = calls_.copies->copy(target + op.target_offsets[issued], source + op.source_offsets[issued], op.block_bytes,
                                         direction, stream);
    if (code != 0) return code;
  }
  return 0;
}

Status AcceleratorCopies::start(AcceleratorDevice& device, CopyStream& stream, const CopyOp& op, CopyDirection direction,
                                bool one_launch, Completion* done) {
  if (op.after != nullptr) {
    const int code = calls_.streams->wait(stream.handle, static_cast<const AcceleratorPoint*>(op.after)->event());
    if (code != 0) return devices_.failure("ordering a copy of " + devices_.vendor() + " behind the caller's stream", code);
  }
  std::size_t issued = 0;
  const int code = issue(op, direction, one_launch, stream.handle, issued);
  Status failed;
  if (code != 0) {
    failed = devices_.failure(
        "copying " + std::to_string(op.source.bytes) + " bytes from " + op.source.device.str() + " to " + op.target.device.str(),
        code);
    if (issued == 0) return failed;
  }
  devices_.leave_event(device, stream, done, std::move(failed));
  return {};
}

bool AcceleratorCopies::in_one_launch(AcceleratorDevice& device, int index, const CopyOp& op) {
  if (op.blocks < 2) return false;
  const bool from_host = op.source.device.is_cpu();
  if (from_host || op.target.device.is_cpu()) {
    const std::span<const std::uint64_t> offsets(from_host ? op.source_offsets : op.target_offsets, op.blocks);
    const auto [first, last] = std::ranges::minmax(offsets);
    const auto* const host = static_cast<const std::byte*>(from_host ? op.source.data : op.target.data);
    if (op.block_bytes > longest_bus_block || !pinned_.contains(host + first, host + last + op.block_bytes)) return false;
  }
  if (calls_.copies->blocks_prepared(index)) return true;
  return devices_.load(device, std::chrono::milliseconds(0), [&] { return calls_.copies->prepare_blocks(index); }) == 0;
}

// Without peer access the vendor's copies go through the host by themselves: slower, and the bytes are the same. A kernel would
// fault. The vendor may refuse for the moment, for want of memory.
bool AcceleratorCopies::reach(AcceleratorDevice& device, std::size_t other) {
  AcceleratorDevice::Peer& peer = device.peers[other];
  if (peer.reached) return true;
  const auto now = std::chrono::steady_clock::now();
  if (now < peer.retry_at) return false;
  peer.reached = calls_.devices->enable_peer(static_cast<int>(other)) == 0;
  peer.retry_at = now + refused_for;
  return peer.reached;
}

Status AcceleratorCopies::copy(const CopyOp& op, Completion* done) {
  const bool from_host = op.source.device.is_cpu();
  const bool to_host = op.target.device.is_cpu();
  const CopyDirection direction = from_host ? CopyDirection::to_device
                                  : to_host ? CopyDirection::to_host
                                            : CopyDirection::on_device;
  // Between two devices the source's pushes.
  const int index = from_host ? op.target.device.index() : op.source.device.index();
  HMC_ASSIGN(AcceleratorDevice * on, devices_.device(index));
  const DeviceScope scope(*calls_.devices, index);
  if (scope.code() != 0) return devices_.unusable(index, scope.code());
  bool one_launch = in_one_launch(*on, index, op);
  const std::scoped_lock lock(on->mutex);
  // What waits on the device may fill it, and wait for these very bytes: the copy engine gets past it.
  if (direction != CopyDirection::on_device && waits(*on)) one_launch = false;
  if (direction == CopyDirection::on_device && op.target.device != op.source.device) {
    HMC_TRY(devices_.device(op.target.device.index()).status());
    const bool reached = reach(*on, static_cast<std::size_t>(op.target.device.index()));
    one_launch = one_launch && reached;
  }
  HMC_ASSIGN(CopyStream * chosen,
             stream_for(*on, direction, op.blocks == 0 ? op.source.bytes : op.blocks * op.block_bytes, op.blocks != 0));
  return start(*on, *chosen, op, direction, one_launch, done);
}

bool AcceleratorCopies::poll() {
  if (!devices_.is_open() || devices_.forked()) return false;
  struct Ended {
    Completion* done;
    Status status;
  };
  std::array<Ended, 32> ended;  // a bounded turn; the rest at the next
  std::size_t count = 0;
  const auto all = devices_.all();
  for (std::size_t index = 0; index < all.size(); ++index) {
    const auto& each = all[index];
    if (each->pending.load(std::memory_order_relaxed) == 0) continue;
    const std::scoped_lock lock(each->mutex);
    const auto take_ended = [&](CopyStream& stream) {
      if (stream.pending.empty()) return;
      for (std::size_t over = devices_.over(static_cast<int>(index), stream, ended.size() - count); over != 0; --over) {
        PendingCopy& oldest = stream.pending.front();
        ended[count++] = {oldest.done, std::move(oldest.failure)};
        if (oldest.event != nullptr) each->free_events.push_back(oldest.event);
        stream.pending.pop_front();
        each->pending.fetch_sub(1);
      }
    };
    for (CopyStream& stream : each->streams) take_ended(stream);
    for (CopyStream& stream : each->exchange_streams) take_ended(stream);
  }
  for (std::size_t i = 0; i < count; ++i) ended[i].done->complete(std::move(ended[i].status));
  return count != 0;
}

}  // namespace hmc
