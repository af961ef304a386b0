// DeviceRuntime: one vendor's runtime. A new vendor is one file (or one table row) in this folder.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/blob.h"
#include "base/completion.h"
#include "device/exchange.h"
#include "device/pages.h"
#include "device/reduce.h"
#include "hmc/device.h"
#include "hmc/memory.h"
#include "hmc/status.h"

namespace hmc {

// Bytes on a device, borrowed.
struct DeviceSpan {
  void* data = nullptr;
  std::size_t bytes = 0;
  Device device;
};

// Whose pointer is this?
struct PointerInfo {
  Device device;
  void* allocation_base = nullptr;   // of the allocation it lies in, null if unknown
  std::size_t allocation_bytes = 0;  // 0 if unknown
  std::uint64_t buffer_id = 0;       // the vendor's id that changes when an address is reused; 0 if none
};

// How memory may be handed to another process or to a network card.
//   memfd    one descriptor; bytes = wire{u64 size of the file, u64 offset in it}
//   ipc      the vendor's handle of an allocation, no descriptor
//   chunks   a descriptor for each piece of memory that an allocator mapped piece by piece (virtual memory)
//   dma_buf  one descriptor, for a network card's driver; bytes = wire{u64 offset in it, u64 bytes}
enum class HandleKind : std::uint8_t { memfd, ipc, chunks, dma_buf };

// One allocation made by a runtime. Destruction frees it.
class Allocation {
 public:
  virtual ~Allocation() = default;
  [[nodiscard]] virtual DeviceSpan span() const noexcept = 0;
  // Whether another process of the host can map it: export_handle(HandleKind::memfd) works.
  [[nodiscard]] virtual bool shareable() const noexcept { return false; }
  // Lets another device of the vendor reach imported memory where it is mapped. unsupported: that device imports it for itself.
  virtual Status allow(int /*index*/) { return Status(Code::unsupported, "another device needs a mapping of its own"); }
  // As MemorySharing::export_handle, for memory whose owner is known.
  [[nodiscard]] virtual Result<Blob> export_handle(HandleKind) const {
    return Status(Code::unsupported, "this allocation has no handle of that kind");
  }
};

// What a held stream waits for. Any thread.
class StreamGate {
 public:
  void open() noexcept {
    {
      const std::scoped_lock lock(mutex_);
      open_ = true;
    }
    changed_.notify_all();
  }
  void wait() const noexcept {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }
  // False if it is still closed then.
  bool wait_for(std::chrono::milliseconds time) const noexcept {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [this] { return open_; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool open_ = false;
};

// What was queued on a stream when this was made, and no later work: an operation that is to come after it may be started at any
// time, by when the caller may have made the stream wait for that very operation.
class StreamPoint {
 public:
  virtual ~StreamPoint() = default;
  [[nodiscard]] virtual Result<bool> reached() = 0;
};

// A stream of HMC's own, for what another library queues there.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;  // once nothing is pending
  // Calls `issue` with the stream, on this thread and with the device current; what it queues comes after the points, which are of
  // the same runtime. `done` as for DeviceRuntime::copy. Blocks as long as `issue` does. One thread at a time.
  // Errors: of `issue`, device: part of the work may have been queued.
  virtual Status run(const std::array<const StreamPoint*, 2>& after, const std::function<Status(StreamHandle)>& issue,
                     Completion* done) = 0;
  // Calls `function` with the device current. Any thread.
  virtual Status on_device(const std::function<Status()>& function) = 0;
};

// Streams of callers, and queues. Thread rules as DeviceRuntime.
class DeviceStreams {
 public:
  virtual Result<std::shared_ptr<StreamPoint>> mark(int index, StreamHandle stream) = 0;
  // Queues a copy of source.bytes bytes there, between memory of device `index` and of that device or the CPU.
  virtual Status queue_copy(int /*index*/, StreamHandle /*stream*/, const DeviceSpan& /*target*/, const DeviceSpan& /*source*/) {
    return Status(Code::unsupported, "this runtime has no streams");
  }
  // What is queued on `stream` from now on waits for the gate; the caller does not.
  virtual Status hold(int index, StreamHandle stream, std::shared_ptr<const StreamGate> gate) = 0;
  // Errors: unsupported, device.
  virtual Result<std::unique_ptr<DeviceQueue>> open_queue(int /*index*/) {
    return Status(Code::unsupported, "this runtime has no streams");
  }

