// Whose cards a runtime finds: AMD's HIP answers for Hygon's cards too, and those are the Hygon row's.
#include <filesystem>

#include "device/accelerator.h"
#include "device/pci.h"
#include "testing.h"

namespace hmc {
namespace {

// A runtime that finds the cards at `addresses`, and can do nothing else.
class Library final : public VendorRuntime {
 public:
  explicit Library(std::string provenance) : provenance_(std::move(provenance)) {}
  Status open() override { return {}; }
  bool resident() override { return true; }
  std::string library() const override { return "libfinder.so"; }
  std::string provenance() const override { return provenance_; }
  std::string error_name(int) override { return "error"; }

 private:
  const std::string provenance_;
};

class Finder final : public VendorDevices {
 public:
  explicit Finder(std::vector<std::string> addresses) : addresses_(std::move(addresses)) {}
  int count(int& devices) override {
    devices = static_cast<int>(addresses_.size());
    return 0;
  }
  int describe(int index, VendorDevice& device) override {
    device = {"card", addresses_.at(static_cast<std::size_t>(index)), 1 << 20};
    return 0;
  }
  int enter(int, std::uintptr_t&) override { return refused; }
  void leave(std::uintptr_t) override {}
  int enable_peer(int) override { return refused; }

 private:
  static constexpr int refused = 801;
  const std::vector<std::string> addresses_;
};

// Any PCI device of this host stands for a card: whose it is the kernel says.
class Cards : public ::testing::Test {
 protected:
  void SetUp() override {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/sys/bus/pci/devices", error)) {
      const std::string address = entry.path().filename().string();
      if (const int vendor = pci_facts(address).vendor; vendor != 0) {
        address_ = address;
        maker_ = vendor;
        return;
      }
    }
    GTEST_SKIP() << "this host shows no PCI device";
  }
  RuntimeInfo found(int vendor, const std::string& provenance, std::vector<std::string> addresses) {
    VendorCalls calls{};
    calls.traits = {.codes = {{600, 600}, 2, 801, 100, 400, 712}, .pci_vendor = vendor};
    calls.runtime = std::make_unique<Library>(provenance);
    calls.devices = std::make_unique<Finder>(std::move(addresses));
    return Accelerator("rocm", std::move(calls)).enumerate();
  }
  std::string address_;
  int maker_ = 0;
};

TEST_F(Cards, OfAnotherVendorAreLeftToItsRow) {
  const RuntimeInfo info = found(maker_ + 1, "hardware", {address_});
  EXPECT_FALSE(info.available);
  EXPECT_NE(info.reason.find("libfinder.so finds only cards of another vendor"), std::string::npos) << info.reason;
}

TEST_F(Cards, OfItsOwnVendorAreTaken) {
  const RuntimeInfo info = found(maker_, "hardware", {address_});
  ASSERT_TRUE(info.available) << info.reason;
  ASSERT_EQ(info.devices.size(), 1U);
  EXPECT_EQ(info.devices[0].pci, address_);
}

// Where the kernel does not know the card, or one of several is the vendor's, the runtime is believed.
TEST_F(Cards, OfUnknownVendorAreTaken) {
  EXPECT_TRUE(found(maker_ + 1, "hardware", {address_, "ffff:ff:1f.7"}).available);
  EXPECT_TRUE(found(0, "hardware", {address_}).available);
}

TEST_F(Cards, OfAStandInAreTakenAsTheyAre) {
  EXPECT_TRUE(found(maker_ + 1, "simulated", {address_}).available);
  EXPECT_TRUE(found(maker_ + 1, "facade", {address_}).available);
}

}  // namespace
}  // namespace hmc
