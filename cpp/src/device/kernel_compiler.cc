#include "device/kernel_compiler.h"

#include <unistd.h>

#include <map>
#include <memory>
#include <utility>

#include "base/fork.h"
#include "base/log.h"
#include "base/thread.h"

namespace hmc {
namespace {

// Threads that compile. At the end of the process they are waited for: the compiler does not survive its own static objects.
class Builders {
 public:
  ~Builders() { end(); }
  // The thread's number; 0: the system gives no thread, or the process ends.
  std::uint64_t start(std::function<void()> function) {
    const std::scoped_lock lock(mutex_);
    if (ended_) return 0;
    auto thread = start_thread("hmc-compile", std::move(function));
    if (!thread) return 0;
    threads_.emplace(++last_, std::move(thread));
    return last_;
  }
  // Of a thread that has done its work.
  void join(std::uint64_t number) {
    const std::scoped_lock lock(mutex_);
    if (auto found = threads_.extract(number)) found.mapped()->join();
  }
  // Waits for each; no further one starts.
  void end() {
    if (epoch_ != fork_epoch()) {
      for (auto& [number, thread] : threads_) static_cast<void>(thread.release());  // it exists in the parent only
      return;
    }
    std::map<std::uint64_t, std::unique_ptr<std::thread>> threads;
    {
      const std::scoped_lock lock(mutex_);
      ended_ = true;
      threads.swap(threads_);
    }
    for (auto& [number, thread] : threads) thread->join();
  }

 private:
  std::mutex mutex_;
  bool ended_ = false;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, std::unique_ptr<std::thread>> threads_;
  const std::uint32_t epoch_ = fork_epoch();
};

Builders& builders() {
  static Builders all;
  return all;
}

// A compiler makes some of its static objects at its first program, after builders() was made, and they are destroyed before it.
// What is thread-local to the thread that ends the process is destroyed before all of them: to the main thread in most programs,
// which has loaded HMC.
struct EndOfMainThread {
  ~EndOfMainThread() {
    if (getpid() == gettid()) builders().end();
  }
};
thread_local const EndOfMainThread end_of_main_thread;
[[maybe_unused]] const auto* const made_on_loading = &end_of_main_thread;

void refused(const KernelSource& source, int code, const std::string& text) {
  const std::string why = text.empty() ? std::string() : ": " + text.substr(0, text.find('\n'));
  log(LogLevel::warning, "the run-time compiler refused the kernel " + source.name + " (code " + std::to_string(code) + ")" + why +
                             "; HMC does without it: blocks are copied one by one, the CPU reduces and converts");
}

}  // namespace

bool KernelCompiler::open(const VendorLibrary& runtime) {
  if (!opened_) {
    opened_ = true;
    const bool own = runtime.symbol("hiprtcCreateProgram") == nullptr;
    if (own) {
      if (const Status status = library_.open(); !status.ok())
        log(LogLevel::info, "no run-time compiler: " + std::string(status.message()));
    }
    const VendorLibrary& from = own ? library_ : runtime;
#define HMC_WANT(member, name, ...) from.load(api_.member, #name);
    HMC_COMPILER_CALLS(HMC_WANT)
#undef HMC_WANT
  }
  bool all = true;
#define HMC_HAVE(member, ...) all = all && api_.member != nullptr;
  HMC_COMPILER_CALLS(HMC_HAVE)
#undef HMC_HAVE
  return all;
}

bool KernelCompiler::available(const VendorLibrary& runtime) {
  const std::scoped_lock lock(mutex_);
  return open(runtime);
}

// Compiled for the device that is current, which is what hiprtc does when no architecture is named.
std::string KernelCompiler::build(const KernelSource& source) const {
  compiler::Program program = nullptr;
  const std::string all = source.defines + source.text;
  if (const int code = api_.create(&program, all.c_str(), source.name.c_str(), 0, nullptr, nullptr); code != 0) {
    refused(source, code, {});
    return {};
  }
  std::string result;
  std::size_t bytes = 0;
  int code = api_.compile(program, 0, nullptr);
  if (code == 0 && (code = api_.code_bytes(program, &bytes)) == 0) {
    result.resize(bytes);
    code = api_.code(program, result.data());
  }
  if (code != 0) {
    result.clear();
    std::string text;
    if (api_.log_bytes(program, &bytes) == 0 && bytes > 1) {
      text.resize(bytes);
      if (api_.log(program, text.data()) != 0) text.clear();
    }
    refused(source, code, text);
  }
  static_cast<void>(api_.destroy(&program));
  return result;
}

kernel::Image KernelCompiler::compile(const VendorLibrary& runtime, KernelSource source, int device, std::function<void()> enter) {
  const std::scoped_lock lock(mutex_);
  if (!open(runtime)) return {};
  const auto [found, added] = builds_.try_emplace({device, source.name});
  Build& made = found->second;
  if (added) {
    made.builder = builders().start([this, &made, source = std::move(source), enter = std::move(enter)] {
      enter();
      std::string code = build(source);
      const std::scoped_lock ready(mutex_);
      made.code = std::move(code);
      made.pending = false;
    });
    made.pending = made.builder != 0;
  }
  if (!made.pending && made.builder != 0) builders().join(std::exchange(made.builder, 0));
  return {made.code.empty() ? nullptr : made.code.data(), made.pending};
}

}  // namespace hmc
