// VendorCalls: everything that HMC asks of a vendor's runtime. One implementation per call shape (CUDA driver, CUDA-like runtime,
// CNRT); Accelerator builds a DeviceRuntime on it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

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

// Block i of `bytes` bytes: source + source_offsets[i] to target + target_offsets[i], both reached by one device.
struct VendorBlocks {
  void* target;
  const void* source;
  const std::uint64_t* target_offsets;
  const std::uint64_t* source_offsets;
  std::size_t count;
  std::size_t bytes;
};

struct VendorPointer {
  int index = 0;
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
// Thread rules: any thread, as the vendors promise; open() once, under the owner's lock.
class VendorCalls {
 public:
  virtual ~VendorCalls() = default;

  // Opens the library, looks up what is needed and initialises. Errors: unsupported with the reason.
  virtual Status open() = 0;
  // Whether memory of this vendor can exist in the process: cheap, loads nothing.
  virtual bool resident() = 0;
  [[nodiscard]] virtual std::string library() const = 0;     // its path
  [[nodiscard]] virtual std::string provenance() const = 0;  // "hardware", "simulated", "facade"
  [[nodiscard]] virtual const VendorCodes& codes() const noexcept = 0;
  virtual std::string error_name(int code) = 0;

  // PCI's number of the vendor whose cards these are; 0: whatever the library finds.
  [[nodiscard]] virtual int pci_vendor() const noexcept { return 0; }

  virtual int count(int& devices) = 0;
  virtual int describe(int index, VendorDevice& device) = 0;
  virtual std::vector<std::string> capabilities(int /*index*/) { return {"IPC handles"}; }  // DeviceInfo's words
  virtual VendorLink link(int /*from*/, int /*to*/) { return {}; }
  // Makes the device current on this thread; `previous` goes to leave(), which restores what was current.
  virtual int enter(int index, std::uintptr_t& previous) = 0;
  virtual void leave(std::uintptr_t previous) = 0;
  // (current) Lets the current device reach the memory of `other`. Already enabled is success.
  virtual int enable_peer(int other) = 0;

  virtual int allocate(std::size_t bytes, void*& data) = 0;  // (current)
  virtual int release(void* data) = 0;
  // Success with false: not this vendor's device memory. Must not fault on any address.
  virtual bool classify(const void* data, VendorPointer& pointer) = 0;
  // (current) For every device of the vendor; `read_only`: the host's mapping cannot be written.
  virtual int pin(void* host, std::size_t bytes, bool read_only) = 0;
  virtual int unpin(void* host) = 0;
  virtual int ipc_export(void* base, IpcHandle& handle) = 0;
  virtual int ipc_open(const IpcHandle& handle, void*& base) = 0;  // (current)
  virtual int ipc_close(void* base) = 0;

  // Memory that was mapped piece by piece, which ipc_export refuses. Unsupported where the vendor has no such memory.
  // The piece that `at` lies in, held until drop_chunk(): no other piece is taken for it meanwhile, wherever that is mapped.
  virtual int hold_chunk(const void* /*at*/, VendorChunk& /*chunk*/) { return codes().unsupported; }
  virtual void drop_chunk(const VendorChunk& /*chunk*/) {}
  // Whether a held one is still mapped where it was.
  virtual bool chunk_in_place(const VendorChunk& /*chunk*/) { return false; }
  // A descriptor of a held one, which becomes the caller's.
  virtual int export_chunk(VendorChunk& /*chunk*/) { return codes().unsupported; }
  // (current) Maps the pieces side by side for device `index`, and says where. The descriptors stay the caller's.
  virtual int map_chunks(int /*index*/, std::span<VendorChunk> /*chunks*/) { return codes().unsupported; }
  virtual int allow_chunks(int /*index*/, std::span<const VendorChunk> /*chunks*/) { return codes().unsupported; }
  virtual void unmap_chunks(std::span<const VendorChunk> /*chunks*/) {}
  // (current) A dma-buf of whole host pages of one allocation; the descriptor becomes the caller's, and [data, data + bytes) begins
  // at `offset` in it.
  virtual int dma_buf(int /*index*/, void* /*data*/, std::size_t /*bytes*/, int& /*descriptor*/, std::uint64_t& /*offset*/) {
    return codes().unsupported;
  }

  // Bytes of device memory that network cards may have registered for one process at once; 0: nobody knows a limit.
  [[nodiscard]] virtual std::size_t registration_limit() const noexcept { return 0; }

  virtual int make_stream(VendorStream& stream) = 0;  // (current) not ordered behind the default stream
  virtual int copy(void* target, const void* source, std::size_t bytes, CopyDirection direction, VendorStream stream) = 0;
  // (current) Blocks by few launches on device `index`; adds those on their way to `issued`, also where it fails. Unsupported: the
  // rest goes one copy each.
  virtual int copy_blocks(int /*index*/, const VendorBlocks& /*blocks*/, VendorStream /*stream*/, std::size_t& /*issued*/) {
    return codes().unsupported;
  }
  virtual int fill(void* target, std::uint8_t value, std::size_t bytes, VendorStream stream) = 0;
  virtual int make_event(VendorEvent& event) = 0;  // (current) without timing
  virtual int record(VendorEvent event, VendorStream stream) = 0;
  virtual int query(VendorEvent event) = 0;
  virtual int wait(VendorStream stream, VendorEvent event) = 0;  // the stream, not the host
  // (current) Calls function(data) when the stream gets there, on a thread of the vendor's; the stream goes on when it returns.
  virtual int call_host(VendorStream stream, void (*function)(void*), void* data) = 0;
};

// The device is current while this lives.
class DeviceScope {
 public:
  DeviceScope(VendorCalls& calls, int index) : calls_(calls), code_(calls.enter(index, previous_)) {}
  ~DeviceScope() {
    if (code_ == 0) calls_.leave(previous_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  [[nodiscard]] int code() const noexcept { return code_; }

 private:
  VendorCalls& calls_;
  std::uintptr_t previous_ = 0;
  const int code_;
};

}  // namespace hmc
