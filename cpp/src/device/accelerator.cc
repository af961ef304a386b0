// Accelerator: devices, memory and copies. Sharing with other processes is in accelerator_sharing.cc.
#include "device/accelerator_point.h"

#include <sched.h>

#include <algorithm>
#include <span>
#include <utility>

#include "device/pci.h"

namespace hmc {
namespace {

// Copies up to this size do not queue behind longer ones.
constexpr std::size_t short_copy_bytes = 64 << 10;
// What a long copy gets of a link's rate. Two H200: 55 of 63 GB/s over PCIe 5.0 x16, 396 of 450 over NVLink.
constexpr double copy_efficiency = 0.88;

}  // namespace

Status Accelerator::failure(const std::string& what, int code) const {
  const VendorCodes& codes = calls_.traits.codes;
  const Code meaning = code == codes.out_of_memory ? Code::out_of_memory
                       : code == codes.unsupported ? Code::unsupported
                                                   : Code::device;
  return Status(meaning, what + ": " + calls_.runtime->error_name(code) + " (" + std::to_string(code) + ")", code);
}

Status Accelerator::open() {
  if (open_.load(std::memory_order_acquire)) return forked() ? forked_status() : Status();
  const std::scoped_lock lock(mutex_);
  if (open_.load(std::memory_order_relaxed)) return {};
  HMC_TRY(calls_.runtime->open());
  int count = 0;
  const int code = calls_.devices->count(count);
  if (code != 0 && code != calls_.traits.codes.no_device) return failure(calls_.runtime->library() + " counts no devices", code);
  if (code != 0 || count <= 0) return Status(Code::unsupported, calls_.runtime->library() + " finds no device");
  HMC_TRY(check_cards(count));
  for (int i = 0; i < count; ++i) {
    devices_.push_back(std::make_unique<PerDevice>());
    devices_.back()->peers.resize(static_cast<std::size_t>(count));
  }
  install_fork_handler();
  fork_epoch_ = fork_epoch();
  open_.store(true, std::memory_order_release);
  return {};
}

// Hygon's runtime is a HIP, which answers under AMD's name as well: cards of another vendor are left to that vendor's row.
Status Accelerator::check_cards(int count) {
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

RuntimeInfo Accelerator::enumerate() {
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

Result<Accelerator::PerDevice*> Accelerator::device(int index) {
  if (const Status opened = open(); !opened.ok()) return opened.with_context(name(index));
  if (index < 0 || index >= static_cast<int>(devices_.size())) {
    return Status(Code::unsupported, "there is no " + name(index) + ": " + calls_.runtime->library() + " has " +
                                         std::to_string(devices_.size()) + " devices");
  }
  return devices_[static_cast<std::size_t>(index)].get();
}

std::optional<PointerInfo> Accelerator::classify(const void* data, std::size_t) {
  if (!open_.load(std::memory_order_acquire) && (!calls_.runtime->resident() || !open().ok())) return std::nullopt;
  VendorPointer found;
  if (!calls_.memory->classify(data, found)) return std::nullopt;
  auto owner = Device::parse(name(found.index));
  if (!owner.ok()) return std::nullopt;
  return PointerInfo{*owner, found.base, found.bytes, found.id};
}

class Accelerator::Owned final : public Allocation {
 public:
  Owned(Accelerator& runtime, DeviceSpan span) noexcept : runtime_(runtime), span_(span) {}
  ~Owned() override {
    if (runtime_.forked()) return;
    const DeviceScope scope(*runtime_.calls_.devices, span_.device.index());
    runtime_.calls_.memory->release(span_.data);
  }
  [[nodiscard]] DeviceSpan span() const noexcept override { return span_; }
  [[nodiscard]] Result<Blob> export_handle(HandleKind kind) const override { return runtime_.export_handle(span_, kind); }

 private:
  Accelerator& runtime_;
  const DeviceSpan span_;
};

Result<std::unique_ptr<Allocation>> Accelerator::allocate(int index, std::size_t bytes, const MemoryOptions&) {
  HMC_TRY(device(index).status());
  HMC_ASSIGN(const Device owner, Device::parse(name(index)));
  const DeviceScope scope(*calls_.devices, index);
  if (scope.code() != 0) return failure(name(index) + " cannot be used", scope.code());
  void* data = nullptr;
  if (const int code = calls_.memory->allocate(std::max<std::size_t>(bytes, 1), data); code != 0) {
    return failure("allocating " + std::to_string(bytes) + " bytes on " + name(index), code);
  }
  return std::unique_ptr<Allocation>(std::make_unique<Owned>(*this, DeviceSpan{data, bytes, owner}));
}

// Long copies on the device and between devices take the lane with the fewest under way. One after the other, an all-to-all among
// four cards had half the speed: every rank, so we think, first fetched from the one that had announced first. Kernels stay in
// turn: each takes the multiprocessors that it may.
Result<Accelerator::Lane*> Accelerator::lane(PerDevice& device, CopyDirection direction, std::size_t bytes, bool in_blocks) {
  const bool is_long = bytes > short_copy_bytes;
  Lane* chosen = &device.lanes[static_cast<std::size_t>(direction) * 2 + (is_long ? 1 : 0)];
  if (is_long && direction == CopyDirection::on_device && !in_blocks) {
    for (Lane& other : std::span(device.lanes).last(more_lanes)) {
      if (other.pending.size() < chosen->pending.size()) chosen = &other;
    }
  }
  Lane& found = *chosen;
  if (found.stream == nullptr) {
    if (const int code = calls_.streams->make_stream(found.stream); code != 0)
      return failure("making a stream of " + vendor_, code);
  }
  return &found;
}

Result<VendorEvent> Accelerator::event(PerDevice& device) {
  VendorEvent made = nullptr;
  if (!device.free_events.empty()) {
    made = device.free_events.back();
    device.free_events.pop_back();
  } else if (const int code = calls_.streams->make_event(made); code != 0) {
    return failure("making an event of " + vendor_, code);
  }
  return made;
}

int Accelerator::issue(const CopyOp& op, CopyDirection direction, bool one_launch, VendorStream stream, std::size_t& issued) {
  auto* target = static_cast<std::byte*>(op.target.data);
  const auto* source = static_cast<const std::byte*>(op.source.data);
  if (op.blocks == 0) {
    const int code = calls_.copies->copy(target, source, op.source.bytes, direction, stream);
    issued += code == 0 ? 1 : 0;
    return code;
  }
  if (one_launch && op.blocks > 1) {
    const int code = calls_.copies->copy_blocks(op.source.device.index(),
                                                {target, source, op.target_offsets, op.source_offsets, op.blocks, op.block_bytes},
                                                stream, issued);
    if (code != calls_.traits.codes.unsupported) return code;
  }
  for (; issued < op.blocks; ++issued) {
    const int code = calls_.copies->copy(target + op.target_offsets[issued], source + op.source_offsets[issued], op.block_bytes,
                                         direction, stream);
    if (code != 0) return code;
  }
  return 0;
}

// The event that says when everything on the lane so far is over. A copy that failed half way ends there, with `failed`.
Status Accelerator::leave_event(PerDevice& device, Lane& lane, Completion* done, Status failed) {
  HMC_ASSIGN(const VendorEvent made, event(device));
  if (const int code = calls_.streams->record(made, lane.stream); code != 0) {
    device.free_events.push_back(made);
    return failure("recording an event of " + vendor_, code);
  }
  lane.pending.push_back({made, done, std::move(failed)});
  device.pending.fetch_add(1);
  return {};
}

Status Accelerator::start(PerDevice& device, Lane& lane, const CopyOp& op, CopyDirection direction, bool one_launch,
                          Completion* done) {
  if (op.after != nullptr) {
    const int code = calls_.streams->wait(lane.stream, static_cast<const Point*>(op.after)->event());
    if (code != 0) return failure("ordering a copy of " + vendor_ + " behind the caller's stream", code);
  }
  std::size_t issued = 0;
  const int code = issue(op, direction, one_launch, lane.stream, issued);
  Status failed;
  if (code != 0) {
    failed = failure(
        "copying " + std::to_string(op.source.bytes) + " bytes from " + op.source.device.str() + " to " + op.target.device.str(),
        code);
    if (issued == 0) return failed;
  }
  return leave_event(device, lane, done, std::move(failed));
}

// Without peer access the vendor's copies go through the host by themselves: slower, and the bytes are the same. A kernel would
// fault.
Accelerator::Peer Accelerator::reach(PerDevice& device, std::size_t other) {
  Peer& known = device.peers[other];
  if (known == Peer::untried) known = calls_.devices->enable_peer(static_cast<int>(other)) == 0 ? Peer::reached : Peer::refused;
  return known;
}

Status Accelerator::copy(const CopyOp& op, Completion* done) {
  const bool from_host = op.source.device.is_cpu();
  const bool to_host = op.target.device.is_cpu();
  const CopyDirection direction = from_host ? CopyDirection::to_device
                                  : to_host ? CopyDirection::to_host
                                            : CopyDirection::on_device;
  // Between two devices the source's pushes.
  const int index = from_host ? op.target.device.index() : op.source.device.index();
  HMC_ASSIGN(PerDevice * on, device(index));
  const DeviceScope scope(*calls_.devices, index);
  if (scope.code() != 0) return failure(name(index) + " cannot be used", scope.code());
  const std::scoped_lock lock(on->mutex);
  bool one_launch = direction == CopyDirection::on_device;
  if (direction == CopyDirection::on_device && op.target.device != op.source.device) {
    HMC_TRY(device(op.target.device.index()).status());
    one_launch = reach(*on, static_cast<std::size_t>(op.target.device.index())) == Peer::reached;
  }
  HMC_ASSIGN(Lane * chosen, lane(*on, direction, op.blocks == 0 ? op.source.bytes : op.blocks * op.block_bytes, op.blocks != 0));
  return start(*on, *chosen, op, direction, one_launch, done);
}

Status Accelerator::fill(const DeviceSpan& target, std::uint8_t value) {
  if (target.bytes == 0) return {};
  const int index = target.device.index();
  HMC_ASSIGN(PerDevice * on, device(index));
  BlockingCompletion done;
  {
    const DeviceScope scope(*calls_.devices, index);
    if (scope.code() != 0) return failure(name(index) + " cannot be used", scope.code());
    const std::scoped_lock lock(on->mutex);
    HMC_ASSIGN(Lane * chosen, lane(*on, CopyDirection::on_device, target.bytes, false));
    if (const int code = calls_.copies->fill(target.data, value, target.bytes, chosen->stream); code != 0) {
      return failure("filling " + std::to_string(target.bytes) + " bytes on " + name(index), code);
    }
    HMC_TRY(leave_event(*on, *chosen, &done, {}));
  }
  return done.wait(*this);
}

bool Accelerator::poll() {
  if (!open_.load(std::memory_order_acquire) || forked()) return false;
  struct Ended {
    Completion* done;
    Status status;
  };
  std::array<Ended, 32> ended;  // a bounded turn; the rest at the next
  std::size_t count = 0;
  const VendorCodes& codes = calls_.traits.codes;
  for (auto& each : devices_) {
    if (each->pending.load(std::memory_order_relaxed) == 0) continue;
    const std::scoped_lock lock(each->mutex);
    for (Lane& lane : each->lanes) {
      while (!lane.pending.empty() && count < ended.size()) {
        Pending& oldest = lane.pending.front();
        const int code = calls_.streams->query(oldest.event);
        if (code == codes.not_ready[0] || code == codes.not_ready[1]) break;
        Status outcome = std::move(oldest.failure);
        if (code != 0 && outcome.ok()) outcome = failure("a copy of " + vendor_, code);
        ended[count++] = {oldest.done, std::move(outcome)};
        each->free_events.push_back(oldest.event);
        lane.pending.pop_front();
        each->pending.fetch_sub(1);
      }
    }
  }
  for (std::size_t i = 0; i < count; ++i) ended[i].done->complete(std::move(ended[i].status));
  return count != 0;
}

}  // namespace hmc
