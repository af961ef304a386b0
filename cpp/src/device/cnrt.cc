// Cambricon through CNRT. Signatures and codes: quoted from Cambricon's public headers; never run on an MLU.
#include <algorithm>
#include <cstring>

#include "device/accelerator.h"
#include "device/library.h"

namespace hmc {
namespace {

constexpr std::string_view versions[] = {""};
constexpr std::string_view folders[] = {"/usr/local/neuware/lib64"};
constexpr LibraryRow row{"HMC_MLU_LIBRARY", "libcnrt.so", versions, folders};

constexpr VendorCodes cnrt_codes{{1, 632014}, 100100, 100050, 100004, 100006, 0};
constexpr unsigned notifier_disable_timing = 4;
constexpr int type_device = 2;
constexpr int range_dma_buf = 1;
// Not CUDA's order.
constexpr int host_to_device = 0, device_to_device = 1, device_to_host = 2;
constexpr std::size_t handle_bytes = 8;
// Measured by others on an MLU370; over all registrations of a process, not per call.
constexpr std::size_t registration_limit = std::size_t{256} << 20;

struct Attributes {
  int type;
  int device;
  std::uint64_t size;
  void* device_pointer;
  void* host_pointer;
  std::uint64_t cache_mode;
  void* device_base;
  std::uint64_t rest[8];  // room for what a version appends
};

struct Api {
  int (*device_count)(unsigned*);
  int (*device_get)(int*);
  int (*device_set)(int);
  int (*device_properties)(char*, int);  // cnrtDeviceProp_t_V3 starts with name[256]
  int (*device_pci)(char*, int, int);
  int (*allocate)(void**, std::size_t);
  int (*release)(void*);
  int (*attributes)(Attributes*, void*);
  int (*ipc_get)(std::uint64_t*, void*);
  int (*ipc_open)(void**, std::uint64_t, unsigned);
  int (*ipc_close)(void*);
  int (*dma_buf)(void*, std::uint64_t, std::size_t, int, unsigned long long);
  int (*queue_create)(VendorStream*);
  int (*queue_query)(VendorStream);
  int (*copy)(void*, void*, std::size_t, VendorStream, int);
  int (*fill)(void*, int, std::size_t, VendorStream);
  int (*notifier_create)(VendorEvent*, unsigned);
  int (*notifier_place)(VendorEvent, VendorStream);
  int (*notifier_query)(VendorEvent);
  int (*queue_wait)(VendorEvent, VendorStream, unsigned);
  int (*call_host)(VendorStream, void (*)(void*), void*);
  const char* (*error_name)(int);
};

class Cnrt final : public VendorRuntime {
 public:
  Status open() override {
    HMC_TRY(library_.open());
    return load();
  }
  bool resident() override { return library_.resident(); }
  [[nodiscard]] std::string library() const override { return library_.path(); }
  [[nodiscard]] std::string provenance() const override { return library_.provenance(); }
  std::string error_name(int code) override {
    const char* name = api_.error_name == nullptr ? nullptr : api_.error_name(code);
    return name == nullptr ? "CNRT error" : name;
  }
  // Null functions until open().
  [[nodiscard]] const Api& api() const noexcept { return api_; }

 private:
  Status load();

  VendorLibrary library_{row};
  Api api_{};
};

Status Cnrt::load() {
  std::string missing;
  const auto need = [&](auto*& function, const char* name) {
    library_.load(function, name);
    if (function == nullptr) missing += std::string(missing.empty() ? "" : ", ") + name;
  };
  need(api_.device_count, "cnrtGetDeviceCount");
  need(api_.device_get, "cnrtGetDevice");
  need(api_.device_set, "cnrtSetDevice");
  need(api_.allocate, "cnrtMalloc");
  need(api_.release, "cnrtFree");
  need(api_.attributes, "cnrtPointerGetAttributes");
  need(api_.ipc_get, "cnrtAcquireMemHandle");
  need(api_.ipc_open, "cnrtMapMemHandle");
  need(api_.ipc_close, "cnrtUnMapMemHandle");
  need(api_.queue_create, "cnrtQueueCreate");
  need(api_.queue_query, "cnrtQueueQuery");
  need(api_.fill, "cnrtMemsetAsync");
  need(api_.notifier_create, "cnrtNotifierCreateWithFlags");
  need(api_.notifier_place, "cnrtPlaceNotifier");
  need(api_.notifier_query, "cnrtQueryNotifier");
  need(api_.queue_wait, "cnrtQueueWaitNotifier");
  for (const char* name : {"cnrtMemcpyAsync_V3", "cnrtMemcpyAsync_V2", "cnrtMemcpyAsync"}) {
    if (api_.copy == nullptr) library_.load(api_.copy, name);
  }
  if (api_.copy == nullptr) missing += std::string(missing.empty() ? "" : ", ") + "cnrtMemcpyAsync";
  library_.load(api_.device_properties, "cnrtGetDeviceProperties_V3");
  library_.load(api_.device_pci, "cnrtDeviceGetPCIBusId");
  library_.load(api_.call_host, "cnrtInvokeHostFunc");
  library_.load(api_.error_name, "cnrtGetErrorName");
  library_.load(api_.dma_buf, "cnMemGetHandleForAddressRange");  // of the driver, which this library is linked to
  if (missing.empty()) return {};
  return Status(Code::unsupported, library() + " is too old or not what its name says: it has no " + missing);
}

class CnrtDevices final : public VendorDevices {
 public:
  explicit CnrtDevices(const Api& api) noexcept : api_(api) {}
  int count(int& devices) override {
    unsigned found = 0;
    const int code = api_.device_count(&found);
    devices = static_cast<int>(found);
    return code;
  }
  int describe(int index, VendorDevice& device) override {
    char properties[16384] = {};  // longer than any version's
    char text[64] = {};
    device.name = "MLU";
    if (api_.device_properties != nullptr && api_.device_properties(properties, index) == 0) {
      device.name.assign(properties, strnlen(properties, 256));
    }
    if (api_.device_pci != nullptr && api_.device_pci(text, sizeof text, index) == 0) device.pci = text;
    return 0;
  }
  std::vector<std::string> capabilities(int) override {
    if (api_.dma_buf == nullptr) return {"IPC handles"};
    return {"IPC handles", "dma-buf"};
  }
  int enter(int index, std::uintptr_t& previous) override {
    int current = 0;
    if (const int code = api_.device_get(&current); code != 0) return code;
    previous = static_cast<std::uintptr_t>(current);
    return current == index ? 0 : api_.device_set(index);
  }
  void leave(std::uintptr_t previous) override { static_cast<void>(api_.device_set(static_cast<int>(previous))); }
  int enable_peer(int) override { return 0; }  // CNRT has nothing to enable

