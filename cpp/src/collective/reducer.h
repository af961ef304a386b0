// Reductions that take longer than the engine lock may be held: one thread of the process, started at first use, asleep when idle.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "device/reduce.h"
#include "progress/work_state.h"

namespace hmc {

// Engine lock held. Runs `job` without it, on the thread of the reductions. It cannot be cancelled.
std::shared_ptr<WorkState> run_in_background(const std::shared_ptr<Engine>& engine, std::function<Status()> job);

// Engine lock held. As reduce_on_cpu() of `bytes` from each source; the memory belongs to the call until the Work completes. It
// cannot be cancelled.
std::shared_ptr<WorkState> reduce_in_background(const std::shared_ptr<Engine>& engine, void* target,
                                                std::vector<const void*> sources, std::size_t bytes, const ReduceStep& step);

}  // namespace hmc
