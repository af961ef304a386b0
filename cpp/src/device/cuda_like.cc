// Runtimes that follow the CUDA runtime API call by call: AMD's HIP, Hygon's DTK (a HIP), Moore Threads' MUSA. A vendor is one row.
//
// DTK and MUSA have been seen in other projects' code only. Versions disagree about the encoding of memory types, so that is learnt
// from an allocation at first use.
#include <cstring>

#include "base/log.h"
#include "device/accelerator.h"
#include "device/block_kernel.h"
#include "device/cuda_like_api.h"
#include "device/exchange_kernel.h"
#include "device/kernel_compiler.h"
#include "device/kernels/sources.h"
#include "device/library.h"
#include "device/page_kernel.h"
#include "device/reduce_kernel.h"
#include "device/weighted_sum_kernel.h"

namespace hmc {
namespace {

struct Row {
  std::string_view vendor;
  LibraryRow library;
  const char* prefix;                     // of every call
  const char* driver_prefix = nullptr;    // of the calls that the runtime lacks and its driver interface has; null: none
  const char* dma_buf_library = nullptr;  // for runtimes that have no call for a dma-buf: HSA's, which they are built on
  LibraryRow compiler = {};               // of kernels, where the runtime has none itself
  int pci_vendor = 0;                     // of its cards, where another vendor's runtime has the same calls; 0: any
};

constexpr std::string_view hip_versions[] = {"7", "6", "5", ""};
constexpr std::string_view hip_folders[] = {"/opt/rocm/lib"};
constexpr std::string_view dtk_versions[] = {"5", ""};
constexpr std::string_view dtk_folders[] = {"/opt/dtk/hip/lib", "/opt/dtk/lib"};
constexpr std::string_view musa_versions[] = {"5", "4", "1", ""};
constexpr std::string_view musa_folders[] = {"/usr/local/musa/lib"};

constexpr Row rocm_row{.vendor = "rocm",
                       .library = {"HMC_ROCM_LIBRARY", "libamdhip64.so", hip_versions, hip_folders},
                       .prefix = "hip",
                       .dma_buf_library = "libhsa-runtime64.so.1",
                       .compiler = {"HMC_HIPRTC_LIBRARY", "libhiprtc.so", hip_versions, hip_folders},
                       .pci_vendor = 0x1002};
constexpr Row hygon_row{.vendor = "hygon",
                        .library = {"HMC_HYGON_LIBRARY", "libgalaxyhip.so", dtk_versions, dtk_folders},
                        .prefix = "hip",
                        .pci_vendor = 0x1d94};
constexpr Row musa_row{.vendor = "musa",
                       .library = {"HMC_MUSA_LIBRARY", "libmusart.so", musa_versions, musa_folders},
                       .prefix = "musa",
                       .driver_prefix = "mu"};

// hsa_amd_portable_export_dmabuf().
using HsaDmaBuf = int (*)(const void*, std::size_t, int*, std::uint64_t*);

class CudaLike final : public VendorRuntime {
 public:
  explicit CudaLike(const Row& row) : row_(row), library_(row.library), compiler_(row.compiler) {}

  Status open() override {
    HMC_TRY(library_.open());
    HMC_TRY(load());
    if (api_.init != nullptr) static_cast<void>(clear(api_.init(0)));  // without a device it says so, and so does count()
    return {};
  }
  bool resident() override { return library_.resident(); }
  [[nodiscard]] std::string library() const override { return library_.path(); }
  [[nodiscard]] std::string provenance() const override { return library_.provenance(); }
  std::string error_name(int code) override {
    const char* name = api_.error_name(code);
    return name == nullptr ? "unknown error" : name;
  }

  [[nodiscard]] const Row& row() const noexcept { return row_; }
  // Null functions until open().
  [[nodiscard]] const cuda_like::Api& api() const noexcept { return api_; }
  [[nodiscard]] HsaDmaBuf hsa_dma_buf() const noexcept { return hsa_dma_buf_; }
  [[nodiscard]] BlockKernel& blocks() noexcept { return blocks_; }
  [[nodiscard]] bool has_kernels() { return kernel_api_.complete() && compiler_.available(library_); }
  [[nodiscard]] const kernel::Api& kernel_api() const noexcept { return kernel_api_; }
  [[nodiscard]] kernel::Vendor kernel_vendor() const {
    return {cuda_like::codes.unsupported, cuda_like::codes.out_of_memory, kernel::hip_multiprocessor_count,
            [this](int code) { return clear(code); }};
  }
  // `defines`: lines before the text.
  kernel::Image compile(const char* name, const std::string& defines, const char* text, int device) {
    return compiler_.compile(library_, {name, defines, text}, device,
                             [this, device] { static_cast<void>(clear(api_.device_set(device))); });
  }
  // These runtimes keep the last error for whoever asks next: a framework must not meet ours.
  int clear(int code) const {
    if (code != 0 && api_.last_error != nullptr) static_cast<void>(api_.last_error());
    return code;
  }

