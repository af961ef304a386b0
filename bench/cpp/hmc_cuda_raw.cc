// The baseline of device transfers on NVIDIA: a copy through a mapped IPC handle with peer access, and pinned copies to and from
// the host, by the driver API alone. Two processes; prints JSON lines {"raw": kind, "size": bytes, "seconds": per copy}. Usage:
// hmc_cuda_raw [own device [peer's device]]
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using Pointer = unsigned long long;
using Handle = std::array<char, 64>;
void* library = nullptr;

// Calls the driver, or ends the program with the code.
template <class... Types, class... Values>
void call(int (*)(Types...), const char* name, Values... values) {
  auto* function = reinterpret_cast<int (*)(Types...)>(dlsym(library, name));
  const int code = function == nullptr ? -1 : function(values...);
  if (code == 0) return;
  std::fprintf(stderr, "%s: %d\n", name, code);
  std::exit(1);
}
template <class... Types>
using Signature = int (*)(Types...);

void use_device(int index) {
  int device = 0;
  void* context = nullptr;
  call(Signature<unsigned>{}, "cuInit", 0U);
  call(Signature<int*, int>{}, "cuDeviceGet", &device, index);
  call(Signature<void**, int>{}, "cuDevicePrimaryCtxRetain", &context, device);
  call(Signature<void*>{}, "cuCtxSetCurrent", context);
}

Pointer allocate(std::size_t bytes) {
  Pointer pointer = 0;
  call(Signature<Pointer*, std::size_t>{}, "cuMemAlloc_v2", &pointer, bytes);
  return pointer;
}

template <class Copy>
void measure(const char* kind, std::size_t size, void* stream, const Copy& copy) {
  const auto sync = reinterpret_cast<int (*)(void*)>(dlsym(library, "cuStreamSynchronize"));
  const std::size_t calls = std::clamp<std::size_t>((std::size_t{1} << 30) / size, 8, 500);
  std::vector<double> samples;
  for (int sample = 0; sample < 8; ++sample) {
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < calls; ++i) {
      copy();
      sync(stream);
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (sample != 0) samples.push_back(taken.count() / static_cast<double>(calls));
  }
  std::ranges::sort(samples);
  std::printf("{\"raw\": \"%s\", \"size\": %zu, \"seconds\": %.9f}\n", kind, size, samples[samples.size() / 2]);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const int own = argc > 1 ? std::atoi(argv[1]) : 0;
  const int other = argc > 2 ? std::atoi(argv[2]) : own;
  constexpr std::size_t largest = std::size_t{1} << 30;
  int to_parent[2], to_child[2];
  if (pipe(to_parent) != 0 || pipe(to_child) != 0) return 1;
  const pid_t child = fork();
  Handle handle{};
  char byte = 0;
  if (child == 0) {
    use_device(other);
    call(Signature<Handle*, Pointer>{}, "cuIpcGetMemHandle", &handle, allocate(largest));
    if (write(to_parent[1], handle.data(), handle.size()) != 64) return 1;
    return read(to_child[0], &byte, 1) == 1 ? 0 : 1;
  }
  if (read(to_parent[0], handle.data(), handle.size()) != 64) return 1;
  use_device(own);
  Pointer there = 0;
  void* stream = nullptr;
  void* host = nullptr;
  call(Signature<Pointer*, Handle, unsigned>{}, "cuIpcOpenMemHandle_v2", &there, handle, 1U);
  call(Signature<void**, unsigned>{}, "cuStreamCreate", &stream, 1U);
  call(Signature<void**, std::size_t, unsigned>{}, "cuMemHostAlloc", &host, largest, 1U);
  const Pointer here = allocate(largest);
  const auto on_device = reinterpret_cast<int (*)(Pointer, Pointer, std::size_t, void*)>(dlsym(library, "cuMemcpyDtoDAsync_v2"));
  const auto to_device =
      reinterpret_cast<int (*)(Pointer, const void*, std::size_t, void*)>(dlsym(library, "cuMemcpyHtoDAsync_v2"));
  const auto to_host = reinterpret_cast<int (*)(void*, Pointer, std::size_t, void*)>(dlsym(library, "cuMemcpyDtoHAsync_v2"));
  for (const std::size_t size : {std::size_t{8}, std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{16} << 20,
                                 std::size_t{64} << 20, std::size_t{256} << 20, largest}) {
    measure("ipc", size, stream, [&] { on_device(there, here, size, stream); });
    if (size < (std::size_t{1} << 20)) continue;
    measure("to device", size, stream, [&] { to_device(here, host, size, stream); });
    measure("to host", size, stream, [&] { to_host(host, here, size, stream); });
  }
  if (write(to_child[1], &byte, 1) != 1) return 1;
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
