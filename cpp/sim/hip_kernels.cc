// Simulated HIP: modules, kernels and the run-time compiler, which ROCm had in the same library until 6.
#include <cstring>
#include <string>
#include <thread>

#include "abi.h"
#include "kernels.h"
#include "streams.h"

using hmc::sim::cuda_code;
using hmc::sim::Error;
namespace sim = hmc::sim;

#define HMC_SIM_ENTER_MODULE \
  if (const int code_ = sim::injected_error(__func__); code_ != 0) return code_

extern "C" int hipGetDevice(int* device);

namespace {

constexpr int attribute_multiprocessors = 63;
constexpr int compilation_failed = 6;

struct Program {
  std::string source;
  std::string code;
  std::string log;
};

// As the real compiler does, this one makes at its first program what it compiles with, and has nothing after the process's end.
class Grammar {
 public:
  ~Grammar() { keyword_ = nullptr; }
  [[nodiscard]] bool accepts(const std::string& source) const { return source.find(*keyword_) != std::string::npos; }

 private:
  const std::string word_ = "__global__";
  const std::string* keyword_ = &word_;
};

const Grammar& grammar() {
  static const Grammar only;
  return only;
}

int give(const std::string& text, char* to) {
  std::memcpy(to, text.c_str(), text.size() + 1);
  return 0;
}

}  // namespace

HMC_SIM_EXPORT int hipModuleLoadData(void** module, const void* image) {
  HMC_SIM_ENTER_MODULE;
  if (!sim::can_run(static_cast<const char*>(image))) return sim::cuda_not_supported;  // callers copy instead
  return cuda_code(sim::load_module(static_cast<const char*>(image), module));
}

HMC_SIM_EXPORT int hipModuleGetFunction(void** function, void* module, const char* name) {
  HMC_SIM_ENTER_MODULE;
  return cuda_code(sim::find_kernel(module, name, function));
}

HMC_SIM_EXPORT int hipModuleLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                         unsigned block_y, unsigned block_z, unsigned /*shared_bytes*/, void* stream,
                                         void** arguments, void** extra) {
  HMC_SIM_ENTER_MODULE;
  int device = 0;
  if (extra != nullptr || hipGetDevice(&device) != 0) return cuda_code(Error::invalid_value);
  const sim::Launch launch{grid_x * grid_y * grid_z, block_x * block_y * block_z, arguments};
  return cuda_code(sim::launch(function, launch, sim::find_stream(stream, device)));
}

HMC_SIM_EXPORT int hipDeviceGetAttribute(int* value, int attribute, int device) {
  HMC_SIM_ENTER_MODULE;
  if (value == nullptr || attribute != attribute_multiprocessors) return cuda_code(Error::invalid_value);
  if (!sim::device_exists(device)) return cuda_code(Error::invalid_device);
  *value = 1;
  return 0;
}

HMC_SIM_EXPORT int hiprtcCreateProgram(Program** program, const char* source, const char* /*name*/, int headers,
                                       const char** /*texts*/, const char** /*names*/) {
  HMC_SIM_ENTER_MODULE;
  if (program == nullptr || source == nullptr || headers != 0) return 3;  // HIPRTC_ERROR_INVALID_INPUT
  *program = new Program{source, {}, {}};
  return 0;
}

// Compiles what names a kernel; the code is the source. It takes as long as an operation of a stream.
HMC_SIM_EXPORT int hiprtcCompileProgram(Program* program, int /*options*/, const char** /*texts*/) {
  HMC_SIM_ENTER_MODULE;
  const Grammar& rules = grammar();
  std::this_thread::sleep_for(sim::delay());
  if (!rules.accepts(program->source)) {
    program->log = "error: no kernel\n";
    return compilation_failed;
  }
  program->code = program->source;
  return 0;
}

HMC_SIM_EXPORT int hiprtcGetProgramLogSize(Program* program, std::size_t* bytes) {
  HMC_SIM_ENTER_MODULE;
  *bytes = program->log.size() + 1;
  return 0;
}

HMC_SIM_EXPORT int hiprtcGetProgramLog(Program* program, char* log) {
  HMC_SIM_ENTER_MODULE;
  return give(program->log, log);
}

HMC_SIM_EXPORT int hiprtcGetCodeSize(Program* program, std::size_t* bytes) {
  HMC_SIM_ENTER_MODULE;
  *bytes = program->code.size() + 1;
  return 0;
}

HMC_SIM_EXPORT int hiprtcGetCode(Program* program, char* code) {
  HMC_SIM_ENTER_MODULE;
  return give(program->code, code);
}

HMC_SIM_EXPORT int hiprtcDestroyProgram(Program** program) {
  HMC_SIM_ENTER_MODULE;
  delete *program;
  *program = nullptr;
  return 0;
}
