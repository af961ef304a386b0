#include "transport/run_cursor.h"

#include <string>

namespace hmc {

namespace {

Status out_of_range(std::string_view side, std::size_t index, std::uint64_t offset, std::size_t block, std::size_t size) {
  return Status(Code::invalid_argument, "block " + std::to_string(index) + " at offset " + std::to_string(offset) + " with " +
                                            std::to_string(block) + " bytes lies outside the " + std::string(side) + " region of " +
                                            std::to_string(size) + " bytes");
}

}  // namespace

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
    for (std::size_t i = 0; i < run.count; ++i) {
      if (run.local_offsets[i] > local_last) return out_of_range("local", i, run.local_offsets[i], run.block, local_bytes);
      if (run.remote_offsets[i] > remote_last) return out_of_range("remote", i, run.remote_offsets[i], run.block, remote_bytes);
    }
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(run.count, run.block, &bytes) || __builtin_add_overflow(total, bytes, &total)) {
      return Status(Code::invalid_argument, "the sizes of the runs overflow");
    }
  }
  return total;
}

}  // namespace hmc