 private:
  Status load();

  const Row& row_;
  VendorLibrary library_;
  cuda_like::Api api_;
  KernelCompiler compiler_;
  kernel::Api kernel_api_;
  BlockKernel blocks_{kernel_api_, kernel_vendor(),
                      [this](int device) { return compile("hmc_copy_blocks", {}, copy_blocks_source, device); }};
  HsaDmaBuf hsa_dma_buf_ = nullptr;
};

Status CudaLike::load() {
  std::string missing;
  const auto want = [&](auto*& function, const char* name) { library_.load(function, row_.prefix + std::string(name)); };
  const auto need = [&](auto*& function, const char* name) {
    want(function, name);
    if (function == nullptr) missing += (missing.empty() ? "" : ", ") + (row_.prefix + std::string(name));
  };
  const auto from_driver = [&](auto*& function, const char* name) {
    want(function, name);
    if (function == nullptr && row_.driver_prefix != nullptr) library_.load(function, row_.driver_prefix + std::string(name));
  };
#define HMC_NEED(member, name, ...) need(api_.member, #name);
#define HMC_WANT(member, name, ...) want(api_.member, #name);
#define HMC_FROM_DRIVER(member, name, ...) from_driver(api_.member, #name);
  HMC_CUDA_LIKE_CALLS(HMC_NEED)
  HMC_CUDA_LIKE_OPTIONAL_CALLS(HMC_WANT)
  HMC_CUDA_LIKE_DRIVER_CALLS(HMC_FROM_DRIVER)
  HMC_CUDA_LIKE_NEWER_CALLS(HMC_FROM_DRIVER)
#undef HMC_NEED
#undef HMC_WANT
#undef HMC_FROM_DRIVER
  if (!row_.compiler.stem.empty()) kernel_api_.load_hip(library_);
  // Its own dependency: where it is not loaded already, there is no such runtime either.
  if (row_.dma_buf_library != nullptr)
    VendorLibrary::load_loaded(hsa_dma_buf_, row_.dma_buf_library, "hsa_amd_portable_export_dmabuf");
  if (missing.empty()) return {};
  return Status(Code::unsupported, library() + " is too old or not what its name says: it has no " + missing);
}

class CudaLikeDevices final : public VendorDevices {
 public:
  explicit CudaLikeDevices(CudaLike& runtime) noexcept : runtime_(runtime), api_(runtime.api()) {}
  int count(int& devices) override { return runtime_.clear(api_.device_count(&devices)); }
  int describe(int index, VendorDevice& device) override {
    char text[256] = {};
    std::size_t bytes = 0;
    if (api_.device_name != nullptr) {
      if (const int code = runtime_.clear(api_.device_name(text, sizeof text, index)); code != 0) return code;
      device.name = text;
    } else {
      device.name = std::string(runtime_.row().vendor) + " device";
    }
    if (runtime_.clear(api_.device_pci(text, sizeof text, index)) == 0) device.pci = text;
    if (api_.device_memory != nullptr && runtime_.clear(api_.device_memory(&bytes, index)) == 0) device.memory_bytes = bytes;
    return 0;
  }
  std::vector<std::string> capabilities(int) override {
    std::vector<std::string> names{"IPC handles"};
    if (api_.dma_buf != nullptr || runtime_.hsa_dma_buf() != nullptr) names.emplace_back("dma-buf");
    if (runtime_.has_kernels()) names.insert(names.end(), {"block kernel", "reductions", "layouts", "weighted sums"});
    return names;
  }
  VendorLink link(int from, int to) override {
    int reaches = 0;
    const bool yes = api_.can_reach != nullptr && runtime_.clear(api_.can_reach(&reaches, from, to)) == 0 && reaches != 0;
    return yes ? VendorLink{"peer", 0} : VendorLink{};
  }
  int enter(int index, std::uintptr_t& previous) override {
    int current = 0;
    if (const int code = runtime_.clear(api_.device_get(&current)); code != 0) return code;
    previous = static_cast<std::uintptr_t>(current);
    return current == index ? 0 : runtime_.clear(api_.device_set(index));
  }
  void leave(std::uintptr_t previous) override { static_cast<void>(runtime_.clear(api_.device_set(static_cast<int>(previous)))); }
  int enable_peer(int other) override {
    const int code = runtime_.clear(api_.enable_peer(other, 0));
    return code == cuda_like::peer_access_already_enabled ? 0 : code;
  }

