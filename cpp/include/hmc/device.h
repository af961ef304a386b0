// Names of memory owners: "cpu", "cuda:0", "rocm:1", "hygon:0", "mlu:0", "musa:0".
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hmc/export.h"
#include "hmc/status.h"

namespace hmc {

// One memory owner. A small value: vendors are an open set, which this build numbers.
// Thread rules: immutable value.
class HMC_API Device {
 public:
  Device() noexcept = default;  // the CPU
  static Device cpu() noexcept { return Device(); }
  // "cpu", "cuda", "cuda:3". A vendor without a number means device 0. Syntax only: the device need not exist.
  // Errors: invalid_argument for malformed text or an index above 65535.
  static Result<Device> parse(std::string_view text);

  [[nodiscard]] std::string_view vendor() const noexcept;  // "cpu", "cuda", ...
  [[nodiscard]] int index() const noexcept { return index_; }
  [[nodiscard]] bool is_cpu() const noexcept { return vendor_ == 0; }
  [[nodiscard]] std::string str() const;  // "cpu" or "vendor:index"

  friend auto operator<=>(const Device&, const Device&) noexcept = default;

 private:
  std::uint16_t vendor_ = 0;
  std::uint16_t index_ = 0;
};

// A vendor's stream (cudaStream_t, hipStream_t, cnrtQueue_t) as a number.
using StreamHandle = std::uintptr_t;
inline constexpr StreamHandle no_stream = 0;
inline constexpr StreamHandle default_stream = 1;  // the vendor's default stream, whose own handle is null

class StreamPoint;  // of a runtime; defined in the device layer

// What is queued on a stream when this is made, and no later work. Any thread.
class HMC_API StreamMark {
 public:
  // Errors: unsupported (the CPU has no streams), device.
  static Result<StreamMark> of(const Device& device, StreamHandle stream);
  // Whether that work is over. Errors: device, closed (in a child of fork()).
  [[nodiscard]] Result<bool> reached() const;

 private:
  explicit StreamMark(std::shared_ptr<StreamPoint> point) noexcept : point_(std::move(point)) {}
  std::shared_ptr<StreamPoint> point_;
};

// Returns when what was queued on `stream` before the call is over. Errors: unsupported (the CPU has no streams), device.
HMC_API Status synchronize_stream(const Device& device, StreamHandle stream);

// One row of `hmc info`: a device that exists, or a runtime that is absent and why.
struct DeviceInfo {
  Device device;
  std::string name;            // "Intel(R) Xeon(R) ...", "NVIDIA H200"
  std::uint64_t memory_bytes;  // total, 0 if unknown
  std::string pci;             // "0000:3b:00.0", empty for the CPU
  std::string provenance;      // "hardware", "simulated", "facade"
  int numa_node = -1;          // of the host; -1 if unknown
  double host_bandwidth = 0;   // expected to and from host memory, bytes per second and direction; 0 if unknown
  // What else its runtime offers: "IPC handles" (other processes map its memory), "virtual memory" (also in pieces), "dma-buf"
  // (network cards reach it), "block kernel" (scattered blocks in one launch), "reductions", "layouts" (conversions and digests of
  // KV caches), "weighted sums" (of experts' results). Asked of the runtime, not tried.
  std::vector<std::string> capabilities = {};
};
// How two devices of one vendor reach each other without the host.
struct DeviceLink {
  Device a, b;
  std::string kind;      // "nvlink", "peer" (the vendor does not say over what)
  double bandwidth = 0;  // expected, bytes per second and direction; 0 if unknown
};
struct RuntimeInfo {
  std::string vendor;
  bool available;
  std::string reason;  // why it is absent, or which library serves it
  std::vector<DeviceInfo> devices;
  std::vector<DeviceLink> links = {};  // a before b
};

// Every runtime compiled in, available or not. Opens vendor libraries on first use; never fails.
HMC_API std::vector<RuntimeInfo> list_runtimes();
// Devices usable in this process; the CPU is always first.
HMC_API std::vector<DeviceInfo> list_devices();

}  // namespace hmc
