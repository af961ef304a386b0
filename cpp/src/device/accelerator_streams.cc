#include "device/accelerator_streams.h"

#include <chrono>
#include <utility>

#include "base/log.h"
#include "device/accelerator_queue.h"

namespace hmc {
namespace {

// After which a stream that waits for the host is worth a word.
constexpr std::chrono::milliseconds long_hold(5000);

void wait_at(const StreamGate& gate, const std::string& device) {
  if (gate.wait_for(long_hold)) return;
  // Seen on CUDA: the loader of a kernel waits for all streams, and keeps every other call waiting, those too that would open
  // this gate.
  warn_once("long hold of " + device,
            "a stream of " + device + " has waited for the host for " + std::to_string(long_hold.count() / 1000) +
                " s (stream= of a call that the host carries out, or Work.join). If it never ends, the program loads a "
                "kernel meanwhile: CUDA_MODULE_LOADING=EAGER loads them at its start");
  gate.wait();
}

}  // namespace

Result<bool> AcceleratorPoint::reached() {
  if (devices_.forked()) return forked_status();
  const int code = devices_.calls().streams->query(event_);
  const VendorCodes& codes = devices_.calls().traits.codes;
  if (code == codes.not_ready[0] || code == codes.not_ready[1]) return false;
  if (code != 0) return devices_.failure("the caller's stream of " + devices_.vendor(), code);
  return true;
}

Status AcceleratorStreams::failure(const std::string& what, int code) const {
  const Status status = devices_.failure(what, code);
  if (code != devices_.calls().traits.codes.invalid_handle) return status;
  return Status(Code::invalid_argument, std::string(status.message()) + "; is the stream one of that very device?", code);
}

Result<std::shared_ptr<StreamPoint>> AcceleratorStreams::mark(int index, StreamHandle stream) {
  HMC_ASSIGN(AcceleratorDevice * on, devices_.device(index));
  const DeviceScope scope(*devices_.calls().devices, index);
  if (scope.code() != 0) return devices_.unusable(index, scope.code());
  const std::scoped_lock lock(on->mutex);
  HMC_ASSIGN(const VendorEvent made, devices_.event(*on));
  if (const int code = devices_.calls().streams->record(made, vendor_stream(stream)); code != 0) {
    on->free_events.push_back(made);
    return failure("recording an event on the caller's stream of " + devices_.name(index), code);
  }
  return std::shared_ptr<StreamPoint>(std::make_shared<AcceleratorPoint>(devices_, *on, made));
}

Status AcceleratorStreams::queue_copy(int index, StreamHandle stream, const DeviceSpan& target, const DeviceSpan& source) {
  HMC_TRY(devices_.device(index).status());
  const DeviceScope scope(*devices_.calls().devices, index);
  if (scope.code() != 0) return devices_.unusable(index, scope.code());
  const CopyDirection direction = target.device.is_cpu()   ? CopyDirection::to_host
                                  : source.device.is_cpu() ? CopyDirection::to_device
                                                           : CopyDirection::on_device;
  const int code = devices_.calls().copies->copy(target.data, source.data, source.bytes, direction, vendor_stream(stream));
  return code == 0 ? Status() : failure("copying on the caller's stream of " + devices_.name(index), code);
}

Status AcceleratorStreams::hold(int index, StreamHandle stream, std::shared_ptr<const StreamGate> gate) {
  HMC_ASSIGN(AcceleratorDevice * on, devices_.device(index));
  const DeviceScope scope(*devices_.calls().devices, index);
  if (scope.code() != 0) return devices_.unusable(index, scope.code());
  struct Held {
    std::shared_ptr<const StreamGate> gate;
    AcceleratorDevice& on;
    std::string device;
  };
  std::unique_ptr<Held> held(new Held{std::move(gate), *on, devices_.name(index)});
  const auto wait = [](void* data) {
    const std::unique_ptr<Held> mine(static_cast<Held*>(data));
    wait_at(*mine->gate, mine->device);
    mine->on.held.fetch_sub(1);
  };
  const std::scoped_lock lock(on->loading);
  on->held.fetch_add(1);
  if (const int code = devices_.calls().streams->call_host(vendor_stream(stream), wait, held.get()); code != 0) {
    on->held.fetch_sub(1);
    return failure("making a stream of " + devices_.name(index) + " wait", code);
  }
  static_cast<void>(held.release());  // the callback's
  return {};
}

Result<std::unique_ptr<DeviceQueue>> AcceleratorStreams::open_queue(int index) {
  HMC_ASSIGN(auto queue, AcceleratorQueue::open(devices_, index));
  return std::unique_ptr<DeviceQueue>(std::move(queue));
}

}  // namespace hmc
