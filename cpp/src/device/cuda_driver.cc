// NVIDIA through the driver API: no toolkit needed, and no second runtime beside a framework's.
#include <atomic>
#include <mutex>
#include <vector>

#include "device/accelerator.h"
#include "device/block_kernel.h"
#include "device/cuda_chunks.h"
#include "device/cuda_driver_api.h"
#include "device/exchange_kernel.h"
#include "device/kernels/ptx.h"
#include "device/library.h"
#include "device/page_kernel.h"
#include "device/reduce_kernel.h"
#include "device/weighted_sum_kernel.h"

namespace hmc {
namespace {

constexpr std::string_view versions[] = {"1", ""};
constexpr std::string_view folders[] = {"/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib"};
constexpr LibraryRow row{"HMC_CUDA_LIBRARY", "libcuda.so", versions, folders};

using cuda_driver::Context;
using cuda_driver::Pointer;

constexpr std::size_t device_page = 2 << 20;

// All links of a data-centre card, bytes per second and direction (NVIDIA's data sheets: half of the figure for both directions).
// The driver API does not say how many links there are; 0: not known.
double nvlink_bandwidth(int major) {
  switch (major) {
    case 7:
      return 150e9;
    case 8:
      return 300e9;
    case 9:
      return 450e9;
    case 10:
      return 900e9;
    default:
      return 0;
  }
}

Pointer address(const void* data) { return reinterpret_cast<Pointer>(data); }

kernel::Vendor kernel_vendor() {
  return {cuda_driver::codes.unsupported, cuda_driver::codes.out_of_memory, kernel::cuda_multiprocessor_count,
          [](int code) { return code; }};
}

kernel::Image image_of(std::string_view name) { return {ptx_of(name), false}; }

class CudaDriver final : public VendorRuntime {
 public:
  Status open() override {
    HMC_TRY(library_.open());
    HMC_TRY(load());
    if (const int code = api_.init(0); code != 0) {
      return Status(Code::unsupported, library() + " does not initialise: " + error_name(code) + " (" + std::to_string(code) + ")",
                    code);
    }
    return {};
  }
  bool resident() override { return library_.resident(); }
  [[nodiscard]] std::string library() const override { return library_.path(); }
  [[nodiscard]] std::string provenance() const override { return library_.provenance(); }
  std::string error_name(int code) override {
    const char* name = nullptr;
    return api_.error_name(code, &name) == 0 && name != nullptr ? name : "unknown error";
  }
  // Null functions until open().
  [[nodiscard]] const cuda_driver::Api& api() const noexcept { return api_; }
  [[nodiscard]] const cuda_driver::ChunkApi& chunk_api() const noexcept { return chunk_api_; }
  [[nodiscard]] const kernel::Api& kernel_api() const noexcept { return kernel_api_; }
  [[nodiscard]] BlockKernel& blocks() noexcept { return blocks_; }

 private:
  Status load();

