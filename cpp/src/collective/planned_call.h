// PlannedCall: what repeated calls have in common, besides their memory.
#pragma once

#include <optional>

#include "collective/fused/one_shot.h"
#include "collective/plan.h"
#include "device/exchange.h"

namespace hmc {

struct PlannedCall {
  Schedule schedule;
  std::optional<Schedule> staged = std::nullopt;        // where the device reduces: what the CPU does if that has no scratch memory
  std::optional<fused::Way> way = std::nullopt;         // over shared memory
  std::optional<ExchangeCall> exchange = std::nullopt;  // of the rank's kernel, but for its numbers and its arithmetic
};

}  // namespace hmc
