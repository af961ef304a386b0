// What the simulated copy engines do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core.h"
#include "streams.h"

namespace hmc::sim {

// What a caller says of an end of a copy. Pinned host memory passes for both, as the vendors map it into the device.
enum class Side { any, host, device };

// Copies between device memory of this library and memory that it does not know, which is taken for the host's: pageable or pinned,
// read and written by the kernel, so that an address that cannot be accessed (another vendor's device memory, say) is an error
// instead of a fault. A range that leaves its allocation is invalid_value at once. Asynchronous copies of pageable memory are
// asynchronous here too: the memory must stay as it is until the stream has passed them.
Error copy(void* target, const void* source, std::size_t bytes, Side target_side, Side source_side, const StreamRef& stream);
// As copy(), done on return; memory that cannot be accessed is invalid_value.
Error copy_blocking(void* target, const void* source, std::size_t bytes, Side target_side, Side source_side,
                    const StreamRef& stream);
// Where this library itself reaches `bytes` of device or pinned memory, for what a kernel does. The memory stays while `hold`
// lives.
Error reach(const void* pointer, std::size_t bytes, std::byte** reached, std::shared_ptr<void>& hold);
// By the calling thread, in no stream's order: for what a stream does.
Error copy_now(void* target, const void* source, std::size_t bytes, Side target_side, Side source_side);
// Device or pinned memory.
Error fill(void* target, int value, std::size_t bytes, const StreamRef& stream);
Error fill_blocking(void* target, int value, std::size_t bytes, const StreamRef& stream);
// cuLaunchHostFunc and its kin.
Error call_host(void (*function)(void*), void* argument, const StreamRef& stream);

// Stream-ordered writes of, and waits for, 4 or 8 bytes (`width`) of device or pinned memory, aligned.
enum class Compare { greater_or_equal, equal, any_bit, not_all_bits };
Error write_value(void* target, std::uint64_t value, std::size_t width, const StreamRef& stream);
Error wait_value(const void* source, std::uint64_t value, std::size_t width, Compare compare, const StreamRef& stream);

}  // namespace hmc::sim
