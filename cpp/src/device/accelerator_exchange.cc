#include "device/accelerator_exchange.h"

#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "device/accelerator_streams.h"

namespace hmc {
namespace {

// Flags in pinned host memory, by which the host ends kernels of a vendor's devices. Each has a cache line of its own.
class Words {
 public:
  Result<std::atomic<std::uint32_t>*> take(const AcceleratorDevices& devices) {
    const std::scoped_lock lock(mutex_);
    std::vector<void*>& idle = idle_[&devices];
    if (idle.empty()) {
      void* page = nullptr;
      if (const int code = devices.calls().exchange->allocate_words(page_bytes, page); code != 0)
        return devices.failure("allocating host memory for " + devices.vendor(), code);
      for (std::size_t at = 0; at < page_bytes; at += line_bytes) idle.push_back(static_cast<std::byte*>(page) + at);
    }
    void* const word = idle.back();
    idle.pop_back();
    return new (word) std::atomic<std::uint32_t>(0);
  }
  void give_back(const AcceleratorDevices& devices, void* word) {
    const std::scoped_lock lock(mutex_);
    idle_[&devices].push_back(word);
  }

 private:
  static constexpr std::size_t page_bytes = 4096, line_bytes = 64;
  std::mutex mutex_;
  std::map<const AcceleratorDevices*, std::vector<void*>> idle_;
};
Words& words() {
  static Words& instance = *new Words;  // never destroyed, as devices are not
  return instance;
}

}  // namespace

Result<std::unique_ptr<AcceleratorExchange>> AcceleratorExchange::open(AcceleratorDevices& devices, int index,
                                                                       std::uint32_t ranks) {
  HMC_ASSIGN(AcceleratorDevice * on, devices.device(index));
  HMC_ASSIGN(const Device owner, Device::parse(devices.name(index)));
  const VendorCalls& calls = devices.calls();
  if (calls.exchange == nullptr) return Status(Code::unsupported, "HMC has no kernel for " + devices.vendor());
  const DeviceScope scope(*calls.devices, index);
  if (scope.code() != 0) return devices.unusable(index, scope.code());
  std::unique_ptr<AcceleratorExchange> made(new AcceleratorExchange(devices, *on));
  const auto bytes = static_cast<std::size_t>(exchange_segment(ranks).bytes);
  void* data = nullptr;
  if (const int code = calls.exchange->allocate(bytes, data); code != 0) {
    return devices.failure("allocating " + std::to_string(bytes) + " bytes for other devices on " + devices.name(index), code);
  }
  made->segment_ = {data, bytes, owner};
  HMC_ASSIGN(made->ended_, words().take(devices));
  const std::scoped_lock lock(on->mutex);
  HMC_ASSIGN(made->stream_, devices.exchange_stream(*on));
  return made;
}

AcceleratorExchange::~AcceleratorExchange() {
  // Once a call was ended early, kernels of other ranks that start late may still write here: the segment is never freed.
  if (devices_.forked() || ended()) return;
  if (ended_ != nullptr) words().give_back(devices_, ended_);
  if (segment_.data != nullptr) devices_.release(segment_.device.index(), {segment_.data});
  const std::scoped_lock lock(device_.mutex);
  if (stream_ != nullptr) device_.idle_exchange_streams.push_back(stream_);
}

Status AcceleratorExchange::run(ExchangeCall call, const std::array<const StreamPoint*, 2>& after, Completion* done) {
  const VendorCalls& calls = devices_.calls();
  const int index = segment_.device.index();
  call.ended = ended_;
  const DeviceScope scope(*calls.devices, index);
  if (scope.code() != 0) return devices_.unusable(index, scope.code());
  const std::scoped_lock lock(device_.loading, device_.mutex);
  for (const StreamPoint* point : after) {
    if (point == nullptr) continue;
    const int code = calls.streams->wait(stream_->handle, static_cast<const AcceleratorPoint*>(point)->event());
    if (code != 0) return devices_.failure("ordering a collective of " + devices_.vendor() + " behind the caller's stream", code);
  }
  if (const int code = calls.exchange->run(index, call, stream_->handle); code != 0)
    return devices_.failure("starting a collective on " + devices_.name(index), code);
  if (!devices_.leave_event(device_, *stream_, done, {}))
    end_kernels();  // the call fails here: its kernel is not to wait for other ranks
  return {};
}

Status AcceleratorExchange::order(StreamHandle stream) {
  const VendorCalls& calls = devices_.calls();
  const int index = segment_.device.index();
  const DeviceScope scope(*calls.devices, index);
  if (scope.code() != 0) return devices_.unusable(index, scope.code());
  const std::scoped_lock lock(device_.mutex);
  const std::deque<PendingCopy>& pending = stream_->pending;
  // The last kernel's event, while that is pending: the wait keeps what it stands for.
  if (!pending.empty() && pending.back().event != nullptr) {
    const int code = calls.streams->wait(vendor_stream(stream), pending.back().event);
    return code == 0 ? Status() : devices_.failure("ordering the caller's stream of " + devices_.name(index), code);
  }
  HMC_ASSIGN(const VendorEvent event, devices_.event(device_));
  int code = calls.streams->record(event, stream_->handle);
  if (code == 0) code = calls.streams->wait(vendor_stream(stream), event);
  device_.free_events.push_back(event);
  return code == 0 ? Status() : devices_.failure("ordering the caller's stream of " + devices_.name(index), code);
}

}  // namespace hmc
