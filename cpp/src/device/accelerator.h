// Accelerator: a DeviceRuntime on the calls of one vendor.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "base/fork.h"
#include "device/runtime.h"
#include "device/vendor_calls.h"

namespace hmc {

// Copies run on streams of HMC's own: one pair (short and long ones) per device and direction, made at first use, so that nothing
// touches a device that is not used and a short copy does not wait behind a long one. Each copy leaves an event behind, and poll()
// asks for the oldest of every stream.
class Accelerator final : public DeviceRuntime, private MemorySharing, private DeviceStreams {
 public:
  Accelerator(std::string_view vendor, VendorCalls calls) : vendor_(vendor), calls_(std::move(calls)) {}

  RuntimeInfo enumerate() override;
  std::optional<PointerInfo> classify(const void* data, std::size_t bytes) override;
  Result<std::unique_ptr<Allocation>> allocate(int index, std::size_t bytes, const MemoryOptions& options) override;
  Status copy(const CopyOp& op, Completion* done) override;
  Status fill(const DeviceSpan& target, std::uint8_t value) override;
  bool poll() override;
  MemorySharing& sharing() override { return *this; }
  DeviceStreams& streams() override { return *this; }

 private:
  struct Pending {
    VendorEvent event;
    Completion* done;
    Status failure;  // of a copy that was begun and could not be finished
  };
  struct Lane {
    VendorStream stream = nullptr;
    std::deque<Pending> pending;
  };
  enum class Peer : std::uint8_t { untried, reached, refused };
  static constexpr std::size_t more_lanes = 3;
  struct PerDevice {
    std::mutex mutex;
    std::array<Lane, 6 + more_lanes> lanes;  // CopyDirection x {short, long}; more for long copies on the device
    std::vector<VendorEvent> free_events;
    std::vector<Peer> peers;  // whether this one reaches the memory of each other
    std::atomic<std::size_t> pending{0};
  };
  class Owned;
  class Mapping;
  class Held;
  class Mapped;
  class MappedChunks;
  class Point;

  Result<Blob> export_handle(const DeviceSpan& span, HandleKind kind) override;
  Result<std::unique_ptr<Allocation>> import_handle(int index, const Blob& blob, HandleKind kind) override;
  Result<Blob> export_allocation(const DeviceSpan& span);
  Result<std::unique_ptr<HeldChunks>> hold_chunks(const DeviceSpan& span) override;
  Result<std::unique_ptr<Held>> take_hold(const DeviceSpan& span);
  Result<Blob> export_chunks(const DeviceSpan& span);
  Result<Blob> export_dma_buf(const DeviceSpan& span);
  Result<std::unique_ptr<Allocation>> import_allocation(int index, const Blob& blob);
  Result<std::unique_ptr<Allocation>> import_chunks(int index, const Blob& blob);
  Result<std::unique_ptr<HostPin>> pin_host(int index, const DeviceSpan& host, bool read_only) override;

  [[nodiscard]] std::size_t registration_limit() const noexcept override { return calls_.traits.registration_limit; }

  Result<std::shared_ptr<StreamPoint>> mark(int index, StreamHandle stream) override;
  Status hold(int index, StreamHandle stream, std::shared_ptr<const StreamGate> gate) override;

  Status open();
  Status check_cards(int count);
  // A vendor's runtime does not survive a fork: nothing of it is called in the child, not even to free.
  [[nodiscard]] bool forked() const noexcept { return fork_epoch_ != fork_epoch(); }
  Result<PerDevice*> device(int index);
  Status failure(const std::string& what, int code) const;
  Status stream_failure(const std::string& what, int code) const;
  [[nodiscard]] std::string name(int index) const { return vendor_ + ":" + std::to_string(index); }
  // The rest with the device's mutex held and the device current.
  Result<Lane*> lane(PerDevice& device, CopyDirection direction, std::size_t bytes, bool in_blocks);
  Result<VendorEvent> event(PerDevice& device);
  Peer reach(PerDevice& device, std::size_t other);
  Status start(PerDevice& device, Lane& lane, const CopyOp& op, CopyDirection direction, bool one_launch, Completion* done);
  int issue(const CopyOp& op, CopyDirection direction, bool one_launch, VendorStream stream, std::size_t& issued);
  Status leave_event(PerDevice& device, Lane& lane, Completion* done, Status failed);

  const std::string vendor_;
  const VendorCalls calls_;
  std::mutex mutex_;  // of what follows
  std::atomic<bool> open_{false};
  std::uint32_t fork_epoch_ = 0;                     // constant once open_
  std::vector<std::unique_ptr<PerDevice>> devices_;  // constant once open_
  std::map<std::tuple<int, IpcHandle, std::uint64_t>, std::weak_ptr<Mapping>> mappings_;
};

}  // namespace hmc
