// Host copy kernels shared by the transports that copy on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/run_cursor.h"

namespace hmc {

// Operations of at least this many bytes use stores that bypass the cache: the data would evict everything else and each line of
// the target would be read before it is overwritten. libc decides by the size of one call, and these come in slices and blocks.
inline constexpr std::size_t streaming_threshold = 8 << 20;

enum class CopyKind : std::uint8_t { cached, streaming };
inline CopyKind copy_kind_for(std::size_t operation_bytes) noexcept {
  return operation_bytes >= streaming_threshold ? CopyKind::streaming : CopyKind::cached;
}

// Not overlapping. After streaming copies call copy_fence() before telling anybody that the bytes are there.
void copy_bytes(std::byte* target, const std::byte* source, std::size_t bytes, CopyKind kind) noexcept;
// Orders streaming stores before later ones; nothing for cached copies.
void copy_fence(CopyKind kind) noexcept;

// Moves at most `budget` bytes between the mapped memory of one run's two regions, from the cursor on, and advances it. Returns
// bytes. The fence is the caller's.
std::size_t copy_run(RunCursor& cursor, std::byte* local_base, std::byte* remote_base, bool to_remote, std::size_t budget,
                     CopyKind kind) noexcept;

}  // namespace hmc
