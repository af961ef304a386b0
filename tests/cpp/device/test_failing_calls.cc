// Any call of a vendor may fail: the current device stays what it was, no error is left for other code, and later calls work.
#include <dlfcn.h>

#include <memory>
#include <string>
#include <vector>

#include "device/runtime.h"
#include "testing.h"

namespace hmc {
namespace {

constexpr int out_of_memory = 2, of_an_earlier_kernel = 700;

class FailingCalls : public ::testing::TestWithParam<const DeviceRuntimeFactory*> {
 protected:
  void SetUp() override {
    runtime_ = &GetParam()->instance();
    const RuntimeInfo info = runtime_->enumerate();
    if (!info.available || info.devices.size() < 2) GTEST_SKIP() << info.reason;
    if (info.devices[0].provenance != "simulated") GTEST_SKIP() << "only simulated calls fail on demand";
    prefix_ = info.vendor == "cuda" ? "cu" : info.vendor == "mlu" ? "cnrt" : info.vendor == "musa" ? "musa" : "hip";
    library_ = dlopen(info.reason.substr(0, info.reason.find(" (")).c_str(), RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(library_, nullptr) << info.reason;
    last_error_ = call<int()>(prefix_ + "GetLastError");
    current_ = call<int(int*)>(prefix_ + "GetDevice");
    set_ = call<int(int)>(prefix_ + "SetDevice");
    fail_ = call<int(const char*, int, int)>("hmcsim_fail_here");
    reset_ = call<void()>("hmcsim_reset");
    ASSERT_TRUE(fail_ != nullptr && reset_ != nullptr);
  }
  template <class Function>
  Function* call(const std::string& name) {
    return reinterpret_cast<Function*>(dlsym(library_, name.c_str()));
  }
  // Uses all that needs device 1; the first error. `left`: an error that a call left for other code.
  Status use(int& left) {
    Status first;
    const auto note = [&](const Status& status) {
      if (first.ok() && !status.ok()) first = status;
      if (const int code = last_error_(); code != 0) left = code;
    };
    static_cast<void>(runtime_->enumerate());
    note({});
    auto made = runtime_->allocate(1, 4096, {});
    note(made.status());
    if (!made.ok()) return first;
    const DeviceSpan span = (*made)->span();
    std::vector<std::byte> bytes(span.bytes);
    const DeviceSpan host{bytes.data(), bytes.size(), Device::cpu()};
    static_cast<void>(runtime_->classify(span.data, span.bytes));
    note({});
    note(copy_blocking(span, host));
    note(copy_blocking(host, span));
    note(runtime_->compute().fill(span, 7));
    for (int i = 0; i < 2; ++i) {
      auto point = runtime_->streams().mark(1, default_stream);
      note(point.status());
      if (!point.ok()) continue;
      note((*point)->reached().status());
      points_.push_back(std::move(*point));
    }
    auto queue = runtime_->streams().open_queue(1);
    note(queue.status());
    if (queue.ok()) queues_.push_back(std::move(*queue));
    note(runtime_->streams().queue_copy(1, default_stream, span, span));
    note(runtime_->sharing().export_handle(span, HandleKind::ipc).status());
    static_cast<void>(runtime_->sharing().export_handle(span, HandleKind::dma_buf));
    note({});
    static_cast<void>(runtime_->compute().reach(1, 0));
    note({});
    made->reset();
    note({});
    return first;
  }

  DeviceRuntime* runtime_ = nullptr;
  void* library_ = nullptr;
  std::string prefix_;
  // Kept, so that each use makes another stream and another event.
  std::vector<std::shared_ptr<StreamPoint>> points_;
  std::vector<std::unique_ptr<DeviceQueue>> queues_;
  int (*last_error_)() = nullptr;
  int (*current_)(int*) = nullptr;
  int (*set_)(int) = nullptr;
  int (*fail_)(const char*, int, int) = nullptr;
  void (*reset_)() = nullptr;
};

TEST_P(FailingCalls, LeaveNoErrorToOtherCode) {
  if (last_error_ == nullptr) GTEST_SKIP() << "the vendor keeps no last error";
  ASSERT_TRUE(current_ != nullptr && set_ != nullptr);
  int left = 0;
  HMC_ASSERT_OK(use(left));
  for (const char* name : {"SetDevice",
                           "GetDevice",
                           "DeviceGetPCIBusId",
                           "DeviceGetName",
                           "DeviceTotalMem",
                           "DeviceCanAccessPeer",
                           "DeviceEnablePeerAccess",
                           "Malloc",
                           "Free",
                           "PointerGetAttributes",
                           "MemGetAddressRange",
                           "StreamCreateWithFlags",
                           "StreamQuery",
                           "MemcpyAsync",
                           "MemsetAsync",
                           "EventCreateWithFlags",
                           "EventRecord",
                           "EventQuery",
                           "StreamWaitEvent",
                           "IpcGetMemHandle"}) {
    for (const int nth : {1, 2, 3, 5}) {
      int before = -1, after = -1;
      ASSERT_EQ(current_(&before), 0);
      left = 0;
      ASSERT_EQ(fail_((prefix_ + name).c_str(), nth, out_of_memory), 0);
      const Status status = use(left);
      reset_();
      EXPECT_EQ(left, 0) << prefix_ << name << " " << nth << ": " << status.str();
      ASSERT_EQ(current_(&after), 0);
      if (name == std::string("SetDevice")) {
        ASSERT_EQ(set_(before), 0);  // what failed may be what restores it
      } else {
        EXPECT_EQ(before, after) << prefix_ << name << " " << nth;
      }
      HMC_ASSERT_OK(use(left));
    }
  }
}

// The caller frees the memory once it is told that a copy has ended.
TEST_P(FailingCalls, DoNotEndACopyThatStillRuns) {
  auto made = runtime_->allocate(1, 4096, {});
  HMC_ASSERT_OK(made.status());
  std::vector<std::byte> bytes(4096, std::byte{1});
  const DeviceSpan host{bytes.data(), bytes.size(), Device::cpu()};
  const bool is_cnrt = prefix_ == "cnrt";
  const std::string record = is_cnrt ? "PlaceNotifier" : "EventRecord";
  const std::string of_event = is_cnrt ? "QueryNotifier" : "EventQuery", of_stream = is_cnrt ? "QueueQuery" : "StreamQuery";
  for (const std::string& query : {of_event, of_stream}) {
    const auto gate = std::make_shared<StreamGate>();
    if (!runtime_->streams().hold(1, default_stream, gate).ok()) GTEST_SKIP() << "holds no stream";
    const auto held = runtime_->streams().mark(1, default_stream);
    HMC_ASSERT_OK(held.status());
    // Without an event the whole stream is asked.
    if (query == of_stream) {
      ASSERT_EQ(fail_((prefix_ + record).c_str(), 1, of_an_earlier_kernel), 0);
    }
    BlockingCompletion done;
    HMC_EXPECT_OK(runtime_->copy({.target = (*made)->span(), .source = host, .after = held->get()}, &done));
    ASSERT_EQ(fail_((prefix_ + query).c_str(), 1, of_an_earlier_kernel), 0);
    EXPECT_FALSE(runtime_->poll()) << query;
    EXPECT_FALSE(runtime_->poll()) << query;
    gate->open();
    EXPECT_EQ(done.wait(*runtime_).code(), Code::device) << query;
    reset_();
  }
}

// The CPU would read what is the device's.
TEST_P(FailingCalls, DoNotMakeDeviceMemoryTheCpus) {
  auto made = runtime_->allocate(1, 4096, {});
  HMC_ASSERT_OK(made.status());
  const auto classify = [&](void* data) {
    EXPECT_EQ(fail_((prefix_ + "PointerGetAttributes").c_str(), 1, of_an_earlier_kernel), 0);
    auto found = classify_pointer(data, 1);
    reset_();
    return found;
  };
  EXPECT_EQ(classify((*made)->span().data).status().code(), Code::device);
  const auto of_the_cpu = classify(&made);
  HMC_ASSERT_OK(of_the_cpu.status());
  EXPECT_TRUE(of_the_cpu->device.is_cpu());
  EXPECT_EQ(classify_pointer((*made)->span().data, 1).value().device.index(), 1);
}

INSTANTIATE_TEST_SUITE_P(Runtimes, FailingCalls, ::testing::ValuesIn(device_runtimes().begin(), device_runtimes().end()),
                         [](const auto& info) { return std::string(info.param->vendor); });

}  // namespace
}  // namespace hmc
