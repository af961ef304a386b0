// Whose cards a runtime finds: AMD's HIP answers for Hygon's cards too, and those are the Hygon row's.
#include <filesystem>

#include "device/accelerator.h"
#include "device/pci.h"
#include "testing.h"

namespace hmc {
namespace {

// A runtime that finds the cards at `addresses` and does nothing with them.
class Finder final : public VendorCalls {
 public:
  Finder(int pci_vendor, std::string provenance, std::vector<std::string> addresses)
      : pci_vendor_(pci_vendor), provenance_(std::move(provenance)), addresses_(std::move(addresses)) {}

  Status open() override { return {}; }
  bool resident() override { return true; }
  std::string library() const override { return "libfinder.so"; }
  std::string provenance() const override { return provenance_; }
  const VendorCodes& codes() const noexcept override {
    static constexpr VendorCodes codes{{600, 600}, 2, refused, 100, 400, 712};
    return codes;
  }
  std::string error_name(int) override { return "error"; }
  int pci_vendor() const noexcept override { return pci_vendor_; }
  int count(int& devices) override {
    devices = static_cast<int>(addresses_.size());
    return 0;
  }
  int describe(int index, VendorDevice& device) override {
    device = {"card", addresses_.at(static_cast<std::size_t>(index)), 1 << 20};
    return 0;
  }
  int enter(int, std::uintptr_t&) override { return 0; }
  void leave(std::uintptr_t) override {}
  int enable_peer(int) override { return refused; }
  int allocate(std::size_t, void*&) override { return refused; }
  int release(void*) override { return refused; }
  bool classify(const void*, VendorPointer&) override { return false; }
  int pin(void*, std::size_t, bool) override { return refused; }
  int unpin(void*) override { return refused; }
  int ipc_export(void*, IpcHandle&) override { return refused; }
  int ipc_open(const IpcHandle&, void*&) override { return refused; }
  int ipc_close(void*) override { return refused; }
  int make_stream(VendorStream&) override { return refused; }
  int copy(void*, const void*, std::size_t, CopyDirection, VendorStream) override { return refused; }
  int fill(void*, std::uint8_t, std::size_t, VendorStream) override { return refused; }
  int make_event(VendorEvent&) override { return refused; }
  int record(VendorEvent, VendorStream) override { return refused; }
  int query(VendorEvent) override { return refused; }
  int wait(VendorStream, VendorEvent) override { return refused; }
  int call_host(VendorStream, void (*)(void*), void*) override { return refused; }

 private:
  static constexpr int refused = 801;
  const int pci_vendor_;
  const std::string provenance_;
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
    return Accelerator("rocm", std::make_unique<Finder>(vendor, provenance, std::move(addresses))).enumerate();
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