 private:
  CudaLike& runtime_;
  const cuda_like::Api& api_;
};

class CudaLikeMemory final : public VendorMemory {
 public:
  explicit CudaLikeMemory(const CudaLike& runtime) noexcept : runtime_(runtime), api_(runtime.api()) {}
  int allocate(std::size_t bytes, void*& data) override {
    const int code = runtime_.clear(api_.allocate(&data, bytes));
    if (code == 0 && device_type_ < 0) static_cast<void>(learn(data));
    return code;
  }
  int release(void* data) override { return runtime_.clear(api_.release(data)); }
  int classify(const void* data, VendorPointer& pointer) override {
    cuda_like::Attributes found{};
    const int code = runtime_.clear(api_.attributes(&found, data));
    if (code != 0) return code == cuda_like::invalid_value ? 0 : code;
    if (device_type_ < 0) {
      if (const int unknown = calibrate(); unknown != 0) return unknown;
    }
    if (found.type != device_type_) return 0;
    pointer = {found.device, nullptr, 0, 0};
    if (api_.range == nullptr) return 0;
    if (runtime_.clear(api_.range(&pointer.base, &pointer.bytes, const_cast<void*>(data))) != 0) pointer.base = nullptr;
    return 0;
  }
  int pin(void* host, std::size_t bytes, bool) override {
    return runtime_.clear(api_.pin(host, bytes, cuda_like::host_register_portable));
  }
  int unpin(void* host) override { return runtime_.clear(api_.unpin(host)); }

 private:
  // What this version calls device memory.
  int learn(void* device_memory) {
    cuda_like::Attributes found{};
    const int code = runtime_.clear(api_.attributes(&found, device_memory));
    if (code == 0) device_type_ = found.type;
    return code;
  }
  int calibrate() {
    int current = 0;
    void* sample = nullptr;
    if (const int code = runtime_.clear(api_.device_get(&current)); code != 0) return code;
    if (const int code = runtime_.clear(api_.allocate(&sample, 1)); code != 0) return code;
    const int code = learn(sample);
    static_cast<void>(runtime_.clear(api_.release(sample)));
    return code;
  }

  const CudaLike& runtime_;
  const cuda_like::Api& api_;
  std::atomic<int> device_type_{-1};  // -1: not learnt yet
};

class CudaLikeHandles final : public VendorHandles {
 public:
  explicit CudaLikeHandles(const CudaLike& runtime) noexcept : runtime_(runtime), api_(runtime.api()) {}
  int ipc_export(void* base, IpcHandle& handle) override { return runtime_.clear(api_.ipc_get(&handle, base)); }
  int ipc_open(const IpcHandle& handle, void*& base) override {
    int code = cuda_like::invalid_value;
    for (const unsigned flags : cuda_like::ipc_lazy_peer_access) {
      if (code == cuda_like::invalid_value) code = runtime_.clear(api_.ipc_open(&base, handle, flags));
    }
    return code;
  }
  int ipc_close(void* base) override { return runtime_.clear(api_.ipc_close(base)); }
  int dma_buf(int, void* data, std::size_t bytes, int& descriptor, std::uint64_t& offset) override {
    offset = 0;
    int code = api_.dma_buf == nullptr ? cuda_like::codes.unsupported
                                       : runtime_.clear(api_.dma_buf(&descriptor, data, bytes, cuda_like::range_dma_buf, 0));
    if (code == cuda_like::codes.unsupported && runtime_.hsa_dma_buf() != nullptr) {
      code = runtime_.hsa_dma_buf()(data, bytes, &descriptor, &offset) == 0 ? 0 : cuda_like::codes.unsupported;
    }
    return code;
  }

 private:
  const CudaLike& runtime_;
  const cuda_like::Api& api_;
};

class CudaLikeStreams final : public VendorStreams {
 public:
  explicit CudaLikeStreams(const CudaLike& runtime) noexcept : runtime_(runtime), api_(runtime.api()) {}
  int make_stream(VendorStream& stream) override {
    return runtime_.clear(api_.stream_create(&stream, cuda_like::stream_non_blocking));
  }
  int make_event(VendorEvent& event) override { return runtime_.clear(api_.event_create(&event, cuda_like::event_disable_timing)); }
  int record(VendorEvent event, VendorStream stream) override { return runtime_.clear(api_.event_record(event, stream)); }
  int query(VendorEvent event) override { return runtime_.clear(api_.event_query(event)); }
  int query_stream(VendorStream stream) override { return runtime_.clear(api_.stream_query(stream)); }
  int wait(VendorStream stream, VendorEvent event) override { return runtime_.clear(api_.stream_wait(stream, event, 0)); }
  int call_host(VendorStream stream, void (*function)(void*), void* data) override {
    return api_.call_host == nullptr ? cuda_like::codes.unsupported : runtime_.clear(api_.call_host(stream, function, data));
  }

