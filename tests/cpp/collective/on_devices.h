// Jobs whose ranks have memory of simulated devices, and what they reduce. For sources that HMC_SIM_CUDA, _ROCM and _MLU are
// defined for.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collective/job.h"
#include "collective/reduction_data.h"
#include "device/runtime.h"

namespace hmc::testing {

inline void simulate_vendors() {
  setenv("HMC_CUDA_LIBRARY", HMC_SIM_CUDA, 1);
  setenv("HMC_ROCM_LIBRARY", HMC_SIM_ROCM, 1);
  setenv("HMC_MLU_LIBRARY", HMC_SIM_MLU, 1);
  setenv("HMC_SIM_DEVICES", "2", 0);
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
  // What lies before and behind is as it was.
  [[nodiscard]] bool guarded() const {
    const auto untouched = [this](std::size_t from, std::size_t count) {
      Bytes found(count);
      HMC_EXPECT_OK(memory_.copy_to_host(found.data(), count, from));
      return found == Bytes(count, std::byte{0x5c});
    };
    return untouched(0, offset_) && untouched(offset_ + bytes_, guard);
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
inline void wait_until_mapped(const Device& device, const std::vector<DataType>& types) {
  const auto runtime = runtime_for(device);
  ASSERT_TRUE(runtime.ok());
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (const DataType type : types) {
    while (!(*runtime)->compute().prepare_exchange(device.index(), type).ok()) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

// When a stream of busy_stream() becomes idle.
struct Busy {
  std::chrono::milliseconds longest{700};
  std::shared_ptr<std::atomic<bool>> over = std::make_shared<std::atomic<bool>>(false);
};

// A stream of a simulated HIP's device that is busy for as long as `busy` says.
inline StreamHandle busy_stream(const Device& device, const char* simulator, const Busy& busy = {}) {
  const auto call = [library = dlopen(simulator, RTLD_NOW | RTLD_NOLOAD)](const char* name) {
    void* const found = dlsym(library, name);
    EXPECT_NE(found, nullptr) << name;
    return found;
  };
  void* stream = nullptr;
  EXPECT_EQ(reinterpret_cast<int (*)(int)>(call("hipSetDevice"))(device.index()), 0);
  EXPECT_EQ(reinterpret_cast<int (*)(void**, unsigned)>(call("hipStreamCreateWithFlags"))(&stream, 1), 0);
  const auto pause = [](void* given) {
    const std::unique_ptr<Busy> until(static_cast<Busy*>(given));
    const auto latest = std::chrono::steady_clock::now() + until->longest;
    while (!*until->over && std::chrono::steady_clock::now() < latest) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  EXPECT_EQ(reinterpret_cast<int (*)(void*, void (*)(void*), void*)>(call("hipLaunchHostFunc"))(stream, pause, new Busy(busy)), 0);
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
