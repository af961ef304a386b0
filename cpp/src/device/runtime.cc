#include "device/runtime.h"

#include <sched.h>

#include <algorithm>

namespace hmc {

void BlockingCompletion::complete(Status status) noexcept {
  status_ = std::move(status);
  done_.store(true, std::memory_order_release);
}

Status BlockingCompletion::wait(DeviceRuntime& runtime) {
  while (!done_.load(std::memory_order_acquire)) {
    if (!runtime.poll()) sched_yield();
  }
  return status_;
}

namespace {

Status copy_with(DeviceRuntime& runtime, const DeviceSpan& target, const DeviceSpan& source) {
  BlockingCompletion done;
  HMC_TRY(runtime.copy({.target = target, .source = source}, &done));
  return done.wait(runtime);
}

// Between two vendors: through host memory, a piece at a time.
Status copy_staged(const DeviceSpan& target, const DeviceSpan& source) {
  constexpr std::size_t piece = std::size_t{4} << 20;
  HMC_ASSIGN(DeviceRuntime * reader, runtime_for(source.device));
  HMC_ASSIGN(DeviceRuntime * writer, runtime_for(target.device));
  HMC_ASSIGN(DeviceRuntime * host, runtime_for(Device::cpu()));
  HMC_ASSIGN(auto stage, host->allocate(0, std::min(piece, source.bytes), {}));
  for (std::size_t offset = 0; offset < source.bytes; offset += piece) {
    const std::size_t n = std::min(piece, source.bytes - offset);
    const DeviceSpan middle{stage->span().data, n, Device::cpu()};
    HMC_TRY(copy_with(*reader, middle, {static_cast<std::byte*>(source.data) + offset, n, source.device}));
    HMC_TRY(copy_with(*writer, {static_cast<std::byte*>(target.data) + offset, n, target.device}, middle));
  }
  return {};
}

}  // namespace

Result<DeviceRuntime*> runtime_for(const Device& device) {
  for (const auto* factory : device_runtimes()) {
    if (factory->vendor == device.vendor()) return &factory->instance();
  }
  return Status(Code::unsupported, "no runtime for " + device.str() + " is compiled in");
}

PointerInfo classify_pointer(const void* data, std::size_t bytes) {
  for (const auto* factory : device_runtimes()) {
    if (factory->vendor == "cpu") continue;
    if (auto info = factory->instance().classify(data, bytes)) return *info;
  }
  return {};
}

Status copy_blocking(const DeviceSpan& target, const DeviceSpan& source) {
  if (target.bytes != source.bytes) {
    return Status(Code::invalid_argument, "copy of " + std::to_string(source.bytes) + " bytes into " +
                                              std::to_string(target.bytes) + ": sizes must be equal");
  }
  if (source.bytes == 0) return {};
  const bool two_vendors = !target.device.is_cpu() && !source.device.is_cpu() && target.device.vendor() != source.device.vendor();
  if (two_vendors) return copy_staged(target, source);
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(target.device.is_cpu() ? source.device : target.device));
  return copy_with(*runtime, target, source);
}

Status synchronize_stream(const Device& device, StreamHandle stream) {
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device));
  HMC_ASSIGN(const auto point, runtime->streams().mark(device.index(), stream));
  while (true) {
    HMC_ASSIGN(const bool reached, point->reached());
    if (reached) return {};
    sched_yield();
  }
}

}  // namespace hmc
