// VendorCalls: everything that HMC calls of a vendor's runtime, one interface per concept. One implementation per call shape (CUDA
// driver, CUDA-like runtime, CNRT); Accelerator builds a DeviceRuntime on it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/exchange.h"
#include "device/pages.h"
#include "device/reduce.h"
#include "hmc/status.h"

namespace hmc {

// What a vendor's codes mean to HMC. Everything else is an error of the device.
struct VendorCodes {
  int not_ready[2];
  int out_of_memory;
  int unsupported;
  int no_device;
  int invalid_handle;  // what it says to a stream that is none of the device's
  int already_pinned;  // of host memory, or a part of it; 0: it has no such code
};

using VendorStream = void*;
using VendorEvent = void*;
using IpcHandle = std::array<std::byte, 64>;  // vendors with shorter ones leave the rest zero

enum class CopyDirection : std::uint8_t { to_device, to_host, on_device };

struct VendorDevice {
  std::string name;
  std::string pci;  // "0000:3b:00.0"
  std::uint64_t memory_bytes = 0;
};

// How a device reaches the memory of another of its vendor.
struct VendorLink {
  std::string kind;      // empty: it does not, or the vendor does not say
  double bandwidth = 0;  // bytes per second and direction; 0: unknown
};

// Where blocks are copied: within one device's memory, between two devices, or with the host's memory.
enum class BlockWay : std::uint8_t { on_device, between_devices, over_bus };

// Block i of `bytes` bytes: source + source_offsets[i] to target + target_offsets[i], both reached by one device.
struct VendorBlocks {
  void* target;
  const void* source;
  const std::uint64_t* target_offsets;
  const std::uint64_t* source_offsets;
  std::size_t count;
  std::size_t bytes;
  BlockWay way = BlockWay::on_device;
};

// target[i] = sources[0][i] op sources[1][i] op ..., all reached by one device.
struct VendorReduction {
  void* target;
  std::span<const void* const> sources;
  std::size_t count;  // elements
  ReduceStep step;
};

// Result t of `row_bytes` bytes = sum over k of weight (t, k) * row (t, k), all reached by one device.
struct VendorWeightedSum {
  void* target;
  const void* terms;        // WeightedTerms
  std::uintptr_t row_bits;  // of the addresses of all rows
  std::size_t results;
  std::size_t terms_count;  // of each result
  std::size_t row_bytes;
  DataType type;
};

struct VendorPointer {
  int index = -1;  // none: it is not this vendor's device memory
  void* base = nullptr;
  std::size_t bytes = 0;
  std::uint64_t id = 0;
};

// A piece of memory of a virtual-memory allocator.
struct VendorChunk {
  void* base = nullptr;
  std::size_t bytes = 0;
  std::uint64_t handle = 0;  // while it is held
  int descriptor = -1;
};

// All int results are the vendor's own codes, 0 for success. Calls marked (current) act on the device made current by enter().
// Thread rules of every interface below: any thread, as the vendors promise.

// The library itself.
class VendorRuntime {
 public:
  virtual ~VendorRuntime() = default;
  // Opens the library, looks up what is needed and initialises; once, under the owner's lock. Nothing else of the vendor may be
  // called before. Errors: unsupported with the reason.
  virtual Status open() = 0;
  // Whether memory of this vendor can exist in the process: cheap, loads nothing; may be called before open(), under the owner's
  // lock.
  virtual bool resident() = 0;
  [[nodiscard]] virtual std::string library() const = 0;     // its path
  [[nodiscard]] virtual std::string provenance() const = 0;  // "hardware", "simulated", "facade"
  virtual std::string error_name(int code) = 0;
};

class VendorDevices {
 public:
  virtual ~VendorDevices() = default;
  virtual int count(int& devices) = 0;
  virtual int describe(int index, VendorDevice& device) = 0;
  virtual std::vector<std::string> capabilities(int /*index*/) { return {"IPC handles"}; }  // DeviceInfo's words
  virtual VendorLink link(int /*from*/, int /*to*/) { return {}; }
  // Makes the device current on this thread; `previous` goes to leave(), which restores what was current.
  virtual int enter(int index, std::uintptr_t& previous) = 0;
  virtual void leave(std::uintptr_t previous) = 0;
  // (current) Lets the current device reach the memory of `other`. Already enabled is success.
  virtual int enable_peer(int other) = 0;
};

class VendorMemory {
 public:
  virtual ~VendorMemory() = default;
  virtual int allocate(std::size_t bytes, void*& data) = 0;  // (current)
  virtual int release(void* data) = 0;
  // Must not fault on any address. After an error nothing is known of the memory.
  virtual int classify(const void* data, VendorPointer& pointer) = 0;
  // (current) For every device of the vendor; `read_only`: the host's mapping cannot be written.
  virtual int pin(void* host, std::size_t bytes, bool read_only) = 0;
  virtual int unpin(void* host) = 0;
  // (current) Whether kernels of every device reach what was pinned there, at the same address.
  virtual bool kernels_reach(void* /*host*/) { return false; }
};

// Handles of whole allocations.
class VendorHandles {
 public:
  virtual ~VendorHandles() = default;
  virtual int ipc_export(void* base, IpcHandle& handle) = 0;
  virtual int ipc_open(const IpcHandle& handle, void*& base) = 0;  // (current)
  virtual int ipc_close(void* base) = 0;
  // (current) A dma-buf of whole host pages of one allocation; the descriptor becomes the caller's, and [data, data + bytes) begins
  // at `offset` in it.
  virtual int dma_buf(int index, void* data, std::size_t bytes, int& descriptor, std::uint64_t& offset) = 0;
};

// Memory that was mapped piece by piece, which ipc_export() refuses.
class VendorChunks {
 public:
  virtual ~VendorChunks() = default;
  // The piece that `at` lies in, held until release(): no other piece is taken for it meanwhile, wherever that is mapped.
  virtual int hold(const void* at, VendorChunk& chunk) = 0;
  virtual void release(const VendorChunk& chunk) = 0;
  // Whether a held one is still mapped where it was.
  virtual bool in_place(const VendorChunk& chunk) = 0;
  // A descriptor of a held one, which becomes the caller's.
  virtual int export_descriptor(VendorChunk& chunk) = 0;
  // (current) Maps the pieces side by side for device `index`, and says where. The descriptors stay the caller's.
  virtual int map(int index, std::span<VendorChunk> chunks) = 0;
  virtual int allow(int index, std::span<const VendorChunk> chunks) = 0;
  virtual void unmap(std::span<const VendorChunk> chunks) = 0;
};

class VendorStreams {
 public:
  virtual ~VendorStreams() = default;
  virtual int make_stream(VendorStream& stream) = 0;  // (current) not ordered behind the default stream
  virtual int make_event(VendorEvent& event) = 0;     // (current) without timing
  virtual int record(VendorEvent event, VendorStream stream) = 0;
  virtual int query(VendorEvent event) = 0;
  virtual int query_stream(VendorStream stream) = 0;             // (current) whether all that is on it so far is over
  virtual int wait(VendorStream stream, VendorEvent event) = 0;  // the stream, not the host
  // (current) Calls function(data) when the stream gets there, on a thread of the vendor's; the stream goes on when it returns.
  virtual int call_host(VendorStream stream, void (*function)(void*), void* data) = 0;
};

// All (current), and asynchronous on a stream.
class VendorCopies {
 public:
  virtual ~VendorCopies() = default;
  virtual int copy(void* target, const void* source, std::size_t bytes, CopyDirection direction, VendorStream stream) = 0;
  // Loads the kernel of copy_blocks() on device `index`. Unsupported: there is none, or it is still being compiled.
  virtual int prepare_blocks(int /*index*/) { return 0; }
  // prepare_blocks() would load nothing.
  virtual bool blocks_prepared(int /*index*/) { return true; }
  // Blocks by few launches on device `index`; adds those on their way to `issued`, also where it fails. Unsupported: the rest goes
  // one copy each.
  virtual int copy_blocks(int index, const VendorBlocks& blocks, VendorStream stream, std::size_t& issued) = 0;
  virtual int fill(void* target, std::uint8_t value, std::size_t bytes, VendorStream stream) = 0;
};

// All (current). What HMC's own kernels compute.
class VendorCompute {
 public:
  virtual ~VendorCompute() = default;
  // Loads the kernel for elements of that type on device `index`. Unsupported: there is none, or it is still being compiled.
  virtual int prepare(int index, DataType type) = 0;
  // prepare() would load nothing.
  virtual bool prepared(int index, DataType type) = 0;
  // At most most_reduced_sources. Asynchronous on the stream; nothing of the arguments is read after the call but the memory.
  virtual int reduce(int index, const VendorReduction& reduction, VendorStream stream) = 0;
};

// All (current). Kernels of several devices that exchange through memory which all of them map. See device/exchange.h.
class VendorExchange {
 public:
  virtual ~VendorExchange() = default;
  // As those of VendorCompute.
  virtual int prepare(int index, DataType type) = 0;
  virtual bool prepared(int index, DataType type) = 0;
  // Memory that other devices write while a kernel of this one reads it. Freed as all memory.
  virtual int allocate(std::size_t bytes, void*& data) = 0;
  // Host memory that kernels read while the host writes it, at the same address. Never freed.
  virtual int allocate_words(std::size_t bytes, void*& data) = 0;
  // Asynchronous on the stream; nothing of the arguments is read after the call but the memory.
  virtual int run(int index, const ExchangeCall& call, VendorStream stream) = 0;
};

// All (current). Digests and conversions of pages.
class VendorPages {
 public:
  virtual ~VendorPages() = default;
  virtual bool prepared(int index, const PageCall& call) = 0;  // prepare() loads nothing any more
  // As VendorCompute::prepare(), for what the call does. Unsupported also: an address is not a multiple of its element's size.
  virtual int prepare(int index, const PageCall& call) = 0;
  // Asynchronous on the stream; nothing of the arguments is read after the call but the memory. The tables are in place when the
  // stream gets there, the sums zero.
  virtual int run(int index, const PageCall& call, const PageTables& tables, VendorStream stream) = 0;
};

// All (current). Weighted sums of rows.
class VendorWeightedSums {
 public:
  virtual ~VendorWeightedSums() = default;
  // As those of VendorCompute.
  virtual int prepare(int index, DataType type) = 0;
  virtual bool prepared(int index, DataType type) = 0;
  // Asynchronous on the stream; nothing of the arguments is read after the call but the memory. The terms are in place when the
  // stream gets there.
  virtual int run(int index, const VendorWeightedSum& sum, VendorStream stream) = 0;
};

// What is known of a vendor without its library.
struct VendorTraits {
  VendorCodes codes;
  int pci_vendor = 0;                  // PCI's number of the vendor whose cards these are; 0: whatever the library finds
  std::size_t registration_limit = 0;  // bytes of device memory that network cards may have registered for one process at once;
                                       // 0: no limit is known
};

// One vendor. The other objects share what `runtime` owns: the functions of the library.
struct VendorCalls {
  VendorTraits traits;
  std::unique_ptr<VendorRuntime> runtime;
  std::unique_ptr<VendorDevices> devices;
  std::unique_ptr<VendorMemory> memory;
  std::unique_ptr<VendorHandles> handles;
  std::unique_ptr<VendorStreams> streams;
  std::unique_ptr<VendorCopies> copies;
  std::unique_ptr<VendorChunks> chunks = nullptr;               // null: the vendor has no such memory
  std::unique_ptr<VendorCompute> compute = nullptr;             // null: the vendor runs no kernel of HMC's
  std::unique_ptr<VendorExchange> exchange = nullptr;           // likewise
  std::unique_ptr<VendorPages> pages = nullptr;                 // likewise
  std::unique_ptr<VendorWeightedSums> weighted_sums = nullptr;  // likewise
};

// The device is current while this lives.
class DeviceScope {
 public:
  DeviceScope(VendorDevices& devices, int index) : devices_(devices), code_(devices.enter(index, previous_)) {}
  ~DeviceScope() {
    if (code_ == 0) devices_.leave(previous_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  [[nodiscard]] int code() const noexcept { return code_; }

 private:
  VendorDevices& devices_;
  std::uintptr_t previous_ = 0;
  const int code_;
};

}  // namespace hmc
