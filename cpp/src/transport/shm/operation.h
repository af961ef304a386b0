// Operation: one put or get of a shm endpoint that did not end in its post.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/blob.h"
#include "hmc/status.h"
#include "transport/copy.h"
#include "transport/run_cursor.h"
#include "transport/shm/region.h"
#include "transport/transport.h"

namespace hmc::shm {

struct Operation {
  RunCursor cursor;
  Completion* done = nullptr;  // null once told (a put at level local whose chunks are not acknowledged yet)
  std::uint64_t number = 0;    // order of posting; names a get to the peer
  std::size_t bytes = 0;
  std::size_t moved = 0;
  CopyKind kind = CopyKind::cached;
  Complete level = Complete::remote;
  bool is_put = true;
  unsigned in_flight = 0;      // slots filled and not acknowledged
  std::uint64_t awaiting = 0;  // bytes of a get asked for and not here yet
  Status failure;
  Bytes signal;

  [[nodiscard]] bool ended() const noexcept { return in_flight == 0 && awaiting == 0 && (cursor.at_end() || !failure.ok()); }
  // Nothing to do before the peer answers, or at all.
  [[nodiscard]] bool waits() const noexcept { return awaiting != 0 || !failure.ok() || cursor.at_end(); }
};

inline const ShmRemoteRegion& remote_of(const Run& run) noexcept { return static_cast<const ShmRemoteRegion&>(*run.remote); }
inline std::byte* local_data(const Run& run) noexcept { return static_cast<std::byte*>(run.local->view().span.data); }

}  // namespace hmc::shm
