// Copies of rows in different places.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "hmc/deadline.h"
#include "hmc/device.h"
#include "hmc/export.h"
#include "hmc/status.h"

namespace hmc {

struct RowCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
};

// Copies under way. A copy of this object, and one that is moved to, stands for the same copies. Any thread.
class HMC_API RowCopies {
 public:
  RowCopies() noexcept = default;  // none
  // Copies rows of `row_bytes` each, in memory that `by` reaches, which is not checked; no target overlaps another row. That device
  // copies, where HMC has a kernel for it by one launch, behind no stream; the processor copies inside the call. The memory stays
  // until the rows are in place, whatever becomes of the object: `keep`, which may be null, is held until then.
  // Errors: unsupported (no such device), device.
  [[nodiscard]] static Result<RowCopies> start(std::span<const RowCopy> rows, std::size_t row_bytes, const Device& by,
                                               std::shared_ptr<const void> keep = {});
  // Until the rows are in place. Errors: timeout (they are still copied), device, closed (in a child of fork()).
  [[nodiscard]] Status wait(Deadline deadline = Deadline::never()) const;

 private:
  class State;
  std::shared_ptr<State> state_;  // null: all are in place
};

}  // namespace hmc