 protected:
  ~DeviceStreams() = default;
};

// One copy, both sides reachable from one process. Without blocks: source.bytes bytes from start to start. With blocks: block i
// lies at source_offsets[i] and target_offsets[i] of the spans; the offsets are valid until the copy completes.
struct CopyOp {
  DeviceSpan target;
  DeviceSpan source;
  const StreamPoint* after = nullptr;  // of the same runtime: comes first; valid until the copy completes
  const std::uint64_t* source_offsets = nullptr;
  const std::uint64_t* target_offsets = nullptr;
  std::size_t blocks = 0;
  std::size_t block_bytes = 0;
};

// Whole pages of host memory to be pinned.
struct HostPages {
  DeviceSpan span;
  std::shared_ptr<const void> owner;  // keeps them mapped until they are unpinned, which may be after the HostPin's end
  bool read_only = false;             // they are mapped so
};

// Host memory that a vendor's copy engine reaches at full speed and without the CPU. Destruction gives it up.
class HostPin {
 public:
  virtual ~HostPin() = default;
};

// The pieces that memory of a virtual allocator is mapped in. As long as this lives no others are taken for them, and what their
// owner gives back is not free.
class HeldChunks {
 public:
  virtual ~HeldChunks() = default;
  [[nodiscard]] virtual DeviceSpan span() const noexcept = 0;  // whole pieces
  [[nodiscard]] virtual bool in_place() = 0;                   // all are still mapped where they were
};

// How others reach a runtime's memory, and it theirs. Thread rules as DeviceRuntime.
class MemorySharing {
 public:
  // A way for others to reach `span`: descriptor or vendor handle plus offset. Errors: unsupported with the reason.
  virtual Result<Blob> export_handle(const DeviceSpan& span, HandleKind kind) = 0;
  // Maps such memory for device `index`. Errors: protocol, device, unsupported.
  virtual Result<std::unique_ptr<Allocation>> import_handle(int index, const Blob& blob, HandleKind kind) = 0;
  // Of memory that HandleKind::chunks shares. Errors: unsupported with the reason.
  virtual Result<std::unique_ptr<HeldChunks>> hold_chunks(const DeviceSpan& /*span*/) {
    return Status(Code::unsupported, "this memory does not lie in pieces");
  }
  // For every device of the vendor. Memory that is pinned already is left as it is. unsupported: copies work all the same, more
  // slowly.
  virtual Result<std::unique_ptr<HostPin>> pin_host(int index, const HostPages& host) = 0;
  // Bytes of its memory that network cards may have registered for one process at once; 0: no limit is known.
  [[nodiscard]] virtual std::size_t registration_limit() const noexcept { return 0; }

 protected:
  ~MemorySharing() = default;
};

// A reduction of memory that one device reaches, as reduce_on_cpu().
struct ReductionOp {
  DeviceSpan target;                     // whole elements; its device reduces
  std::span<const void* const> sources;  // each of as many bytes; addresses of that device; the list is not read after the call
  ReduceStep step;
  std::array<const StreamPoint*, 2> after = {};  // of the same runtime: come first; not used after the call
};

// One rank's share in the reductions of a group over mapped memory (device/exchange.h). Its kernels run one after the other, on a
// stream of their own: kernels of two groups wait for other devices at the same time, and in what order those run them is not
// known.
class DeviceExchange {
 public:
  virtual ~DeviceExchange() = default;  // once no kernel is pending
  [[nodiscard]] virtual DeviceSpan segment() const noexcept = 0;
  // run() would have to wait for a thread that loads a kernel of the device or frees its memory.
  [[nodiscard]] virtual bool is_held_up() = 0;
  // `call` without `ended`. `after`: of the same runtime: come first; not used after the call. `done` as for DeviceRuntime::copy.
  virtual Status run(ExchangeCall call, const std::array<const StreamPoint*, 2>& after, Completion* done) = 0;
  // What is queued on `stream`, of the same device, from now on waits for the kernels that are pending.
  virtual Status order(StreamHandle stream) = 0;
  // Pending kernels, and all later ones, end soon, whatever they have done. Any thread.
  virtual void end_kernels() noexcept = 0;
};

// Digests and conversions of pages by a device. Thread rules as DeviceRuntime.
class DevicePages {
 public:
  // Blocking. Errors: unsupported (with the reason; perhaps for now, while the kernel is compiled), out_of_memory, device.
  virtual Status run(int index, const PageCall& call) = 0;

