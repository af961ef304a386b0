// AcceleratorDevices: the devices of one vendor, and its codes as Status. The parts of an Accelerator share it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/completion.h"
#include "base/fork.h"
#include "device/vendor_calls.h"
#include "hmc/device.h"
#include "hmc/status.h"

namespace hmc {

struct PendingCopy {
  VendorEvent event;  // null: it is over once its stream is
  Completion* done;
  Status failure;  // of a copy that was begun and could not be finished, or of a query
};

struct CopyStream {
  VendorStream handle = nullptr;  // made at first use
  std::deque<PendingCopy> pending;
};

struct ReleasedMemory {
  enum class Kind : std::uint8_t { own, mapped, pinned };
  void* data = nullptr;
  Kind kind = Kind::own;                   // else another process's, or memory of the host
  std::shared_ptr<const void> pages = {};  // pinned: what keeps them mapped until they are unpinned
  int index = 0;                           // the device that is current meanwhile; set by release()
};

// What HMC keeps of one device.
struct AcceleratorDevice {
  struct Peer {
    bool reached = false;
    std::chrono::steady_clock::time_point retry_at{};  // until then the vendor is not asked again
  };
  static constexpr std::size_t compute_stream = 6;
  static constexpr std::size_t more_streams = 3;

  std::mutex mutex;
  // CopyDirection x {short, long}; one for what the device computes; more for long copies on the device.
  std::array<CopyStream, compute_stream + 1 + more_streams> streams;
  std::deque<CopyStream> exchange_streams;         // one for each DeviceExchange there was at a time
  std::vector<CopyStream*> idle_exchange_streams;  // those of none now
  std::vector<ReleasedMemory> unreleased;          // what release() keeps
  std::vector<VendorEvent> free_events;
  std::vector<Peer> peers;  // whether this one reaches the memory of each other
  std::atomic<std::size_t> pending{0};
  std::mutex loading;                   // of load() and release(): nothing begins to wait meanwhile. Taken before `mutex`
  std::atomic<std::size_t> held{0};     // callers' streams that wait for the host
  std::atomic<std::size_t> issuing{0};  // calls of a DeviceQueue that are queueing what may wait for other devices
  std::atomic<std::chrono::steady_clock::rep> no_patience_until{0};  // of load(), which has waited in vain
};

// Something on the device waits for other devices or for the host. Its mutex held.
bool waits(const AcceleratorDevice& device);

// Any thread.
class AcceleratorDevices {
 public:
  AcceleratorDevices(std::string_view vendor, VendorCalls calls) : vendor_(vendor), calls_(std::move(calls)) {}

  // Opens the vendor's library unless it is open. Nothing else of the vendor is called before that.
  Status open();
  [[nodiscard]] bool is_open() const noexcept { return open_.load(std::memory_order_acquire); }
  // Opens it where memory of the vendor may exist in this process. False: there is none. A thread that comes while another one
  // opens waits for that: the memory that it asks about may be the vendor's.
  bool open_resident();
  // A vendor's runtime does not survive a fork: nothing of it is called in the child, not even to free.
  [[nodiscard]] bool forked() const noexcept { return fork_epoch_ != fork_epoch(); }
  RuntimeInfo enumerate();
  // Opens. Errors: unsupported where there is no such device.
  Result<AcceleratorDevice*> device(int index);
  // Once open.
  [[nodiscard]] std::span<const std::unique_ptr<AcceleratorDevice>> all() const noexcept { return devices_; }
  // With the device's mutex held and the device current.
  Result<VendorEvent> event(AcceleratorDevice& device);
  // Likewise. That stream, made at first use.
  Result<CopyStream*> stream(AcceleratorDevice& device, std::size_t index);
  // Likewise. One that is no other exchange's.
  Result<CopyStream*> exchange_stream(AcceleratorDevice& device);
  // Likewise. Completes `done` once all that is on the stream so far is over: until then memory is read and written. What failed
  // half way ends there, with `failed`. False: the vendor has no event; `done` gets that error once the whole stream is over.
  bool leave_event(AcceleratorDevice& device, CopyStream& stream, Completion* done, Status failed);
  // With the mutex of device `index` held. How many of the oldest copies on `stream` are over, at most `most`.
  std::size_t over(int index, CopyStream& stream, std::size_t most) const;

  // Calls `load`, which loads a kernel, once nothing on the device waits for other devices or for the host, and returns its code. A
  // vendor's loader waits for all that runs on the device, and holds up whoever would end that. The vendor's `unsupported`: not
  // within `patience`. After a wait in vain, calls look only once for a hundred times as long.
  int load(AcceleratorDevice& device, std::chrono::milliseconds patience, const std::function<int()>& load);

  // Frees memory of device `index`, unmaps it, or unpins memory of the host. A vendor waits then for all that runs on the device,
  // for pinned memory on every device. A kernel of an exchange runs until other devices run theirs, a caller's held stream until a
  // Work ends, perhaps by the thread that is here: while there is one, the memory is kept for release_kept(). No mutex held.
  void release(int index, ReleasedMemory memory);
  // Frees what release() has kept, where nothing waits so.
  void release_kept();
  [[nodiscard]] bool keeps() const noexcept { return kept_.load(std::memory_order_relaxed) != 0; }

  [[nodiscard]] const VendorCalls& calls() const noexcept { return calls_; }
  [[nodiscard]] const std::string& vendor() const noexcept { return vendor_; }
  [[nodiscard]] std::string name(int index) const { return vendor_ + ":" + std::to_string(index); }
  [[nodiscard]] Status failure(const std::string& what, int code) const;
  // Of a DeviceScope.
  [[nodiscard]] Status unusable(int index, int code) const { return failure(name(index) + " cannot be used", code); }
  // Whose memory that is; nullopt: not the vendor's. Once open. Errors: device; closed in a forked child.
  [[nodiscard]] Result<std::optional<VendorPointer>> find(const void* data) const;

 private:
  // Frees all of `kept`, which is under `mutex`, unless something waits on devices [first, last).
  void release_of(std::mutex& mutex, std::vector<ReleasedMemory>& kept, std::size_t first, std::size_t last);
  Status open_locked();  // with mutex_ held, and not open
  [[nodiscard]] Status check_cards(int count) const;

  const std::string vendor_;
  const VendorCalls calls_;
  std::mutex mutex_;  // of what follows
  std::atomic<bool> open_{false};
  std::uint32_t fork_epoch_ = 0;                             // constant once open_
  std::vector<std::unique_ptr<AcceleratorDevice>> devices_;  // constant once open_
  std::atomic<std::size_t> kept_{0};                         // memories that release() has kept
  std::mutex pinned_mutex_;
  std::vector<ReleasedMemory> pinned_;  // of those
};

// As find(), of memory that is to be the vendor's. Errors: also invalid_argument where it is not.
Result<VendorPointer> allocation_at(const AcceleratorDevices& devices, const void* data);

}  // namespace hmc
