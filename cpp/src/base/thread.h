// Threads of HMC: named, with every signal blocked so that the application's handlers run on the application's threads.
#pragma once

#include <functional>
#include <memory>
#include <thread>

namespace hmc {

// Null when the system refuses another thread. `name` is cut to 15 characters.
std::unique_ptr<std::thread> start_thread(const char* name, std::function<void()> body);

}  // namespace hmc