 protected:
  ~DevicePages() = default;
};

// A term of a weighted sum, as kernels read it.
struct WeightedTerm {
  const void* row = nullptr;  // in memory that the device reaches; null: the term is left out
  float weight = 0;
  std::uint32_t unused = 0;
};

// A weighted sum of rows in memory that one device reaches, as weighted_sum_of_rows() (hmc/weighted_sum.h).
struct WeightedSumOp {
  DeviceSpan target;                    // whole rows; its device computes
  std::span<const WeightedTerm> terms;  // of all results
  std::size_t results = 0;
  DataType type = DataType::bf16;
};

// What a device computes. Thread rules as DeviceRuntime.
class DeviceCompute {
 public:
  virtual Status fill(const DeviceSpan& target, std::uint8_t value) = 0;  // blocking
  // Makes device `index` ready to reduce elements of that type; may take a while the first time. Errors: unsupported (with the
  // reason; perhaps for now, while the kernel is compiled: the CPU reduces).
  virtual Status prepare_reduction(int index, DataType type, std::size_t sources) = 0;
  // `done` as for DeviceRuntime::copy. Errors: as prepare_reduction().
  virtual Status reduce(const ReductionOp& op, Completion* done) = 0;
  // As prepare_reduction(), for a DeviceExchange.
  virtual Status prepare_exchange(int /*index*/, DataType /*type*/) {
    return Status(Code::unsupported, "its kernels exchange nothing with other devices");
  }
  // With a segment for a group of `ranks`, which is empty. Blocking. Errors: unsupported, out_of_memory, device.
  virtual Result<std::unique_ptr<DeviceExchange>> open_exchange(int /*index*/, std::uint32_t /*ranks*/) {
    return Status(Code::unsupported, "its kernels exchange nothing with other devices");
  }
  // Whether memory that was to be freed is kept, because kernels that wait for other devices were pending on its device.
  [[nodiscard]] virtual bool keeps_memory() const noexcept { return false; }
  // Frees it, unless such kernels are pending now. Waits for what runs on the device: engine lock not held.
  virtual void release_memory() {}
  // Null: its kernels know no pages.
  [[nodiscard]] virtual DevicePages* pages() noexcept { return nullptr; }
  // Makes device `index` ready for weighted_sum(). False: not yet (the kernel is compiled, or a held stream keeps the device
  // waiting). Errors: unsupported (there is no kernel), device.
  virtual Result<bool> prepare_weighted_sum(int /*index*/, DataType /*type*/) {
    return Status(Code::unsupported, "its kernels compute no weighted sums");
  }
  // Blocking. At least one result and one term. Errors: unsupported (no kernel, or not yet), out_of_memory, device.
  virtual Status weighted_sum(const WeightedSumOp& /*op*/) {
    return Status(Code::unsupported, "its kernels compute no weighted sums");
  }
  // Lets kernels of device `index` reach memory of `other`, which this process has allocated. Errors: unsupported.
  virtual Status reach(int /*index*/, int /*other*/) { return Status(Code::unsupported, "its kernels reach no other device"); }

 protected:
  ~DeviceCompute() = default;
};

// Thread rules: every call from any thread, no engine lock needed; implementations lock inside.
// Eight methods at most: capabilities that a vendor lacks are `unsupported` with the reason.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  // Devices usable now; available=false with the reason when the library or the devices are absent. Opens it on first call.
  virtual RuntimeInfo enumerate() = 0;
  // nullopt: not this runtime's pointer. Must not fault on any address. Errors: device, closed (in a forked child) where the vendor
  // does not say.
  virtual Result<std::optional<PointerInfo>> classify(const void* data, std::size_t bytes) = 0;
  virtual Result<std::unique_ptr<Allocation>> allocate(int index, std::size_t bytes, const MemoryOptions& options) = 0;
  // `done` is completed once the bytes are in place: perhaps inside the call, else by poll(), on whatever thread calls that.
  virtual Status copy(const CopyOp& op, Completion* done) = 0;
  virtual DeviceCompute& compute() = 0;
  virtual MemorySharing& sharing() = 0;
  virtual DeviceStreams& streams() = 0;
  // Completes what has finished; true if anything did. Never blocks. Whoever waits for a copy calls it.
  virtual bool poll() = 0;
};

// Waits for one copy.
class BlockingCompletion final : public Completion {
 public:
  void complete(Status status) noexcept override;
  Status wait(DeviceRuntime& runtime);

 private:
  Status status_;
  std::atomic<bool> done_{false};
};

struct DeviceRuntimeFactory {
  std::string_view vendor;
  DeviceRuntime& (*instance)();  // process-wide, made on first call, never destroyed
};

// At the end of a runtime's file, at global scope and at the start of a line: HMC_DEVICE_RUNTIME(host, "cpu",
// hmc::host_runtime_instance); CMake collects the names.
#define HMC_DEVICE_RUNTIME(name, vendor, instance)                    \
  extern const ::hmc::DeviceRuntimeFactory hmc_device_runtime_##name; \
  constinit const ::hmc::DeviceRuntimeFactory hmc_device_runtime_##name { vendor, instance }

// The generated table; the CPU is first.
std::span<const DeviceRuntimeFactory* const> device_runtimes() noexcept;
// The runtime that owns `device`. Errors: unsupported when no such vendor is compiled in.
Result<DeviceRuntime*> runtime_for(const Device& device);
// Asks the runtimes in turn; anything unclaimed is CPU memory. Errors: those of DeviceRuntime::classify, unless the CPU can read
// the memory: after the fault of a kernel, say, a vendor says nothing of any address.
Result<PointerInfo> classify_pointer(const void* data, std::size_t bytes);
// Whether device memory ends within the span, as far as its vendor says where allocations end. Errors: invalid_argument.
Status check_extent(const DeviceSpan& span);
// Copies between any two devices, blocking, staging through host memory when no runtime does it directly.
Status copy_blocking(const DeviceSpan& target, const DeviceSpan& source);
// The same for the blocks of an operation.
Status copy_blocking(const CopyOp& blocks);

}  // namespace hmc
