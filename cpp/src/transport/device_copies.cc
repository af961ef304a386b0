#include "transport/device_copies.h"

#include <algorithm>
#include <limits>

namespace hmc {

namespace {

// Of one operation, handed to a runtime at once.
constexpr std::size_t max_copies = 256;
// Blocks of one copy: few launches where the device has a kernel for them, each with what a launch costs, else a call of the
// vendor's for each. Those from or to the CPU are always the latter, and vendors queue about a thousand before they make the caller
// wait.
constexpr std::size_t device_blocks = 1 << 16;
constexpr std::size_t host_blocks = 64;
constexpr std::size_t max_host_copies = 16;

DeviceSpan part_of(const DeviceSpan& whole, std::uint64_t offset, std::size_t bytes) {
  return {static_cast<std::byte*>(whole.data) + offset, bytes, whole.device};
}

}  // namespace

std::size_t DeviceCopies::hand(DeviceRuntime& runtime, RunCursor& cursor, const Ends& ends, bool to_remote,
                               const StreamPoint* after) {
  const bool host = ends.local.device.is_cpu() || ends.remote.device.is_cpu();
  const Run& run = cursor.run();
  const std::size_t blocks = ends.apart ? 1 : std::min(run.count - cursor.block_index(), host ? host_blocks : device_blocks);
  if (pending() >= (host && blocks > 1 ? max_host_copies : max_copies)) return 0;
  CopyOp copy;
  copy.after = after;
  if (blocks == 1) {
    const RunPiece piece = cursor.peek(std::numeric_limits<std::size_t>::max());
    const DeviceSpan here = part_of(ends.local, piece.local_offset, piece.bytes);
    const DeviceSpan there = part_of(ends.remote, piece.remote_offset, piece.bytes);
    copy.target = to_remote ? there : here;
    copy.source = to_remote ? here : there;
  } else {
    const std::uint64_t* const here = run.local_offsets + cursor.block_index();
    const std::uint64_t* const there = run.remote_offsets + cursor.block_index();
    copy.target = to_remote ? ends.remote : ends.local;
    copy.source = to_remote ? ends.local : ends.remote;
    copy.target_offsets = to_remote ? there : here;
    copy.source_offsets = to_remote ? here : there;
    copy.blocks = blocks;
    copy.block_bytes = run.block;
  }
  cursor.advance_blocks(blocks);
  start(runtime, copy);
  return blocks * run.block;
}

}  // namespace hmc
