// How a vendor's library is opened, and what is made of a vendor that refuses.
#include "device/library.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <thread>
#include <vector>

#include "device/accelerator.h"
#include "device/accelerator_scratch.h"
#include "testing.h"

namespace hmc {
namespace {

constexpr std::string_view broken_versions[] = {""};
constexpr LibraryRow broken_row{"HMC_VERBS_LIBRARY", "libnosuchvendor.so", broken_versions, {}};

TEST(VendorLibrary, NamesAFileThatTheLibraryNeeds) {
  const auto whole = VendorLibrary::loaded_copy("libstdc++.so");
  if (!whole) GTEST_SKIP() << "the C++ library is linked statically";
  std::ifstream in(*whole, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  bool replaced = false;
  const std::string needed("libm.so.6", sizeof "libm.so.6"), missing("libq.so.6", sizeof "libq.so.6");
  for (auto at = bytes.find(needed); at != std::string::npos; at = bytes.find(needed, at)) {
    bytes.replace(at, missing.size(), missing);
    replaced = true;
  }
  if (!replaced) GTEST_SKIP() << *whole << " does not need libm.so.6";
  const auto path = std::filesystem::temp_directory_path() / ("libhmc_broken_" + std::to_string(getpid()) + ".so");
  std::ofstream(path, std::ios::binary) << bytes;
  setenv("HMC_VERBS_LIBRARY", path.c_str(), 1);
  const Status broken = VendorLibrary(broken_row).open();
  std::filesystem::remove(path);
  const Status absent = VendorLibrary(broken_row).open();
  unsetenv("HMC_VERBS_LIBRARY");
  EXPECT_EQ(broken.code(), Code::unsupported);
  EXPECT_NE(broken.message().find("does not load: libq.so.6: "), std::string_view::npos) << broken.str();
  EXPECT_NE(absent.message().find("does not load: no such file"), std::string_view::npos) << absent.str();
  EXPECT_NE(VendorLibrary(broken_row).open().message().find("is not installed"), std::string_view::npos);
}

// A framework may have loaded the very file that the variable names, and hold memory of it.
TEST(VendorLibrary, KnowsWhenANamedFileIsLoaded) {
  const auto loaded = VendorLibrary::loaded_copy("libstdc++.so");
  if (!loaded) GTEST_SKIP() << "the C++ library is linked statically";
  const auto resident = [](const char* path) {
    setenv("HMC_VERBS_LIBRARY", path, 1);
    const bool found = VendorLibrary(broken_row).resident();
    unsetenv("HMC_VERBS_LIBRARY");
    return found;
  };
  EXPECT_TRUE(resident(loaded->c_str()));
  EXPECT_FALSE(resident("/nowhere/libstdc++.so.6"));
  EXPECT_FALSE(resident("off"));
  EXPECT_FALSE(VendorLibrary(broken_row).resident());
}

// A runtime that says once that it is there, and takes its time to open.
class LateRuntime final : public VendorRuntime {
 public:
  explicit LateRuntime(std::atomic<bool>& looked) : looked_(looked) {}
  Status open() override {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return {};
  }
  bool resident() override {
    const bool first = !looked_.exchange(true);
    if (first) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return first;
  }
  std::string library() const override { return "liblate.so"; }
  std::string provenance() const override { return "simulated"; }
  std::string error_name(int) override { return "error"; }

 private:
  std::atomic<bool>& looked_;
};

class OneCard final : public VendorDevices {
 public:
  int count(int& devices) override {
    devices = 1;
    return 0;
  }
  int describe(int, VendorDevice&) override { return 0; }
  int enter(int, std::uintptr_t&) override { return 0; }
  void leave(std::uintptr_t) override {}
  int enable_peer(int) override { return 801; }
};

// All memory is the card's; host memory cannot be pinned.
class PlainMemory final : public VendorMemory {
 public:
  explicit PlainMemory(std::atomic<int>& unpinned) : unpinned_(unpinned) {}
  int allocate(std::size_t, void*& data) override {
    data = &unpinned_;
    return 0;
  }
  int release(void*) override { return 0; }
  int classify(const void*, VendorPointer& pointer) override {
    pointer.index = 0;
    return 0;
  }
  int pin(void*, std::size_t, bool) override { return 2; }
  int unpin(void*) override {
    ++unpinned_;
    return 713;
  }

 private:
  std::atomic<int>& unpinned_;
};

struct LateVendor {
  std::atomic<bool> looked{false};
  std::atomic<int> unpinned{0};
  VendorCalls calls() {
    VendorCalls made{};
    made.traits = {.codes = {{600, 600}, 2, 801, 100, 400, 712}};
    made.runtime = std::make_unique<LateRuntime>(looked);
    made.devices = std::make_unique<OneCard>();
    made.memory = std::make_unique<PlainMemory>(unpinned);
    return made;
  }
};

// Memory of a card that is taken for the CPU's is read by the CPU.
TEST(VendorLibrary, ThreadsThatClassifyWaitForTheOneThatOpens) {
  LateVendor vendor;
  Accelerator accelerator("cuda", vendor.calls());
  auto first = std::async(std::launch::async, [&] { return accelerator.classify(&vendor, 1).value().has_value(); });
  while (!vendor.looked.load()) std::this_thread::yield();
  EXPECT_TRUE(accelerator.classify(&vendor, 1).value().has_value());
  EXPECT_TRUE(first.get());
}

TEST(AcceleratorScratch, UnpinsNothingThatWasNotPinned) {
  LateVendor vendor;
  AcceleratorDevices devices("cuda", vendor.calls());
  HMC_ASSERT_OK(devices.open());
  AcceleratorScratch scratch(devices);
  std::vector<AcceleratorScratch::Piece> pieces;
  for (int i = 0; i < 12; ++i) pieces.push_back(scratch.take(0, 1000).value());
  for (const auto& piece : pieces) scratch.give(piece);
  EXPECT_EQ(vendor.unpinned.load(), 0);
  for (int kept = 0; kept < 8; ++kept) std::free(scratch.take(0, 1000).value().host);  // for later calls, as devices never end
}

}  // namespace
}  // namespace hmc