 private:
  const CudaLike& runtime_;
  const cuda_like::Api& api_;
};

class CudaLikeCopies final : public VendorCopies {
 public:
  explicit CudaLikeCopies(CudaLike& runtime) noexcept : runtime_(runtime), api_(runtime.api()) {}
  int copy(void* target, const void* source, std::size_t bytes, CopyDirection direction, VendorStream stream) override {
    int kind = cuda_like::kind_on_device;
    if (direction == CopyDirection::to_device) kind = cuda_like::kind_to_device;
    if (direction == CopyDirection::to_host) kind = cuda_like::kind_to_host;
    return runtime_.clear(api_.copy(target, source, bytes, kind, stream));
  }
  int prepare_blocks(int index) override { return runtime_.blocks().prepare(index); }
  bool blocks_prepared(int index) override { return runtime_.blocks().prepared(index); }
  int copy_blocks(int index, const VendorBlocks& blocks, VendorStream stream, std::size_t& issued) override {
    return runtime_.blocks().copy(index, blocks, stream, issued);
  }
  int fill(void* target, std::uint8_t value, std::size_t bytes, VendorStream stream) override {
    return runtime_.clear(api_.fill(target, value, bytes, stream));
  }

 private:
  CudaLike& runtime_;
  const cuda_like::Api& api_;
};

VendorCalls cuda_like_calls(const Row& row) {
  auto owned = std::make_unique<CudaLike>(row);
  CudaLike& runtime = *owned;
  std::unique_ptr<VendorCompute> compute;
  std::unique_ptr<VendorExchange> exchange;
  std::unique_ptr<VendorPages> pages;
  std::unique_ptr<VendorWeightedSums> sums;
  if (!row.compiler.stem.empty()) {
    compute = std::make_unique<ReduceKernel>(runtime.kernel_api(), runtime.kernel_vendor(), [&runtime](int device, DataType type) {
      const std::string kernel = name_of_reduce_kernel(type);
      return runtime.compile(kernel.c_str(), "#define HMC_REDUCE_" + std::string(name_of(type)) + "\n", reduce_source, device);
    });
    static const std::string source = std::string(reduce_source) + mapped_memory_source + mapped_source;
    const auto image = [&runtime](int device, DataType type) {
      const std::string kernel = name_of_exchange_kernel(type);
      return runtime.compile(kernel.c_str(), "#define HMC_MAPPED_" + std::string(name_of(type)) + "\n", source.c_str(), device);
    };
    // Other memory of a device stays in its caches while others write it.
    const auto allocate = [&runtime](std::size_t bytes, void*& data) {
      const auto call = runtime.api().allocate_with_flags;
      return call == nullptr ? cuda_like::codes.unsupported : runtime.clear(call(&data, bytes, cuda_like::malloc_uncached));
    };
    exchange = std::make_unique<ExchangeKernel>(runtime.kernel_api(), runtime.kernel_vendor(), image, allocate);
    static const std::string page_source = std::string(reduce_source) + page_rows_source + pages_source;
    pages = std::make_unique<PageKernel>(runtime.kernel_api(), runtime.kernel_vendor(), [&runtime](int device, PageKernelId id) {
      return runtime.compile(id.name().c_str(), id.definition() + "\n", page_source.c_str(), device);
    });
    static const std::string sum_source = std::string(reduce_source) + weighted_sum_source;
    const auto sum_image = [&runtime](int device, DataType type) {
      const std::string kernel = name_of_weighted_sum_kernel(type);
      const std::string definition = "#define HMC_WEIGHTED_SUM_" + std::string(name_of(type)) + "\n";
      return runtime.compile(kernel.c_str(), definition, sum_source.c_str(), device);
    };
    sums = std::make_unique<WeightedSumKernel>(runtime.kernel_api(), runtime.kernel_vendor(), sum_image);
  }
  return {.traits = {.codes = cuda_like::codes, .pci_vendor = row.pci_vendor},
          .runtime = std::move(owned),
          .devices = std::make_unique<CudaLikeDevices>(runtime),
          .memory = std::make_unique<CudaLikeMemory>(runtime),
          .handles = std::make_unique<CudaLikeHandles>(runtime),
          .streams = std::make_unique<CudaLikeStreams>(runtime),
          .copies = std::make_unique<CudaLikeCopies>(runtime),
          .compute = std::move(compute),
          .exchange = std::move(exchange),
          .pages = std::move(pages),
          .weighted_sums = std::move(sums)};
}

template <const Row& row>
DeviceRuntime& instance() {
  static Accelerator* const runtime = new Accelerator(row.vendor, cuda_like_calls(row));  // never destroyed
  return *runtime;
}

}  // namespace
}  // namespace hmc

HMC_DEVICE_RUNTIME(rocm, "rocm", hmc::instance<hmc::rocm_row>);
HMC_DEVICE_RUNTIME(hygon, "hygon", hmc::instance<hmc::hygon_row>);
HMC_DEVICE_RUNTIME(musa, "musa", hmc::instance<hmc::musa_row>);
