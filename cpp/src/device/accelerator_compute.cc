#include "device/accelerator_compute.h"

#include <chrono>
#include <string>

#include "device/accelerator_exchange.h"
#include "device/accelerator_streams.h"

namespace hmc {
namespace {

// A reduction that does not find its kernel is the CPU's, until nothing waits; messages in place of a kernel cost more.
constexpr std::chrono::milliseconds no_patience{0}, exchange_patience{100};

}  // namespace

Status AcceleratorCompute::fill(const DeviceSpan& target, std::uint8_t value) {
  if (target.bytes == 0) return {};
  const int index = target.device.index();
  HMC_ASSIGN(AcceleratorDevice * on, devices_.device(index));
  BlockingCompletion done;
  {
    const DeviceScope scope(*calls_.devices, index);
    if (scope.code() != 0) return devices_.unusable(index, scope.code());
    const std::scoped_lock lock(on->mutex);
    HMC_ASSIGN(CopyStream * stream, devices_.stream(*on, AcceleratorDevice::compute_stream));
    if (const int code = calls_.copies->fill(target.data, value, target.bytes, stream->handle); code != 0) {
      return devices_.failure("filling " + std::to_string(target.bytes) + " bytes on " + devices_.name(index), code);
    }
    devices_.leave_event(*on, *stream, &done, {});
  }
  return done.wait(runtime_);
}

template <typename Kernels>
Status AcceleratorCompute::prepare(Kernels* kernels, int index, DataType type, std::string_view what,
                                   std::chrono::milliseconds patience) {
  HMC_ASSIGN(AcceleratorDevice * on, devices_.device(index));
  if (kernels == nullptr) return Status(Code::unsupported, "HMC has no kernel for " + devices_.vendor());
  int code = 0;
  if (kernels->prepared(index, type)) {
    code = kernels->prepare(index, type);  // known: nothing of the vendor's is called
  } else {
    const DeviceScope scope(*calls_.devices, index);
    if (scope.code() != 0) return devices_.unusable(index, scope.code());
    code = devices_.load(*on, patience, [&] { return kernels->prepare(index, type); });
  }
  if (code == 0) return {};
  return devices_.failure(
      "loading the kernel that " + std::string(what) + " " + std::string(name_of(type)) + " on " + devices_.name(index), code);
}

Status AcceleratorCompute::prepare_reduction(int index, DataType type, std::size_t sources) {
  if (sources > most_reduced_sources) {
    return Status(Code::unsupported, "a device reduces at most " + std::to_string(most_reduced_sources) + " arrays at once");
  }
  return prepare(calls_.compute.get(), index, type, "reduces", no_patience);
}

Status AcceleratorCompute::reduce(const ReductionOp& op, Completion* done) {
  const int index = op.target.device.index();
  HMC_TRY(prepare_reduction(index, op.step.type, op.sources.size()));
  HMC_ASSIGN(AcceleratorDevice * on, devices_.device(index));
  const DeviceScope scope(*calls_.devices, index);
  if (scope.code() != 0) return devices_.unusable(index, scope.code());
  const std::scoped_lock lock(on->mutex);
  HMC_ASSIGN(CopyStream * stream, devices_.stream(*on, AcceleratorDevice::compute_stream));
  for (const StreamPoint* point : op.after) {
    if (point == nullptr) continue;
    const int code = calls_.streams->wait(stream->handle, static_cast<const AcceleratorPoint*>(point)->event());
    if (code != 0) return devices_.failure("ordering a reduction of " + devices_.vendor() + " behind the caller's stream", code);
  }
  const VendorReduction reduction{op.target.data, op.sources, op.target.bytes / size_of(op.step.type), op.step};
  if (const int code = calls_.compute->reduce(index, reduction, stream->handle); code != 0) {
    return devices_.failure("reducing " + std::to_string(op.target.bytes) + " bytes on " + devices_.name(index), code);
  }
  devices_.leave_event(*on, *stream, done, {});
  return {};
}

Status AcceleratorCompute::prepare_exchange(int index, DataType type) {
  return prepare(calls_.exchange.get(), index, type, "exchanges", exchange_patience);
}

Result<std::unique_ptr<DeviceExchange>> AcceleratorCompute::open_exchange(int index, std::uint32_t ranks) {
  HMC_ASSIGN(std::unique_ptr<AcceleratorExchange> made, AcceleratorExchange::open(devices_, index, ranks));
  const DeviceSpan segment = made->segment();
  HMC_TRY(fill({segment.data, static_cast<std::size_t>(exchange_segment(ranks).slots_at), segment.device}, 0));
  return std::unique_ptr<DeviceExchange>(std::move(made));
}

Status AcceleratorCompute::reach(int index, int other) {
  HMC_TRY(devices_.device(index).status());
  HMC_TRY(devices_.device(other).status());
  const DeviceScope scope(*calls_.devices, index);
  if (scope.code() != 0) return devices_.unusable(index, scope.code());
  const int code = calls_.devices->enable_peer(other);
  if (code == 0) return {};
  return devices_.failure(devices_.name(index) + " does not reach the memory of " + devices_.name(other), code);
}

}  // namespace hmc
