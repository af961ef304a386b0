#include "progress/in_parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "base/env.h"
#include "base/per_process.h"
#include "progress/worker.h"

namespace hmc {
namespace {

constexpr std::uint64_t bytes_per_thread = 512 << 10;  // 70 us of one thread; to wake another takes 10
constexpr std::size_t most_threads = 64;

// The helper threads of the process. A call for `count` asks the first ones, so that few threads serve most calls.
struct Helpers {
  std::mutex mutex;
  std::vector<std::unique_ptr<Worker>> workers;

  std::vector<Worker*> first(std::size_t count) {
    const std::scoped_lock lock(mutex);
    while (workers.size() < count) workers.push_back(std::make_unique<Worker>());
    std::vector<Worker*> found;
    for (std::size_t i = 0; i < count; ++i) found.push_back(workers[i].get());
    return found;
  }
};
constinit PerProcess<Helpers> helpers;

// One call. A helper that comes when all parts are taken finds nothing to do, and nobody waits for it.
class Parts {
 public:
  Parts(std::size_t count, const std::function<void(std::size_t)>& part) : count_(count), part_(part) {}

  void help() {
    {
      const std::scoped_lock lock(mutex_);
      if (over_) return;
      ++helping_;
    }
    run();
    const std::scoped_lock lock(mutex_);
    if (--helping_ == 0) none_helps_.notify_one();
  }
  void run() {
    try {
      for (std::size_t next = taken_++; next < count_; next = taken_++) part_(next);
    } catch (...) {
      taken_ = count_;
      const std::scoped_lock lock(mutex_);
      if (!thrown_) thrown_ = std::current_exception();
    }
  }
  void end() {
    std::unique_lock lock(mutex_);
    over_ = true;
    none_helps_.wait(lock, [this] { return helping_ == 0; });
    if (thrown_) std::rethrow_exception(thrown_);
  }

 private:
  const std::size_t count_;
  const std::function<void(std::size_t)>& part_;  // of the caller; not used once it is over
  std::atomic<std::size_t> taken_ = 0;
  std::mutex mutex_;
  std::condition_variable none_helps_;
  std::size_t helping_ = 0;
  bool over_ = false;
  std::exception_ptr thrown_;
};

}  // namespace

std::size_t threads_for(std::uint64_t bytes) {
  if (bytes < 2 * bytes_per_thread) return 1;
  const std::size_t processors = std::max(std::thread::hardware_concurrency(), 1U);
  const auto usual = static_cast<std::int64_t>(std::clamp<std::size_t>(processors / 2, std::min<std::size_t>(processors, 2), 8));
  const auto most = static_cast<std::uint64_t>(env_integer("HMC_CPU_THREADS", usual, 1, most_threads));
  return static_cast<std::size_t>(std::min(most, bytes / bytes_per_thread));
}

void in_parallel(std::size_t threads, std::size_t count, const std::function<void(std::size_t)>& part) {
  threads = std::min(threads, count);
  const auto parts = std::make_shared<Parts>(count, part);
  if (threads > 1) {
    try {
      for (Worker* const worker : helpers.get().first(threads - 1)) {
        if (!worker->run([parts] { parts->help(); }).ok()) break;
      }
    } catch (const std::bad_alloc&) {  // goes on with the helpers asked so far, which use `part`
    }
  }
  parts->run();
  parts->end();
}

}  // namespace hmc
