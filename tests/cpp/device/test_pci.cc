// Where a PCI device sits, read from a made-up sysfs.
#include <gtest/gtest.h>

#include <filesystem>

#include "device/pci.h"
#include "testing.h"

namespace hmc {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryFolder;
using testing::write_file;

TEST(Pci, TheNarrowestLinkUpToTheHostCounts) {
  const TemporaryFolder folder;
  const fs::path sys = folder.path();
  const fs::path port = sys / "devices/pci0000:37/0000:37:01.0", card = port / "0000:3b:00.0";
  write_file(card / "vendor", "0x1d94");
  write_file(card / "numa_node", "1");
  write_file(card / "max_link_speed", "32.0 GT/s PCIe");
  write_file(card / "max_link_width", "16");
  write_file(port / "max_link_speed", "16.0 GT/s PCIe");
  write_file(port / "max_link_width", "16");
  fs::create_directories(sys / "bus/pci/devices");
  fs::create_directory_symlink(card, sys / "bus/pci/devices/0000:3b:00.0");

  const PciFacts facts = pci_facts("0000:3B:00.0", sys);
  EXPECT_EQ(facts.vendor, 0x1d94);
  EXPECT_EQ(facts.numa_node, 1);
  EXPECT_EQ(facts.bus, "pci0000:37/0000:37:01.0");
  EXPECT_NEAR(facts.bandwidth, 16e9 * 16 / 8.125, 1);
  write_file(port / "max_link_speed", "5.0 GT/s PCIe");
  EXPECT_NEAR(pci_facts("0000:3b:00.0", sys).bandwidth, 5e9 * 16 / 10, 1);
  write_file(port / "max_link_speed", "Unknown");
  EXPECT_NEAR(pci_facts("0000:3b:00.0", sys).bandwidth, 32e9 * 16 / 8.125, 1);
}

TEST(Pci, WhatIsNotThereStaysUnknown) {
  const TemporaryFolder folder;
  for (const char* address : {"", "0000:3b:00.0", "../../../etc", "/"}) {
    const PciFacts facts = pci_facts(address, folder.path());
    EXPECT_EQ(facts.vendor, 0);
    EXPECT_EQ(facts.numa_node, -1);
    EXPECT_EQ(facts.bus, "");
    EXPECT_EQ(facts.bandwidth, 0);
  }
}

}  // namespace
}  // namespace hmc
