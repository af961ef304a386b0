#include "device/accelerator_queue.h"

#include "device/accelerator_streams.h"

namespace hmc {
namespace {

// Whatever becomes of the call, an exception too.
class Issuing {
 public:
  explicit Issuing(AcceleratorDevice& device) : device_(device) {
    const std::scoped_lock lock(device.loading);
    device.issuing.fetch_add(1);
  }
  ~Issuing() { device_.issuing.fetch_sub(1); }
  Issuing(const Issuing&) = delete;
  Issuing& operator=(const Issuing&) = delete;

 private:
  AcceleratorDevice& device_;
};

}  // namespace

Result<std::unique_ptr<AcceleratorQueue>> AcceleratorQueue::open(AcceleratorDevices& devices, int index) {
  HMC_ASSIGN(AcceleratorDevice * on, devices.device(index));
  const DeviceScope scope(*devices.calls().devices, index);
  if (scope.code() != 0) return devices.unusable(index, scope.code());
  const std::scoped_lock lock(on->mutex);
  HMC_ASSIGN(CopyStream * stream, devices.exchange_stream(*on));
  return std::unique_ptr<AcceleratorQueue>(new AcceleratorQueue(devices, *on, index, *stream));
}

AcceleratorQueue::~AcceleratorQueue() {
  if (devices_.forked()) return;
  const std::scoped_lock lock(device_.mutex);
  device_.idle_exchange_streams.push_back(&stream_);
}

// The device's mutex is not held while `issue` runs, which may take its time: completions of the device need it.
Status AcceleratorQueue::run(const std::array<const StreamPoint*, 2>& after, const std::function<Status(StreamHandle)>& issue,
                             Completion* done) {
  const VendorCalls& calls = devices_.calls();
  const DeviceScope scope(*calls.devices, index_);
  if (scope.code() != 0) return devices_.unusable(index_, scope.code());
  for (const StreamPoint* point : after) {
    if (point == nullptr) continue;
    const int code = calls.streams->wait(stream_.handle, static_cast<const AcceleratorPoint*>(point)->event());
    if (code != 0) return devices_.failure("ordering a call of " + devices_.vendor() + " behind the caller's stream", code);
  }
  const Issuing issuing(device_);
  Status status = issue(reinterpret_cast<StreamHandle>(stream_.handle));
  const std::scoped_lock lock(device_.mutex);
  if (status.ok()) devices_.leave_event(device_, stream_, done, {});
  return status;
}

Status AcceleratorQueue::on_device(const std::function<Status()>& function) {
  const DeviceScope scope(*devices_.calls().devices, index_);
  return scope.code() != 0 ? devices_.unusable(index_, scope.code()) : function();
}

}  // namespace hmc
