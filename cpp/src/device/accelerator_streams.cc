// Accelerator: streams of callers.
#include "device/accelerator_point.h"

namespace hmc {
namespace {

VendorStream stream_of(StreamHandle stream) { return stream == default_stream ? nullptr : reinterpret_cast<VendorStream>(stream); }

}  // namespace

Status Accelerator::stream_failure(const std::string& what, int code) const {
  const Status status = failure(what, code);
  if (code != calls_.traits.codes.invalid_handle) return status;
  return Status(Code::invalid_argument, std::string(status.message()) + "; is the stream one of that very device?", code);
}

Result<std::shared_ptr<StreamPoint>> Accelerator::mark(int index, StreamHandle stream) {
  HMC_ASSIGN(PerDevice * on, device(index));
  const DeviceScope scope(*calls_.devices, index);
  if (scope.code() != 0) return failure(name(index) + " cannot be used", scope.code());
  const std::scoped_lock lock(on->mutex);
  HMC_ASSIGN(const VendorEvent made, event(*on));
  if (const int code = calls_.streams->record(made, stream_of(stream)); code != 0) {
    on->free_events.push_back(made);
    return stream_failure("recording an event on the caller's stream of " + name(index), code);
  }
  return std::shared_ptr<StreamPoint>(std::make_shared<Point>(*this, *on, made));
}

Status Accelerator::hold(int index, StreamHandle stream, std::shared_ptr<const StreamGate> gate) {
  HMC_TRY(device(index).status());
  const DeviceScope scope(*calls_.devices, index);
  if (scope.code() != 0) return failure(name(index) + " cannot be used", scope.code());
  auto held = std::make_unique<std::shared_ptr<const StreamGate>>(std::move(gate));
  const auto wait = [](void* data) {
    const std::unique_ptr<std::shared_ptr<const StreamGate>> mine(static_cast<std::shared_ptr<const StreamGate>*>(data));
    (*mine)->wait();
  };
  if (const int code = calls_.streams->call_host(stream_of(stream), wait, held.get()); code != 0) {
    return stream_failure("making a stream of " + name(index) + " wait", code);
  }
  static_cast<void>(held.release());  // the callback's
  return {};
}

}  // namespace hmc
