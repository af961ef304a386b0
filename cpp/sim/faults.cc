// Injected errors, and what the libraries export beside the vendor's names: tests drive the simulation by it.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "abi.h"
#include "core.h"
#include "streams.h"

namespace hmc::sim {
namespace {

struct Fault {
  std::string call;
  int left;  // calls until it strikes
  int code;
  std::optional<std::thread::id> thread;  // whose calls count; none: every thread's

  bool counts(std::string_view made) const { return call == made && (!thread || *thread == std::this_thread::get_id()); }
};

// HMC_SIM_FAIL: entries call:nth=code, comma between them. What is not of that form is passed over.
std::vector<Fault> faults_of_environment() {
  std::vector<Fault> faults;
  const char* text = std::getenv("HMC_SIM_FAIL");
  const std::string_view list = text == nullptr ? "" : text;
  for (std::size_t start = 0; start < list.size();) {
    const std::size_t end = std::min(list.find(',', start), list.size());
    const std::string_view entry = list.substr(start, end - start);
    start = end + 1;
    const std::size_t colon = entry.find(':');
    const std::size_t equals = entry.find('=', colon == std::string_view::npos ? 0 : colon);
    if (colon == std::string_view::npos || equals == std::string_view::npos) continue;
    Fault fault{std::string(entry.substr(0, colon)), 0, 0, std::nullopt};
    std::from_chars(entry.data() + colon + 1, entry.data() + equals, fault.left);
    std::from_chars(entry.data() + equals + 1, entry.data() + entry.size(), fault.code);
    if (fault.left > 0 && fault.code != 0) faults.push_back(std::move(fault));
  }
  return faults;
}

struct FaultTable {
  std::mutex mutex;
  std::vector<Fault> faults = faults_of_environment();
  std::atomic<bool> any{!faults.empty()};  // so that a call without faults takes no lock
};
FaultTable& table() {
  static FaultTable& instance = *new FaultTable;
  return instance;
}

int inject(const char* call, int nth_from_now, int code, std::optional<std::thread::id> thread) {
  if (call == nullptr || nth_from_now < 1 || code == 0) return -1;
  FaultTable& all = table();
  const std::lock_guard lock(all.mutex);
  all.faults.push_back({call, nth_from_now, code, thread});
  all.any.store(true, std::memory_order_relaxed);
  return 0;
}

}  // namespace

int injected_error(const char* call) {
  FaultTable& all = table();
  if (!all.any.load(std::memory_order_relaxed)) return 0;
  const std::lock_guard lock(all.mutex);
  int code = 0;
  for (Fault& fault : all.faults) {
    if (fault.counts(call) && --fault.left == 0 && code == 0) code = fault.code;
  }
  std::erase_if(all.faults, [](const Fault& fault) { return fault.left <= 0; });
  all.any.store(!all.faults.empty(), std::memory_order_relaxed);
  return code;
}

void forget_injected_errors() {
  FaultTable& all = table();
  const std::lock_guard lock(all.mutex);
  all.faults.clear();
  all.any.store(false, std::memory_order_relaxed);
}

}  // namespace hmc::sim

// "simulated ...": whoever finds this name in a vendor's library knows that no hardware is behind it.
HMC_SIM_EXPORT const char* hmcsim_description(void) { return hmc::sim::profile.description; }

// The nth call from now (1: the next) of entry point `call` returns the vendor's `code`. 0, or -1 for arguments that say nothing.
HMC_SIM_EXPORT int hmcsim_fail(const char* call, int nth_from_now, int code) {
  return hmc::sim::inject(call, nth_from_now, code, std::nullopt);
}

// The nth that the calling thread makes.
HMC_SIM_EXPORT int hmcsim_fail_here(const char* call, int nth_from_now, int code) {
  return hmc::sim::inject(call, nth_from_now, code, std::this_thread::get_id());
}

// Forgets injected errors that have not struck, and failures of streams.
HMC_SIM_EXPORT void hmcsim_reset(void) {
  hmc::sim::forget_injected_errors();
  hmc::sim::forget_stream_failures();
}
