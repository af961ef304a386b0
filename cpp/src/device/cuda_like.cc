// Runtimes that follow the CUDA runtime API call by call: AMD's HIP, Hygon's DTK (a HIP), Moore Threads' MUSA. A vendor is one row.
//
// Signatures and codes: HIP's hip_runtime_api.h (5.2 and 7.1). DTK and MUSA have been seen in other projects' code only. Versions
// disagree about the encoding of memory types, so that is learnt from an allocation at first use.
#include <cstring>

#include "base/log.h"
#include "device/accelerator.h"
#include "device/library.h"

namespace hmc {
namespace {

struct Row {
  std::string_view vendor;
  LibraryRow library;
  const char* prefix;                     // of every call
  const char* driver_prefix;              // of the calls that the runtime lacks and its driver interface has; null: none
  const char* dma_buf_library = nullptr;  // for runtimes that have no call for a dma-buf: HSA's, which they are built on
};

constexpr std::string_view hip_versions[] = {"7", "6", "5", ""};
constexpr std::string_view hip_folders[] = {"/opt/rocm/lib"};
constexpr std::string_view dtk_versions[] = {"5", ""};
constexpr std::string_view dtk_folders[] = {"/opt/dtk/hip/lib", "/opt/dtk/lib"};
constexpr std::string_view musa_versions[] = {"5", "4", "1", ""};
constexpr std::string_view musa_folders[] = {"/usr/local/musa/lib"};

constexpr Row rocm_row{
    "rocm", {"HMC_ROCM_LIBRARY", "libamdhip64.so", hip_versions, hip_folders}, "hip", nullptr, "libhsa-runtime64.so.1"};
constexpr Row hygon_row{"hygon", {"HMC_HYGON_LIBRARY", "libgalaxyhip.so", dtk_versions, dtk_folders}, "hip", nullptr};
constexpr Row musa_row{"musa", {"HMC_MUSA_LIBRARY", "libmusart.so", musa_versions, musa_folders}, "musa", "mu"};

constexpr VendorCodes cuda_like_codes{{600, 600}, 2, 801, 100, 400};
constexpr int peer_access_already_enabled = 704;
constexpr unsigned stream_non_blocking = 1;
constexpr unsigned event_disable_timing = 2;
constexpr unsigned host_register_portable = 1;
constexpr unsigned ipc_lazy_peer_access = 1;
constexpr int range_dma_buf = 1;
constexpr int kind_to_device = 1, kind_to_host = 2, kind_on_device = 3;

// hipPointerAttribute_t and cudaPointerAttributes agree in what is read here.
struct Attributes {
  int type;
  int device;
  void* device_pointer;
  void* rest[14];  // room for what a version appends
};

struct Api {
  int (*init)(unsigned);
  int (*device_count)(int*);
  int (*device_get)(int*);
  int (*device_set)(int);
  int (*device_name)(char*, int, int);
  int (*device_pci)(char*, int, int);
  int (*device_memory)(std::size_t*, int);
  int (*enable_peer)(int, unsigned);
  int (*allocate)(void**, std::size_t);
  int (*release)(void*);
  int (*attributes)(Attributes*, const void*);
  int (*range)(void**, std::size_t*, void*);
  int (*pin)(void*, std::size_t, unsigned);
  int (*unpin)(void*);
  int (*ipc_get)(IpcHandle*, void*);
  int (*ipc_open)(void**, IpcHandle, unsigned);  // 64 bytes by value
  int (*ipc_close)(void*);
  int (*dma_buf)(void*, void*, std::size_t, int, unsigned long long);
  int (*hsa_dma_buf)(const void*, std::size_t, int*, std::uint64_t*);
  int (*stream_create)(VendorStream*, unsigned);
  int (*copy)(void*, const void*, std::size_t, int, VendorStream);
  int (*fill)(void*, int, std::size_t, VendorStream);
  int (*event_create)(VendorEvent*, unsigned);
  int (*event_record)(VendorEvent, VendorStream);
  int (*event_query)(VendorEvent);
  int (*stream_wait)(VendorStream, VendorEvent, unsigned);
  int (*call_host)(VendorStream, void (*)(void*), void*);
  int (*last_error)();
  const char* (*error_name)(int);
};

class CudaLike final : public VendorCalls {
 public:
  explicit CudaLike(const Row& row) noexcept : row_(row), library_(row.library) {}

