#include "kernels.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "abi.h"
#include "copies.h"

namespace hmc::sim {
namespace {

constexpr const char* block_kernel = "hmc_copy_blocks";
constexpr const char* every_kernel = "hmc_";
constexpr unsigned most_threads = 1024;

std::atomic<std::uint64_t> launches{0};

struct Modules {
  std::mutex mutex;
  std::map<void*, std::string> loaded;
  std::map<void*, std::string> kernels;
  std::uintptr_t next = 0x4b000000;
  void* new_handle() { return reinterpret_cast<void*>(next += 16); }
};
Modules& modules() {
  static Modules& instance = *new Modules;
  return instance;
}

struct Blocks {
  std::uint64_t target, source, target_offsets, source_offsets, count, bytes;
  unsigned width;
};

Blocks blocks_of(void** arguments) {
  const auto word = [&](int i) { return *static_cast<const std::uint64_t*>(arguments[i]); };
  return {word(0), word(1), word(2), word(3), word(4), word(5), *static_cast<const unsigned*>(arguments[6])};
}

// A thread that leaves its memory faults, and so does one that is not aligned to what it moves at a time.
Error copy_blocks(const Blocks& blocks) {
  const auto at = [](std::uint64_t address) { return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address)); };
  std::vector<std::uint64_t> to(blocks.count), from(blocks.count);
  const std::size_t bytes = blocks.count * sizeof(std::uint64_t);
  for (const auto& [table, into] : {std::pair(blocks.target_offsets, &to), std::pair(blocks.source_offsets, &from)}) {
    std::byte* there = nullptr;
    std::shared_ptr<void> hold;
    if (reach(at(table), bytes, &there, hold) != Error::ok) return Error::illegal_address;
    std::memcpy(into->data(), there, bytes);
  }
  for (std::size_t i = 0; i < blocks.count; ++i) {
    const std::uint64_t target = blocks.target + to[i];
    const std::uint64_t source = blocks.source + from[i];
    if ((target | source | blocks.bytes) % blocks.width != 0) return Error::illegal_address;
    if (copy_now(at(target), at(source), blocks.bytes, Side::device, Side::device) != Error::ok) return Error::illegal_address;
  }
  return Error::ok;
}

Error prepare_blocks(const Launch& launch, std::function<Error()>& work) {
  const Blocks blocks = blocks_of(launch.arguments);
  if (blocks.width != 1 && blocks.width != 4 && blocks.width != 8 && blocks.width != 16) return Error::invalid_value;
  work = [blocks] { return copy_blocks(blocks); };
  return Error::ok;
}

}  // namespace

bool can_run(const char* image) { return image != nullptr && std::strstr(image, every_kernel) != nullptr; }

Error load_module(const char* image, void** module) {
  if (image == nullptr || module == nullptr) return Error::invalid_value;
  Modules& all = modules();
  const std::lock_guard lock(all.mutex);
  *module = all.new_handle();
  all.loaded[*module] = image;
  return Error::ok;
}

Error find_kernel(void* module, const char* name, void** kernel) {
  if (name == nullptr || kernel == nullptr) return Error::invalid_value;
  Modules& all = modules();
  const std::lock_guard lock(all.mutex);
  const auto found = all.loaded.find(module);
  if (found == all.loaded.end()) return Error::invalid_handle;
  if (found->second.find(name) == std::string::npos) return Error::not_found;
  *kernel = all.new_handle();
  all.kernels[*kernel] = name;
  return Error::ok;
}

Error launch(void* kernel, const Launch& launch, const StreamRef& stream) {
  Modules& all = modules();
  std::string name;
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.kernels.find(kernel);
    if (found == all.kernels.end()) return Error::invalid_handle;
    name = found->second;
  }
  if (!stream) return Error::invalid_handle;
  const bool fits = launch.groups > 0 && launch.threads > 0 && launch.threads <= most_threads && launch.arguments != nullptr;
  if (!fits) return Error::invalid_value;
  std::function<Error()> work;
  Error error = name == block_kernel ? prepare_blocks(launch, work) : prepare_reduce(name, launch, work);
  if (error == Error::not_found) error = prepare_mapped(name, launch, work);
  if (error == Error::not_found) error = prepare_pages(name, launch, work);
  if (error == Error::not_found) error = prepare_weighted_sum(name, launch, work);
  if (error != Error::ok) return error == Error::not_found ? Error::invalid_handle : error;
  launches.fetch_add(1);
  submit(stream, std::move(work));
  return Error::ok;
}

}  // namespace hmc::sim

// Kernels launched so far.
HMC_SIM_EXPORT std::uint64_t hmcsim_launches(void) { return hmc::sim::launches.load(); }
