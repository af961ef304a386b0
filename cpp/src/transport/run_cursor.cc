#include "transport/run_cursor.h"

#include <algorithm>
#include <string>

namespace hmc {

namespace {

Status out_of_range(std::string_view side, std::size_t index, std::uint64_t offset, std::size_t block, std::size_t size) {
  return Status(Code::invalid_argument, "block " + std::to_string(index) + " at offset " + std::to_string(offset) + " with " +
                                            std::to_string(block) + " bytes lies outside the " + std::string(side) + " region of " +
                                            std::to_string(size) + " bytes");
}

}  // namespace

std::size_t first_beyond(const std::uint64_t* offsets, std::size_t count, std::uint64_t last) noexcept {
  constexpr std::uint64_t sign = std::uint64_t{1} << 63;
  // A branch per offset costs more than all the rest: the sign says which of two numbers below 2^63 is the greater.
  std::uint64_t bits = last;
  for (std::size_t i = 0; i < count; ++i) bits |= offsets[i] | (last - offsets[i]);
  if ((bits & sign) == 0) return count;
  return static_cast<std::size_t>(std::find_if(offsets, offsets + count, [=](std::uint64_t at) { return at > last; }) - offsets);
}

Result<std::size_t> check_runs(std::span<const Run> runs) {
  std::size_t total = 0;
  for (const Run& run : runs) {
    if (run.count == 0 || run.block == 0) continue;
    if (run.local == nullptr || run.remote == nullptr || run.local_offsets == nullptr || run.remote_offsets == nullptr) {
      return Status(Code::invalid_argument, "a run lacks a region or its offsets");
    }
    const std::size_t local_bytes = run.local->view().span.bytes;
    const std::size_t remote_bytes = run.remote->bytes();
    if (run.block > local_bytes) return out_of_range("local", 0, run.local_offsets[0], run.block, local_bytes);
    if (run.block > remote_bytes) return out_of_range("remote", 0, run.remote_offsets[0], run.block, remote_bytes);
    const std::uint64_t local_last = local_bytes - run.block;
    const std::uint64_t remote_last = remote_bytes - run.block;
    if (const std::size_t i = first_beyond(run.local_offsets, run.count, local_last); i != run.count) {
      return out_of_range("local", i, run.local_offsets[i], run.block, local_bytes);
    }
    if (const std::size_t i = first_beyond(run.remote_offsets, run.count, remote_last); i != run.count) {
      return out_of_range("remote", i, run.remote_offsets[i], run.block, remote_bytes);
    }
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(run.count, run.block, &bytes) || __builtin_add_overflow(total, bytes, &total)) {
      return Status(Code::invalid_argument, "the sizes of the runs overflow");
    }
  }
  return total;
}

}  // namespace hmc
