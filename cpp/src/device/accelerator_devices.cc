#include "device/accelerator_devices.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "device/pci.h"

namespace hmc {
namespace {

// What a long copy gets of a link's rate. Two H200: 55 of 63 GB/s over PCIe 5.0 x16, 396 of 450 over NVLink.
constexpr double copy_efficiency = 0.88;

// Whether a kernel of an exchange is pending. With the device's mutex held.
bool exchanges(const AcceleratorDevice& device) {
  return std::ranges::any_of(device.exchange_streams, [](const CopyStream& stream) { return !stream.pending.empty(); });
}

int release_now(const VendorCalls& calls, const ReleasedMemory& memory) {
  switch (memory.kind) {
    case ReleasedMemory::Kind::own:
      return calls.memory->release(memory.data);
    case ReleasedMemory::Kind::mapped:
      return calls.handles->ipc_close(memory.data);
    case ReleasedMemory::Kind::pinned:
      return calls.memory->unpin(memory.data);
  }
  return 0;
}

// Whether a copy on `stream` of device `index` is over. A query may fail while the copy goes on: what fails twice is over, and the
// first error is the copy's.
bool is_over(const AcceleratorDevices& devices, int index, const CopyStream& stream, PendingCopy& copy) {
  const VendorCalls& calls = devices.calls();
  const auto ask = [&] {
    if (copy.event != nullptr) return calls.streams->query(copy.event);
    const DeviceScope scope(*calls.devices, index);
    return scope.code() != 0 ? scope.code() : calls.streams->query_stream(stream.handle);
  };
  const VendorCodes& codes = calls.traits.codes;
  const auto runs = [&](int code) { return code == codes.not_ready[0] || code == codes.not_ready[1]; };
  int code = ask();
  if (code != 0 && !runs(code)) {
    if (copy.failure.ok()) copy.failure = devices.failure("a copy of " + devices.vendor(), code);
    code = ask();
  }
  return !runs(code);
}

}  // namespace

bool waits(const AcceleratorDevice& device) { return device.held.load() != 0 || device.issuing.load() != 0 || exchanges(device); }

Status AcceleratorDevices::failure(const std::string& what, int code) const {
  const VendorCodes& codes = calls_.traits.codes;
  const Code meaning = code == codes.out_of_memory ? Code::out_of_memory
                       : code == codes.unsupported ? Code::unsupported
                                                   : Code::device;
  return Status(meaning, what + ": " + calls_.runtime->error_name(code) + " (" + std::to_string(code) + ")", code);
}

Status AcceleratorDevices::open() {
  if (is_open()) return forked() ? forked_status() : Status();
  const std::scoped_lock lock(mutex_);
  return open_.load(std::memory_order_relaxed) ? Status() : open_locked();
}

bool AcceleratorDevices::open_resident() {
  if (is_open()) return !forked();
  const std::scoped_lock lock(mutex_);
  return open_.load(std::memory_order_relaxed) || (calls_.runtime->resident() && open_locked().ok());
}

Status AcceleratorDevices::open_locked() {
  HMC_TRY(calls_.runtime->open());
  int count = 0;
  const int code = calls_.devices->count(count);
  if (code != 0 && code != calls_.traits.codes.no_device) return failure(calls_.runtime->library() + " counts no devices", code);
  if (code != 0 || count <= 0) return Status(Code::unsupported, calls_.runtime->library() + " finds no device");
  HMC_TRY(check_cards(count));
  for (int i = 0; i < count; ++i) {
    devices_.push_back(std::make_unique<AcceleratorDevice>());
    devices_.back()->peers.resize(static_cast<std::size_t>(count));
  }
  install_fork_handler();
  fork_epoch_ = fork_epoch();
  open_.store(true, std::memory_order_release);
  return {};
}

// Hygon's runtime is a HIP, which answers under AMD's name as well: cards of another vendor are left to that vendor's row.
Status AcceleratorDevices::check_cards(int count) const {
  const int ours = calls_.traits.pci_vendor;
  if (ours == 0 || calls_.runtime->provenance() != "hardware") return {};
  for (int i = 0; i < count; ++i) {
    VendorDevice found;
    if (calls_.devices->describe(i, found) != 0) return {};
    const int maker = pci_facts(found.pci).vendor;
    if (maker == 0 || maker == ours) return {};
  }
  return Status(Code::unsupported,
                calls_.runtime->library() + " finds only cards of another vendor, which that vendor's own row uses");
}

RuntimeInfo AcceleratorDevices::enumerate() {
  if (const Status opened = open(); !opened.ok()) return {vendor_, false, std::string(opened.message()), {}};
  RuntimeInfo info{vendor_, true, calls_.runtime->library(), {}};
  const std::string provenance = calls_.runtime->provenance();
  if (provenance != "hardware") info.reason += " (" + provenance + ")";
  for (int i = 0; i < static_cast<int>(devices_.size()); ++i) {
    VendorDevice found;
    const int code = calls_.devices->describe(i, found);
    auto parsed = Device::parse(name(i));
    if (!parsed.ok()) continue;
    if (code != 0) found.name = name(i) + " does not say its name: " + calls_.runtime->error_name(code);
    const PciFacts place = pci_facts(found.pci);
    info.devices.push_back({*parsed, found.name, found.memory_bytes, found.pci, provenance, place.numa_node,
                            place.bandwidth * copy_efficiency, calls_.devices->capabilities(i)});
  }
  for (std::size_t a = 0; a < info.devices.size(); ++a) {
    for (std::size_t b = a + 1; b < info.devices.size(); ++b) {
      const Device &from = info.devices[a].device, &to = info.devices[b].device;
      VendorLink found = calls_.devices->link(from.index(), to.index());
      if (!found.kind.empty()) info.links.push_back({from, to, std::move(found.kind), found.bandwidth * copy_efficiency});
    }
  }
  return info;
}

Result<AcceleratorDevice*> AcceleratorDevices::device(int index) {
  if (const Status opened = open(); !opened.ok()) return opened.with_context(name(index));
  if (index < 0 || index >= static_cast<int>(devices_.size())) {
    return Status(Code::unsupported, "there is no " + name(index) + ": " + calls_.runtime->library() + " has " +
                                         std::to_string(devices_.size()) + " devices");
  }
  return devices_[static_cast<std::size_t>(index)].get();
}

Result<std::optional<VendorPointer>> AcceleratorDevices::find(const void* data) const {
  if (forked()) return forked_status();
  VendorPointer found;
  if (const int code = calls_.memory->classify(data, found); code != 0)
    return failure(vendor_ + " does not say whether memory is its own", code);
  return found.index < 0 ? std::optional<VendorPointer>() : found;
}

Result<VendorPointer> allocation_at(const AcceleratorDevices& devices, const void* data) {
  HMC_ASSIGN(const auto found, devices.find(data));
  if (!found) return Status(Code::invalid_argument, "the memory is not (or no longer) an allocation of " + devices.vendor());
  return *found;
}

Result<VendorEvent> AcceleratorDevices::event(AcceleratorDevice& device) {
  VendorEvent made = nullptr;
  if (!device.free_events.empty()) {
    made = device.free_events.back();
    device.free_events.pop_back();
  } else if (const int code = calls_.streams->make_event(made); code != 0) {
    return failure("making an event of " + vendor_, code);
  }
  return made;
}

Result<CopyStream*> AcceleratorDevices::stream(AcceleratorDevice& device, std::size_t index) {
  CopyStream& wanted = device.streams[index];
  if (wanted.handle == nullptr) {
    if (const int code = calls_.streams->make_stream(wanted.handle); code != 0)
      return failure("making a stream of " + vendor_, code);
  }
  return &wanted;
}

Result<CopyStream*> AcceleratorDevices::exchange_stream(AcceleratorDevice& device) {
  if (device.idle_exchange_streams.empty()) {
    VendorStream made = nullptr;
    if (const int code = calls_.streams->make_stream(made); code != 0) return failure("making a stream of " + vendor_, code);
    device.idle_exchange_streams.push_back(&device.exchange_streams.emplace_back(CopyStream{made, {}}));
  }
  CopyStream* const taken = device.idle_exchange_streams.back();
  device.idle_exchange_streams.pop_back();
  return taken;
}

int AcceleratorDevices::load(AcceleratorDevice& device, std::chrono::milliseconds patience, const std::function<int()>& load) {
  using Clock = std::chrono::steady_clock;
  constexpr auto between_looks = std::chrono::microseconds(100);
  constexpr int rest = 100;  // times the patience
  const auto began = Clock::now();
  const bool has_patience = began.time_since_epoch().count() >= device.no_patience_until.load();
  const auto until = has_patience ? began + patience : began;
  const auto something_waits = [&] {
    const std::scoped_lock lock(device.mutex);
    return waits(device);
  };
  while (true) {
    {
      const std::scoped_lock lock(device.loading);
      if (!something_waits()) return load();
    }
    if (Clock::now() >= until) break;
    std::this_thread::sleep_for(between_looks);
  }
  if (until > began) device.no_patience_until.store((until + rest * patience).time_since_epoch().count());
  return calls_.traits.codes.unsupported;
}

void AcceleratorDevices::release(int index, ReleasedMemory memory) {
  AcceleratorDevice& device = *devices_[static_cast<std::size_t>(index)];
  memory.index = index;
  const bool is_pinned = memory.kind == ReleasedMemory::Kind::pinned;
  {
    const std::scoped_lock lock(is_pinned ? pinned_mutex_ : device.mutex);
    (is_pinned ? pinned_ : device.unreleased).push_back(std::move(memory));
    kept_.fetch_add(1);
  }
  release_kept();
}

void AcceleratorDevices::release_kept() {
  if (!keeps() || forked()) return;
  for (std::size_t i = 0; i < devices_.size(); ++i) release_of(devices_[i]->mutex, devices_[i]->unreleased, i, i + 1);
  release_of(pinned_mutex_, pinned_, 0, devices_.size());
}

void AcceleratorDevices::release_of(std::mutex& mutex, std::vector<ReleasedMemory>& kept, std::size_t first, std::size_t last) {
  const std::span concerned(devices_.data() + first, last - first);
  {
    const std::scoped_lock lock(mutex);
    if (kept.empty()) return;
  }
  std::vector<ReleasedMemory> freed;  // pages end behind the locks
  std::vector<std::unique_lock<std::mutex>> none_begins;
  for (const auto& device : concerned) none_begins.emplace_back(device->loading);
  const auto something_waits = [](const auto& device) {
    const std::scoped_lock lock(device->mutex);
    return waits(*device);
  };
  if (std::ranges::any_of(concerned, something_waits)) return;
  {
    const std::scoped_lock lock(mutex);
    freed.swap(kept);
  }
  for (const ReleasedMemory& memory : freed) {
    // Of another device a vendor would make a context, which takes memory of it.
    const DeviceScope scope(*calls_.devices, memory.index);
    const int code = scope.code() == 0 ? release_now(calls_, memory) : scope.code();
    // Pages that are still pinned stay mapped for ever: devices would read them for what comes to their address.
    if (code != 0 && memory.pages) static_cast<void>(new std::shared_ptr<const void>(memory.pages));
  }
  kept_.fetch_sub(freed.size());
}

bool AcceleratorDevices::leave_event(AcceleratorDevice& device, CopyStream& stream, Completion* done, Status failed) {
  const Result<VendorEvent> made = event(device);
  Status lacking = made.status();
  if (made.ok()) {
    if (const int code = calls_.streams->record(*made, stream.handle); code != 0) {
      device.free_events.push_back(*made);
      lacking = failure("recording an event of " + vendor_, code);
    }
  }
  const bool left = lacking.ok();
  stream.pending.push_back({left ? *made : nullptr, done, failed.ok() ? std::move(lacking) : std::move(failed)});
  device.pending.fetch_add(1);
  return left;
}

std::size_t AcceleratorDevices::over(int index, CopyStream& stream, std::size_t most) const {
  std::deque<PendingCopy>& pending = stream.pending;
  std::size_t limit = std::min(pending.size(), most);
  if (limit == 0 || !is_over(*this, index, stream, pending.front())) return 0;
  // A stream reaches its events in order: the newest first, as all are often over, then by bisection.
  std::size_t known = 1;
  for (std::size_t probe = limit; known < limit; probe = known + (limit - known + 1) / 2) {
    PendingCopy& copy = pending[probe - 1];
    if (!is_over(*this, index, stream, copy)) {
      limit = probe - 1;
    } else if (copy.failure.ok()) {
      known = probe;
    } else {  // those before may have failed as well
      while (known < limit && is_over(*this, index, stream, pending[known])) ++known;
      return known;
    }
  }
  return known;
}

}  // namespace hmc