  VendorLibrary library_{row};
  cuda_driver::Api api_;
  cuda_driver::ChunkApi chunk_api_;
  kernel::Api kernel_api_;
  BlockKernel blocks_{kernel_api_, kernel_vendor(), [](int) { return image_of("hmc_copy_blocks"); }};
};

Status CudaDriver::load() {
  std::string missing;
  const auto need = [&](auto*& function, const char* name) {
    library_.load(function, name);
    if (function == nullptr) missing += std::string(missing.empty() ? "" : ", ") + name;
  };
#define HMC_NEED(member, name, ...) need(api_.member, #name);
#define HMC_WANT(member, name, ...) library_.load(api_.member, #name);
#define HMC_WANT_CHUNK(member, name, ...) library_.load(chunk_api_.member, #name);
  HMC_CUDA_DRIVER_CALLS(HMC_NEED)
  HMC_CUDA_DRIVER_OPTIONAL_CALLS(HMC_WANT)
  HMC_CUDA_CHUNK_CALLS(HMC_WANT_CHUNK)
#undef HMC_NEED
#undef HMC_WANT
#undef HMC_WANT_CHUNK
  kernel_api_.load_cuda(library_);
  if (missing.empty()) return {};
  return Status(Code::unsupported, library() + " is too old: it has no " + missing + "; a driver of CUDA 11 or later is needed");
}

// 0: the device exports dma-bufs.
int has_dma_buf(const cuda_driver::Api& api, int index) {
  int handle = 0;
  int able = 0;
  if (api.dma_buf == nullptr || api.device_attribute == nullptr) return cuda_driver::codes.unsupported;
  int code = api.device_get(&handle, index);
  if (code == 0) code = api.device_attribute(&able, cuda_driver::device_dma_buf_supported, handle);
  return code == 0 && able == 0 ? cuda_driver::codes.unsupported : code;
}

class CudaDevices final : public VendorDevices {
 public:
  explicit CudaDevices(CudaDriver& driver) noexcept : driver_(driver), api_(driver.api()) {}
  int count(int& devices) override {
    const int code = api_.device_count(&devices);
    if (code == 0) contexts_ = std::vector<std::atomic<Context>>(static_cast<std::size_t>(std::max(devices, 0)));
    return code;
  }
  int describe(int index, VendorDevice& device) override {
    char text[256] = {};
    std::size_t bytes = 0;
    int handle = 0;
    int code = api_.device_get(&handle, index);
    if (code == 0) code = api_.device_name(text, sizeof text, handle);
    if (code != 0) return code;
    device.name = text;
    if (api_.device_pci(text, sizeof text, handle) == 0) device.pci = text;
    if (api_.device_memory(&bytes, handle) == 0) device.memory_bytes = bytes;
    return 0;
  }
  std::vector<std::string> capabilities(int index) override {
    std::vector<std::string> names{"IPC handles"};
    if (driver_.chunk_api().complete()) names.emplace_back("virtual memory");
    if (has_dma_buf(api_, index) == 0) names.emplace_back("dma-buf");
    if (driver_.kernel_api().complete()) names.insert(names.end(), {"block kernel", "reductions", "layouts", "weighted sums"});
    return names;
  }
  VendorLink link(int from, int to) override {
    int reaches = 0, atomics = 0, generation = 0;
    if (api_.p2p_attribute == nullptr || api_.p2p_attribute(&reaches, cuda_driver::p2p_access_supported, from, to) != 0 ||
        reaches == 0)
      return {};
    // Atomics reach across NVLink alone.
    if (api_.p2p_attribute(&atomics, cuda_driver::p2p_native_atomics, from, to) != 0 || atomics == 0) return {"peer", 0};
    if (api_.device_attribute == nullptr ||
        api_.device_attribute(&generation, cuda_driver::device_compute_capability_major, from) != 0)
      return {"nvlink", 0};
    return {"nvlink", nvlink_bandwidth(generation)};
  }
  // The primary context, which frameworks share; made (or joined) when the device is first used, and kept. It is mostly current on
  // the threads of those.
  int enter(int index, std::uintptr_t& previous) override {
    Context context = nullptr, current = nullptr;
    if (const int code = context_of(index, context); code != 0) return code;
    previous = api_.current(&current) == 0 && current == context ? unchanged : 0;
    return previous == unchanged ? 0 : api_.push(context);
  }
  void leave(std::uintptr_t previous) override {
    Context context = nullptr;
    if (previous != unchanged) static_cast<void>(api_.pop(&context));
  }
  int enable_peer(int other) override {
    Context context = nullptr;
    if (const int code = context_of(other, context); code != 0) return code;
    const int code = api_.enable_peer(context, 0);
    return code == cuda_driver::peer_access_already_enabled ? 0 : code;
  }

