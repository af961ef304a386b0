// Threads of HMC: named, with signals blocked so that the application's handlers run on the application's threads. A thread's own
// faults are not: the system would end the process without the application's handler, which prints where it was.
#pragma once

#include <functional>
#include <memory>
#include <thread>

namespace hmc {

// Null when the system refuses another thread. `name` is cut to 15 characters.
std::unique_ptr<std::thread> start_thread(const char* name, std::function<void()> body);

}  // namespace hmc
