// KernelCompiler: HIP's run-time compiler (hiprtc), for kernels of which no one binary fits every card.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "device/kernel_api.h"
#include "device/library.h"

// clang-format off
#define HMC_COMPILER_CALLS(CALL)                                                                                       \
  CALL(create, hiprtcCreateProgram, int(Program*, const char*, const char*, int, const char**, const char**)) \
  CALL(compile, hiprtcCompileProgram, int(Program, int, const char**))                                                  \
  CALL(log_bytes, hiprtcGetProgramLogSize, int(Program, std::size_t*))                                                 \
  CALL(log, hiprtcGetProgramLog, int(Program, char*))                                                                  \
  CALL(code_bytes, hiprtcGetCodeSize, int(Program, std::size_t*))                                                      \
  CALL(code, hiprtcGetCode, int(Program, char*))                                                                       \
  CALL(destroy, hiprtcDestroyProgram, int(Program*))
// clang-format on

namespace hmc {
namespace compiler {

using Program = void*;
struct Api {
  HMC_COMPILER_CALLS(HMC_CALL_MEMBER)
};

}  // namespace compiler

// A kernel's source: `defines`, lines, and `text`.
struct KernelSource {
  std::string name;
  std::string defines;
  const char* text;
};

// Compiling takes a good part of a second, so a thread of its own does it, once per kernel and device; the process does not end
// before it.
// Any thread.
class KernelCompiler {
 public:
  explicit KernelCompiler(const LibraryRow& row) noexcept : library_(row) {}

  // Opens the compiler: `runtime` itself where that has its calls (ROCm up to 6), else the library of the row.
  [[nodiscard]] bool available(const VendorLibrary& runtime);
  // `source` for `device`, pending at first. `enter` makes the device current on the thread that compiles.
  kernel::Image compile(const VendorLibrary& runtime, KernelSource source, int device, std::function<void()> enter);

 private:
  struct Build {
    bool pending = true;
    std::string code;           // empty: refused
    std::uint64_t builder = 0;  // the thread that compiles; 0: none, or it was joined
  };
  bool open(const VendorLibrary& runtime);
  [[nodiscard]] std::string build(const KernelSource& source) const;

  VendorLibrary library_;
  std::mutex mutex_;  // of what follows
  bool opened_ = false;
  compiler::Api api_;
  std::map<std::pair<int, std::string>, Build> builds_;  // by device and name
};

}  // namespace hmc