 private:
  static constexpr std::uintptr_t unchanged = 1;
  int context_of(int index, Context& context) {
    std::atomic<Context>& known = contexts_[static_cast<std::size_t>(index)];
    context = known.load(std::memory_order_acquire);
    if (context != nullptr) return 0;
    const std::scoped_lock lock(mutex_);
    context = known.load(std::memory_order_relaxed);
    if (context != nullptr) return 0;
    int handle = 0;
    int code = api_.device_get(&handle, index);
    if (code == 0) code = api_.retain(&context, handle);
    if (code == 0) known.store(context, std::memory_order_release);
    return code;
  }

  CudaDriver& driver_;
  const cuda_driver::Api& api_;
  std::mutex mutex_;                            // of new ones
  std::vector<std::atomic<Context>> contexts_;  // by device; null: not used yet; else constant
};

class CudaMemory final : public VendorMemory {
 public:
  explicit CudaMemory(const cuda_driver::Api& api) noexcept : api_(api) {}
  // Smaller allocations share a page of the device, and a handle to one gives its neighbours away with it.
  int allocate(std::size_t bytes, void*& data) override {
    Pointer pointer = 0;
    if (bytes > SIZE_MAX - device_page) return cuda_driver::codes.out_of_memory;
    const int code = api_.allocate(&pointer, (bytes + device_page - 1) / device_page * device_page);
    data = reinterpret_cast<void*>(pointer);
    return code;
  }
  int release(void* data) override { return api_.release(address(data)); }
  int classify(const void* data, VendorPointer& pointer) override {
    int wanted[] = {cuda_driver::attribute_memory_type, cuda_driver::attribute_device_ordinal, cuda_driver::attribute_range_start,
                    cuda_driver::attribute_range_size, cuda_driver::attribute_buffer_id};
    unsigned type = 0;
    int ordinal = 0;
    Pointer start = 0;
    std::size_t bytes = 0;
    unsigned long long id = 0;
    void* values[] = {&type, &ordinal, &start, &bytes, &id};
    const int code = api_.attributes(5, wanted, values, address(data));
    if (code == cuda_driver::invalid_value) return 0;
    if (code == 0 && type == cuda_driver::memory_type_device) pointer = {ordinal, reinterpret_cast<void*>(start), bytes, id};
    return code;
  }
  int pin(void* host, std::size_t bytes, bool read_only) override {
    return api_.pin(host, bytes, cuda_driver::host_register_portable | (read_only ? cuda_driver::host_register_read_only : 0));
  }
  int unpin(void* host) override { return api_.unpin(host); }
  bool kernels_reach(void* host) override {
    Pointer there = 0;
    return api_.device_pointer != nullptr && api_.device_pointer(&there, host, 0) == 0 && there == address(host);
  }

 private:
  const cuda_driver::Api& api_;
};

class CudaHandles final : public VendorHandles {
 public:
  explicit CudaHandles(const cuda_driver::Api& api) noexcept : api_(api) {}
  int ipc_export(void* base, IpcHandle& handle) override { return api_.ipc_get(&handle, address(base)); }
  int ipc_open(const IpcHandle& handle, void*& base) override {
    Pointer pointer = 0;
    // Without peer access a mapping of another device's memory has a tenth of the bandwidth.
    const int code = api_.ipc_open(&pointer, handle, cuda_driver::ipc_lazy_peer_access);
    base = reinterpret_cast<void*>(pointer);
    return code;
  }
  int ipc_close(void* base) override { return api_.ipc_close(address(base)); }
  int dma_buf(int index, void* data, std::size_t bytes, int& descriptor, std::uint64_t& offset) override {
    offset = 0;
    if (const int code = has_dma_buf(api_, index); code != 0) return code;
    return api_.dma_buf(&descriptor, address(data), bytes, cuda_driver::range_dma_buf, 0);
  }

