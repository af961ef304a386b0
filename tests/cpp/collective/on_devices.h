// Jobs whose ranks have memory of simulated devices, and what they reduce. For sources that HMC_SIM_CUDA, _ROCM and _MLU are
// defined for.
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "collective/job.h"
#include "device/reduce.h"
#include "device/runtime.h"

namespace hmc::testing {

inline void simulate_vendors() {
  setenv("HMC_CUDA_LIBRARY", HMC_SIM_CUDA, 1);
  setenv("HMC_ROCM_LIBRARY", HMC_SIM_ROCM, 1);
  setenv("HMC_MLU_LIBRARY", HMC_SIM_MLU, 1);
  setenv("HMC_SIM_DEVICES", "2", 0);
}

// Small numbers of either sign: no NaN, whose bits are the reducer's choice.
inline Bytes input(DataType type, std::size_t count, std::size_t rank) {
  Bytes made(count * size_of(type));
  testing::fill_pattern(made, rank * 31 + static_cast<std::size_t>(type));
  if (!is_floating(type)) return made;
  const std::size_t each = size_of(type);
  for (std::size_t i = 0; i < count; ++i) {
    std::byte& top = made[(i + 1) * each - 1];
    if (each == 8 || each == 4) top = (top & std::byte{0x80}) | std::byte{0x3f};
    if (each == 2) top = (top & std::byte{0x83}) | std::byte{0x3c};
    if (each == 1) top = top & std::byte{0xb7};
  }
  return made;
}

inline Bytes expected(const Reduction& reduction, std::size_t count, std::size_t ranks) {
  std::vector<Bytes> inputs;
  std::vector<const void*> sources;
  for (std::size_t r = 0; r < ranks; ++r) inputs.push_back(input(reduction.type, count, r));
  for (const Bytes& each : inputs) sources.push_back(each.data());
  ReduceStep step{.type = reduction.type, .op = reduction.op};
  if (reduction.op == ReduceOp::premul_sum) step.scale = reduction.factor;
  if (reduction.op == ReduceOp::avg) step.divisor = static_cast<std::uint32_t>(ranks);
  Bytes result(count * size_of(reduction.type));
  reduce_on_cpu(result.data(), sources, count, step);
  return result;
}

// Bytes on a device, `offset` off any alignment.
class OnDevice {
 public:
  OnDevice(const Device& device, const Bytes& bytes, std::size_t offset = 0) : offset_(offset), bytes_(bytes.size()) {
    auto memory = Memory::allocate(bytes.size() + offset + guard, device);
    EXPECT_TRUE(memory.ok()) << memory.status().str();
    memory_ = std::move(memory).value();
    HMC_EXPECT_OK(memory_.fill(0x5c));
    HMC_EXPECT_OK(memory_.copy_from_host(bytes.data(), bytes.size(), offset));
  }
  [[nodiscard]] MemoryView view() const {
    MemoryView view(memory_);
    view.data = static_cast<std::byte*>(view.data) + offset_;
    view.bytes = bytes_;
    return view;
  }
  [[nodiscard]] Bytes read() const {
    Bytes bytes(bytes_);
    HMC_EXPECT_OK(memory_.copy_to_host(bytes.data(), bytes.size(), offset_));
    return bytes;
  }
  [[nodiscard]] bool guarded() const {
    Bytes all(memory_.size());
    HMC_EXPECT_OK(memory_.copy_to_host(all.data(), all.size()));
    const auto outside = [&](std::size_t i) { return i < offset_ || i >= offset_ + bytes_; };
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (outside(i) && all[i] != std::byte{0x5c}) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t guard = 5;
  std::size_t offset_, bytes_;
  Memory memory_;
};

// Where a run-time compiler makes the kernel, the CPU reduces until it has.
inline void wait_until_ready(const Device& device, DataType type, std::size_t ranks) {
  if (device.is_cpu() || device.vendor() == "mlu") return;
  const auto runtime = runtime_for(device);
  ASSERT_TRUE(runtime.ok());
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!(*runtime)->compute().prepare_reduction(device.index(), type, ranks).ok()) {
    ASSERT_LT(std::chrono::steady_clock::now(), until);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Likewise, for kernels over mapped memory.
inline void wait_until_mapped(const Member& me, const std::vector<DataType>& types) {
  const auto runtime = runtime_for(me.device());
  ASSERT_TRUE(runtime.ok());
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (const DataType type : types) {
    while (!(*runtime)->compute().prepare_exchange(me.device().index(), type).ok()) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

// A stream of a simulated HIP's device that is busy for a while.
inline StreamHandle busy_stream(const Device& device, const char* simulator) {
  const auto call = [library = dlopen(simulator, RTLD_NOW | RTLD_NOLOAD)](const char* name) {
    void* const found = dlsym(library, name);
    EXPECT_NE(found, nullptr) << name;
    return found;
  };
  void* stream = nullptr;
  EXPECT_EQ(reinterpret_cast<int (*)(int)>(call("hipSetDevice"))(device.index()), 0);
  EXPECT_EQ(reinterpret_cast<int (*)(void**, unsigned)>(call("hipStreamCreateWithFlags"))(&stream, 1), 0);
  const auto pause = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(700)); };
  EXPECT_EQ(reinterpret_cast<int (*)(void*, void (*)(void*), void*)>(call("hipLaunchHostFunc"))(stream, pause, nullptr), 0);
  return reinterpret_cast<StreamHandle>(stream);
}

using Devices = std::vector<const char*>;  // by rank

inline void on_devices(const Devices& devices, const std::function<void(const Member&, const Communicator&)>& body,
                       const char* transports = "", bool breaks = false) {
  run_job(static_cast<int>(devices.size()), [&](const Process& process) {
    simulate_vendors();
    InitOptions options = process.options();
    options.context.transports = transports;
    options.devices = {*Device::parse(devices[static_cast<std::size_t>(process.rank)])};
    const Communicator world = process.init(options);
    ASSERT_TRUE(world.valid());
    body(*world.self(), world);
    if (!breaks) {
      HMC_EXPECT_OK(world.barrier(soon()));
    } else {  // all others have returned as well
      process.board[0].fetch_add(1);
      EXPECT_TRUE(process.board.wait(0, process.size));
    }
  });
}

inline void check_all_reduce(const Member& me, const Reduction& reduction, std::size_t count, bool in_place, std::size_t offset) {
  const auto ranks = static_cast<std::size_t>(me.size());
  SCOPED_TRACE(std::string(name_of(reduction.op)) + " of " + std::to_string(count) + " " + std::string(name_of(reduction.type)));
  const OnDevice in(me.device(), input(reduction.type, count, static_cast<std::size_t>(me.rank())), offset);
  const OnDevice out(me.device(), Bytes(count * size_of(reduction.type), std::byte{0x11}), offset);
  HMC_ASSERT_OK(me.all_reduce(in_place ? in.view() : out.view(), in.view(), reduction, soon()));
  ASSERT_TRUE((in_place ? in : out).read() == expected(reduction, count, ranks));
  ASSERT_TRUE(in.guarded() && out.guarded());
}

}  // namespace hmc::testing
