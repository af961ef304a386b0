// Long work of one call on several threads of the process, which sleep between calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace hmc {

// Threads that a call takes which reads or writes `bytes`: 1 for little, and at most HMC_CPU_THREADS.
std::size_t threads_for(std::uint64_t bytes);

// Calls part(0) to part(count - 1), each once, on this thread and at most `threads` - 1 others, and returns when all have ended.
// Any thread, no lock held. After an exception of `part` no further part begins, and it is thrown here. Where the system gives no
// more threads, those that there are do it.
void in_parallel(std::size_t threads, std::size_t count, const std::function<void(std::size_t)>& part);

}  // namespace hmc