 private:
  const cuda_driver::Api& api_;
};

class CudaStreams final : public VendorStreams {
 public:
  explicit CudaStreams(const cuda_driver::Api& api) noexcept : api_(api) {}
  int make_stream(VendorStream& stream) override { return api_.stream_create(&stream, cuda_driver::stream_non_blocking); }
  int make_event(VendorEvent& event) override { return api_.event_create(&event, cuda_driver::event_disable_timing); }
  int record(VendorEvent event, VendorStream stream) override { return api_.event_record(event, stream); }
  int query(VendorEvent event) override { return api_.event_query(event); }
  int query_stream(VendorStream stream) override { return api_.stream_query(stream); }
  int wait(VendorStream stream, VendorEvent event) override { return api_.stream_wait(stream, event, 0); }
  int call_host(VendorStream stream, void (*function)(void*), void* data) override {
    return api_.call_host == nullptr ? cuda_driver::codes.unsupported : api_.call_host(stream, function, data);
  }

 private:
  const cuda_driver::Api& api_;
};

class CudaCopies final : public VendorCopies {
 public:
  explicit CudaCopies(CudaDriver& driver) noexcept : api_(driver.api()), blocks_(driver.blocks()) {}
  int copy(void* target, const void* source, std::size_t bytes, CopyDirection direction, VendorStream stream) override {
    switch (direction) {
      case CopyDirection::to_device:
        return api_.to_device(address(target), source, bytes, stream);
      case CopyDirection::to_host:
        return api_.to_host(target, address(source), bytes, stream);
      case CopyDirection::on_device:
        return api_.on_device(address(target), address(source), bytes, stream);
    }
    return cuda_driver::codes.unsupported;
  }
  int prepare_blocks(int index) override { return blocks_.prepare(index); }
  bool blocks_prepared(int index) override { return blocks_.prepared(index); }
  int copy_blocks(int index, const VendorBlocks& blocks, VendorStream stream, std::size_t& issued) override {
    return blocks_.copy(index, blocks, stream, issued);
  }
  int fill(void* target, std::uint8_t value, std::size_t bytes, VendorStream stream) override {
    return api_.fill(address(target), value, bytes, stream);
  }

 private:
  const cuda_driver::Api& api_;
  BlockKernel& blocks_;
};

VendorCalls cuda_calls() {
  auto runtime = std::make_unique<CudaDriver>();
  CudaDriver& driver = *runtime;
  const cuda_driver::Api& api = driver.api();
  const auto reduce_image = [](int, DataType type) { return image_of(name_of_reduce_kernel(type)); };
  const auto exchange_image = [](int, DataType type) { return image_of(name_of_exchange_kernel(type)); };
  const auto page_image = [](int, PageKernelId id) { return image_of(id.name()); };
  const auto sum_image = [](int, DataType type) { return image_of(name_of_weighted_sum_kernel(type)); };
  const auto allocate = [&api](std::size_t bytes, void*& data) {
    Pointer made = 0;
    const int code = api.allocate(&made, bytes);
    data = reinterpret_cast<void*>(made);
    return code;
  };
  return {.traits = {.codes = cuda_driver::codes},
          .runtime = std::move(runtime),
          .devices = std::make_unique<CudaDevices>(driver),
          .memory = std::make_unique<CudaMemory>(api),
          .handles = std::make_unique<CudaHandles>(api),
          .streams = std::make_unique<CudaStreams>(api),
          .copies = std::make_unique<CudaCopies>(driver),
          .chunks = std::make_unique<CudaChunks>(driver.chunk_api()),
          .compute = std::make_unique<ReduceKernel>(driver.kernel_api(), kernel_vendor(), reduce_image),
          .exchange = std::make_unique<ExchangeKernel>(driver.kernel_api(), kernel_vendor(), exchange_image, allocate),
          .pages = std::make_unique<PageKernel>(driver.kernel_api(), kernel_vendor(), page_image),
          .weighted_sums = std::make_unique<WeightedSumKernel>(driver.kernel_api(), kernel_vendor(), sum_image)};
}

DeviceRuntime& cuda_instance() {
  static Accelerator* const instance = new Accelerator("cuda", cuda_calls());  // never destroyed, as memory may outlive us
  return *instance;
}

}  // namespace
}  // namespace hmc

HMC_DEVICE_RUNTIME(cuda, "cuda", hmc::cuda_instance);