 private:
  const Api& api_;
};

class CnrtMemory final : public VendorMemory {
 public:
  explicit CnrtMemory(const Api& api) noexcept : api_(api) {}
  int allocate(std::size_t bytes, void*& data) override { return api_.allocate(&data, bytes); }
  int release(void* data) override { return api_.release(data); }
  int classify(const void* data, VendorPointer& pointer) override {
    Attributes found{};
    const int code = api_.attributes(&found, const_cast<void*>(data));
    if (code == 0 && found.type == type_device) pointer = {found.device, found.device_base, found.size, 0};
    return code;
  }
  int pin(void*, std::size_t, bool) override { return cnrt_codes.unsupported; }  // no such call was found
  int unpin(void*) override { return cnrt_codes.unsupported; }

 private:
  const Api& api_;
};

class CnrtHandles final : public VendorHandles {
 public:
  explicit CnrtHandles(const Api& api) noexcept : api_(api) {}
  int ipc_export(void* base, IpcHandle& handle) override {
    std::uint64_t value = 0;
    const int code = api_.ipc_get(&value, base);
    std::memcpy(handle.data(), &value, handle_bytes);
    return code;
  }
  int ipc_open(const IpcHandle& handle, void*& base) override {
    std::uint64_t value = 0;
    std::memcpy(&value, handle.data(), handle_bytes);
    return api_.ipc_open(&base, value, 0);
  }
  int ipc_close(void* base) override { return api_.ipc_close(base); }
  int dma_buf(int, void* data, std::size_t bytes, int& descriptor, std::uint64_t& offset) override {
    offset = 0;
    if (api_.dma_buf == nullptr) return cnrt_codes.unsupported;
    return api_.dma_buf(&descriptor, reinterpret_cast<std::uint64_t>(data), bytes, range_dma_buf, 0);
  }

 private:
  const Api& api_;
};

class CnrtStreams final : public VendorStreams {
 public:
  explicit CnrtStreams(const Api& api) noexcept : api_(api) {}
  int make_stream(VendorStream& stream) override { return api_.queue_create(&stream); }
  int make_event(VendorEvent& event) override { return api_.notifier_create(&event, notifier_disable_timing); }
  int record(VendorEvent event, VendorStream stream) override { return api_.notifier_place(event, stream); }
  int query(VendorEvent event) override { return api_.notifier_query(event); }
  int query_stream(VendorStream stream) override { return api_.queue_query(stream); }
  int wait(VendorStream stream, VendorEvent event) override { return api_.queue_wait(event, stream, 0); }
  int call_host(VendorStream stream, void (*function)(void*), void* data) override {
    return api_.call_host == nullptr ? cnrt_codes.unsupported : api_.call_host(stream, function, data);
  }

 private:
  const Api& api_;
};

class CnrtCopies final : public VendorCopies {
 public:
  explicit CnrtCopies(const Api& api) noexcept : api_(api) {}
  int copy(void* target, const void* source, std::size_t bytes, CopyDirection direction, VendorStream stream) override {
    int kind = device_to_device;
    if (direction == CopyDirection::to_device) kind = host_to_device;
    if (direction == CopyDirection::to_host) kind = device_to_host;
    return api_.copy(target, const_cast<void*>(source), bytes, stream, kind);  // only read
  }
  int copy_blocks(int, const VendorBlocks&, VendorStream, std::size_t&) override { return cnrt_codes.unsupported; }
  int fill(void* target, std::uint8_t value, std::size_t bytes, VendorStream stream) override {
    return api_.fill(target, value, bytes, stream);
  }

 private:
  const Api& api_;
};

VendorCalls cnrt_calls() {
  auto runtime = std::make_unique<Cnrt>();
  const Api& api = runtime->api();
  return {.traits = {.codes = cnrt_codes, .registration_limit = registration_limit},
          .runtime = std::move(runtime),
          .devices = std::make_unique<CnrtDevices>(api),
          .memory = std::make_unique<CnrtMemory>(api),
          .handles = std::make_unique<CnrtHandles>(api),
          .streams = std::make_unique<CnrtStreams>(api),
          .copies = std::make_unique<CnrtCopies>(api)};
}

DeviceRuntime& mlu_instance() {
  static Accelerator* const instance = new Accelerator("mlu", cnrt_calls());  // never destroyed
  return *instance;
}

}  // namespace
}  // namespace hmc

HMC_DEVICE_RUNTIME(mlu, "mlu", hmc::mlu_instance);