  Status open() override {
    HMC_TRY(library_.open());
    HMC_TRY(load());
    if (api_.init != nullptr) static_cast<void>(api_.init(0));  // without a device it says so, and so does count()
    return {};
  }
  bool resident() override { return library_.resident(); }
  [[nodiscard]] std::string library() const override { return library_.path(); }
  [[nodiscard]] std::string provenance() const override { return library_.provenance(); }
  [[nodiscard]] const VendorCodes& codes() const noexcept override { return cuda_like_codes; }
  std::string error_name(int code) override {
    const char* name = api_.error_name(code);
    return name == nullptr ? "unknown error" : name;
  }

  int count(int& devices) override { return api_.device_count(&devices); }
  int describe(int index, VendorDevice& device) override {
    char text[256] = {};
    std::size_t bytes = 0;
    if (api_.device_name != nullptr) {
      if (const int code = api_.device_name(text, sizeof text, index); code != 0) return code;
      device.name = text;
    } else {
      device.name = std::string(row_.vendor) + " device";
    }
    if (api_.device_pci(text, sizeof text, index) == 0) device.pci = text;
    if (api_.device_memory != nullptr && api_.device_memory(&bytes, index) == 0) device.memory_bytes = bytes;
    return 0;
  }
  int enter(int index, std::uintptr_t& previous) override {
    int current = 0;
    if (const int code = api_.device_get(&current); code != 0) return code;
    previous = static_cast<std::uintptr_t>(current);
    return current == index ? 0 : api_.device_set(index);
  }
  void leave(std::uintptr_t previous) override { static_cast<void>(api_.device_set(static_cast<int>(previous))); }
  int enable_peer(int other) override {
    const int code = clear(api_.enable_peer(other, 0));
    return code == peer_access_already_enabled ? 0 : code;
  }

  int allocate(std::size_t bytes, void*& data) override {
    const int code = clear(api_.allocate(&data, bytes));
    if (code == 0 && device_type_ < 0) learn(data);
    return code;
  }
  int release(void* data) override { return clear(api_.release(data)); }
  bool classify(const void* data, VendorPointer& pointer) override {
    Attributes found{};
    if (clear(api_.attributes(&found, data)) != 0) return false;
    if (device_type_ < 0 && !calibrate()) return false;
    if (found.type != device_type_) return false;
    pointer = {found.device, nullptr, 0, 0};
    if (api_.range == nullptr) return true;
    if (clear(api_.range(&pointer.base, &pointer.bytes, const_cast<void*>(data))) != 0) pointer.base = nullptr;
    return true;
  }
  int pin(void* host, std::size_t bytes) override { return clear(api_.pin(host, bytes, host_register_portable)); }
  int unpin(void* host) override { return clear(api_.unpin(host)); }
  int ipc_export(void* base, IpcHandle& handle) override { return clear(api_.ipc_get(&handle, base)); }
  int ipc_open(const IpcHandle& handle, void*& base) override { return clear(api_.ipc_open(&base, handle, ipc_lazy_peer_access)); }
  int ipc_close(void* base) override { return clear(api_.ipc_close(base)); }

  int dma_buf(int, void* data, std::size_t bytes, int& descriptor, std::uint64_t& offset) override {
    offset = 0;
    int code =
        api_.dma_buf == nullptr ? cuda_like_codes.unsupported : clear(api_.dma_buf(&descriptor, data, bytes, range_dma_buf, 0));
    if (code == cuda_like_codes.unsupported && api_.hsa_dma_buf != nullptr) {
      code = api_.hsa_dma_buf(data, bytes, &descriptor, &offset) == 0 ? 0 : cuda_like_codes.unsupported;
    }
    return code;
  }

  int make_stream(VendorStream& stream) override { return api_.stream_create(&stream, stream_non_blocking); }
  int copy(void* target, const void* source, std::size_t bytes, CopyDirection direction, VendorStream stream) override {
    int kind = kind_on_device;
    if (direction == CopyDirection::to_device) kind = kind_to_device;
    if (direction == CopyDirection::to_host) kind = kind_to_host;
    return clear(api_.copy(target, source, bytes, kind, stream));
  }
  int fill(void* target, std::uint8_t value, std::size_t bytes, VendorStream stream) override {
    return clear(api_.fill(target, value, bytes, stream));
  }
  int make_event(VendorEvent& event) override { return api_.event_create(&event, event_disable_timing); }
  int record(VendorEvent event, VendorStream stream) override { return clear(api_.event_record(event, stream)); }
  int query(VendorEvent event) override { return clear(api_.event_query(event)); }
  int wait(VendorStream stream, VendorEvent event) override { return clear(api_.stream_wait(stream, event, 0)); }
  int call_host(VendorStream stream, void (*function)(void*), void* data) override {
    return api_.call_host == nullptr ? cuda_like_codes.unsupported : clear(api_.call_host(stream, function, data));
  }

 private:
  // These runtimes keep the last error for whoever asks next: a framework must not meet ours.
  int clear(int code) {
    if (code != 0 && api_.last_error != nullptr) static_cast<void>(api_.last_error());
    return code;
  }

  // What this version calls device memory.
  void learn(void* device_memory) {
    Attributes found{};
    if (clear(api_.attributes(&found, device_memory)) == 0) device_type_ = found.type;
  }
  bool calibrate() {
    int current = 0;
    void* sample = nullptr;
    if (api_.device_get(&current) != 0 || clear(api_.allocate(&sample, 1)) != 0) return false;
    learn(sample);
    static_cast<void>(clear(api_.release(sample)));
    return device_type_ >= 0;
  }

  Status load() {
    std::string missing;
    const auto want = [&](auto*& function, const char* name) { library_.load(function, row_.prefix + std::string(name)); };
    const auto need = [&](auto*& function, const char* name) {
      want(function, name);
      if (function == nullptr) missing += (missing.empty() ? "" : ", ") + (row_.prefix + std::string(name));
    };
    want(api_.init, "Init");
    need(api_.device_count, "GetDeviceCount");
    need(api_.device_get, "GetDevice");
    need(api_.device_set, "SetDevice");
    need(api_.device_pci, "DeviceGetPCIBusId");
    need(api_.enable_peer, "DeviceEnablePeerAccess");
    need(api_.allocate, "Malloc");
    need(api_.release, "Free");
    need(api_.attributes, "PointerGetAttributes");
    need(api_.pin, "HostRegister");
    need(api_.unpin, "HostUnregister");
    need(api_.ipc_get, "IpcGetMemHandle");
    need(api_.ipc_open, "IpcOpenMemHandle");
    need(api_.ipc_close, "IpcCloseMemHandle");
    need(api_.stream_create, "StreamCreateWithFlags");
    need(api_.copy, "MemcpyAsync");
    need(api_.fill, "MemsetAsync");
    need(api_.event_create, "EventCreateWithFlags");
    need(api_.event_record, "EventRecord");
    need(api_.event_query, "EventQuery");
    need(api_.stream_wait, "StreamWaitEvent");
    need(api_.error_name, "GetErrorName");
    want(api_.last_error, "GetLastError");
    want(api_.device_name, "DeviceGetName");
    want(api_.device_memory, "DeviceTotalMem");
    want(api_.call_host, "LaunchHostFunc");
    want(api_.range, "MemGetAddressRange");
    want(api_.dma_buf, "MemGetHandleForAddressRange");
    // Its own dependency: where it is not loaded already, there is no such runtime either.
    if (row_.dma_buf_library != nullptr)
      VendorLibrary::load_loaded(api_.hsa_dma_buf, row_.dma_buf_library, "hsa_amd_portable_export_dmabuf");
    if (row_.driver_prefix != nullptr) {
      const auto from_driver = [&](auto*& function, const char* name) {
        if (function == nullptr) library_.load(function, row_.driver_prefix + std::string(name));
      };
      from_driver(api_.device_name, "DeviceGetName");
      from_driver(api_.device_memory, "DeviceTotalMem");
      from_driver(api_.range, "MemGetAddressRange");
      from_driver(api_.dma_buf, "MemGetHandleForAddressRange");
    }
    if (missing.empty()) return {};
    return Status(Code::unsupported, library() + " is too old or not what its name says: it has no " + missing);
  }

  const Row& row_;
  VendorLibrary library_;
  Api api_{};
  std::atomic<int> device_type_{-1};  // -1: not learnt yet
};

template <const Row& row>
DeviceRuntime& instance() {
  static Accelerator* const runtime = new Accelerator(row.vendor, std::make_unique<CudaLike>(row));  // never destroyed
  return *runtime;
}

}  // namespace
}  // namespace hmc

HMC_DEVICE_RUNTIME(rocm, "rocm", hmc::instance<hmc::rocm_row>);
HMC_DEVICE_RUNTIME(hygon, "hygon", hmc::instance<hmc::hygon_row>);
HMC_DEVICE_RUNTIME(musa, "musa", hmc::instance<hmc::musa_row>);
