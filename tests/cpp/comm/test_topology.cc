// Topologies as text and as discovered from a host's files.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <thread>

#include "comm/topology/discover.h"
#include "hmc/topology.h"
#include "testing.h"

namespace hmc {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryFolder;
using testing::write_file;

Topology two_hosts() {
  Topology topology;
  topology.hosts = {"alpha", "beta gamma"};
  topology.cards.push_back(
      {"a0", "alpha", *Device::parse("cuda:1"), 1, "A \"card\"\\\n", "0000:3b:00.0", 1, 1ULL << 37, 5.5e10, "hardware"});
  topology.cards.push_back({"b0", "beta gamma", *Device::parse("mlu:0"), 0, "", "", -1, 0, 0, ""});
  topology.cards.push_back({"b1", "beta gamma", Device::cpu(), 0, "", "", -1, 0, 0.1, "simulated"});
  topology.cards.push_back({"spare", "alpha", *Device::parse("cuda:0"), -1, "", "", -1, 0, 0, ""});
  topology.nics.push_back({"mlx5_0", "alpha", "infiniband", "0000:19:00.0", 0, 5e10});
  topology.links.push_back({"a0", "spare", "nvlink", 4.5e11});
  return topology;
}

TEST(Topology, TextReadsBackTheSame) {
  const Topology topology = two_hosts();
  const auto again = Topology::parse(topology.str());
  ASSERT_TRUE(again.ok()) << again.status().str();
  EXPECT_EQ(*again, topology);
  EXPECT_EQ(again->str(), topology.str());
}

TEST(Topology, BandwidthsThatAreNoRateAreRefused) {
  for (const double bandwidth : {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    for (int which = 0; which < 3; ++which) {
      Topology topology = two_hosts();
      (which == 0   ? topology.cards[1].host_bandwidth
       : which == 1 ? topology.nics[0].bandwidth
                    : topology.links[0].bandwidth) = bandwidth;
      EXPECT_EQ(topology.check().code(), Code::invalid_argument) << topology.str();
    }
  }
}

TEST(Topology, RanksGoByProcessThenByOrder) {
  const Topology topology = two_hosts();
  ASSERT_TRUE(topology.check().ok());
  const auto members = topology.members();
  ASSERT_EQ(members.size(), 3U);
  EXPECT_EQ(members[0]->name, "b0");
  EXPECT_EQ(members[1]->name, "b1");
  EXPECT_EQ(members[2]->name, "a0");
  EXPECT_EQ(topology.processes(), 2);
  EXPECT_EQ(topology.devices_of(0), (std::vector<Device>{*Device::parse("mlu:0"), Device::cpu()}));
  EXPECT_TRUE(topology.devices_of(-1).empty());
  EXPECT_EQ(topology.card("none"), nullptr);
  EXPECT_EQ(topology.link("spare", "a0"), &topology.links[0]);
}

TEST(Topology, SavedAndLoaded) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "cluster.topo";
  ASSERT_TRUE(two_hosts().save(file).ok());
  const auto again = Topology::load(file);
  ASSERT_TRUE(again.ok()) << again.status().str();
  EXPECT_EQ(*again, two_hosts());
  EXPECT_EQ(Topology::load(file + ".absent").status().code(), Code::invalid_argument);
  EXPECT_EQ(Topology::load("/").status().code(), Code::invalid_argument);
  const Status endless = Topology::load("/dev/zero").status();
  EXPECT_EQ(endless.code(), Code::invalid_argument);
  EXPECT_NE(endless.message().find("larger than"), std::string::npos) << endless.str();
  std::ofstream(file) << "hmc-topology 1\nhost a\nhost a\n";
  const auto twice = Topology::load(file);
  EXPECT_NE(std::string(twice.status().message()).find("twice"), std::string::npos) << twice.status().str();
}

// Of a file that is written again and again.
TEST(Topology, ReadersSeeWholeFiles) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "cluster.topo";
  Topology large;
  large.hosts = {"a"};
  for (int i = 0; i < 2000; ++i) large.nics.push_back({"nic" + std::to_string(i), "a", "ethernet", "", -1, 1e9, ""});
  ASSERT_TRUE(large.save(file).ok());
  std::atomic<bool> over{false};
  std::thread writer([&] {
    while (!over) EXPECT_TRUE(large.save(file).ok());
  });
  for (int i = 0; i < 100; ++i) {
    const auto read = Topology::load(file);
    EXPECT_TRUE(read.ok() && read->nics.size() == 2000) << read.status().str();
    if (::testing::Test::HasFailure()) break;
  }
  over = true;
  writer.join();
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1) << "a temporary file was left";
}

TEST(Topology, SavingKeepsPermissionsAndLinks) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "cluster.topo", link = folder.path() / "link", dangling = folder.path() / "dangling";
  const mode_t umask_before = umask(027);
  EXPECT_TRUE(two_hosts().save(file).ok());
  umask(umask_before);
  EXPECT_EQ(fs::status(file).permissions(), static_cast<fs::perms>(0640));
  fs::permissions(file, static_cast<fs::perms>(0604));
  fs::create_symlink("cluster.topo", link);
  EXPECT_TRUE(Topology().save(link).ok());
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(fs::status(file).permissions(), static_cast<fs::perms>(0604));
  EXPECT_TRUE(Topology::load(file)->hosts.empty());
  fs::create_symlink(folder.path() / "new.topo", dangling);
  EXPECT_TRUE(two_hosts().save(dangling).ok());
  EXPECT_TRUE(fs::is_symlink(dangling));
  EXPECT_TRUE(Topology::load(folder.path() / "new.topo").ok());
  fs::create_symlink(folder.path() / "loop", folder.path() / "loop");
  EXPECT_EQ(two_hosts().save(folder.path() / "loop").native(), ELOOP);
  EXPECT_EQ(two_hosts().save(folder.path()).native(), EISDIR);
  EXPECT_EQ(two_hosts().save(folder.path() / "no" / "such").native(), ENOENT);
  EXPECT_TRUE(two_hosts().save("/dev/null").ok());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(Topology, SavingLeavesReadOnlyFilesAlone) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write them";
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "cluster.topo";
  ASSERT_TRUE(two_hosts().save(file).ok());
  fs::permissions(file, static_cast<fs::perms>(0444));
  EXPECT_EQ(Topology().save(file).native(), EACCES);
  EXPECT_EQ(*Topology::load(file), two_hosts());
  fs::permissions(file, static_cast<fs::perms>(0644));
  fs::permissions(folder.path(), static_cast<fs::perms>(0555));
  EXPECT_TRUE(Topology().save(file).ok()) << "in place";
  fs::permissions(folder.path(), static_cast<fs::perms>(0755));
  EXPECT_TRUE(Topology::load(file)->hosts.empty());
}

TEST(Topology, NetworkCardsAsTheKernelNamesThem) {
  const TemporaryFolder folder;
  const fs::path sys = folder.path();
  const fs::path ethernet = sys / "devices/pci0000:00/0000:00:05.0", rdma = sys / "devices/pci0000:17/0000:18:00.0";
  write_file(ethernet / "numa_node", "0");
  write_file(rdma / "numa_node", "1");
  write_file(ethernet / "net/eth0/operstate", "up");
  write_file(ethernet / "net/eth0/speed", "25000");
  write_file(sys / "devices/virtual/net/lo/operstate", "unknown");
  write_file(ethernet / "net/eth1/operstate", "down");
  write_file(rdma / "infiniband/mlx5_0/ports/1/link_layer", "InfiniBand");
  write_file(rdma / "infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)");
  for (const char* name : {"eth0", "eth1"}) {
    fs::create_directory_symlink(ethernet, ethernet / "net" / name / "device");
    fs::create_directories(sys / "class/net");
    fs::create_directory_symlink(ethernet / "net" / name, sys / "class/net" / name);
  }
  fs::create_directory_symlink(sys / "devices/virtual/net/lo", sys / "class/net/lo");
  fs::create_directory_symlink(rdma, rdma / "infiniband/mlx5_0/device");
  fs::create_directories(sys / "class/infiniband");
  fs::create_directory_symlink(rdma / "infiniband/mlx5_0", sys / "class/infiniband/mlx5_0");
  fs::create_directories(sys / "bus/pci/devices");
  fs::create_directory_symlink(ethernet, sys / "bus/pci/devices/0000:00:05.0");
  fs::create_directory_symlink(rdma, sys / "bus/pci/devices/0000:18:00.0");

  const std::vector<TopologyNic> expected = {{"mlx5_0", "h", "infiniband", "0000:18:00.0", 1, 5e10, "pci0000:17"},
                                             {"eth0", "h", "ethernet", "0000:00:05.0", 0, 3.125e9, "pci0000:00"}};
  EXPECT_EQ(discover_nics("h", sys), expected);
  EXPECT_TRUE(discover_nics("h", sys / "absent").empty());
}

// The longer the part of the way to the host that two of them share, the nearer they are.
TEST(Topology, NetworkCardsAndTheCardsNearThem) {
  Topology topology = two_hosts();
  topology.hosts = {"h", "other"};
  topology.links.clear();
  const auto card = [](const char* name, const char* host, int index, int node, const char* bus) {
    return TopologyCard{name, host, *Device::parse("cuda:" + std::to_string(index)), -1, "", "", node, 0, 0, "", bus};
  };
  topology.cards = {card("behind", "h", 0, 0, "pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:08.0"),
                    card("beside", "h", 1, 0, "pci0000:17/0000:17:03.0"),
                    card("same node", "h", 2, 0, "pci0000:37/0000:37:01.0"),
                    card("far", "h", 3, 1, "pci0000:97/0000:97:01.0"),
                    card("unknown", "h", 4, -1, ""),
                    card("elsewhere", "other", 0, 0, "pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:04.0")};
  topology.cards.push_back({"cpu", "h", Device::cpu(), -1, "", "", 0, 0, 0, ""});
  topology.nics = {{"mlx5_0", "h", "roce", "0000:1b:00.0", 0, 5e10, "pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:04.0"},
                   {"mlx5_1", "h", "roce", "0000:38:00.0", 0, 5e10, "pci0000:38/0000:38:01.0"},
                   {"mlx5_2", "h", "roce", "0000:98:00.0", 2, 5e10, "pci0000:b7/0000:b7:01.0"},
                   {"virtio", "h", "ethernet", "", -1, 0, ""}};
  ASSERT_TRUE(topology.check().ok()) << topology.check().str();
  std::vector<std::string_view> distances;
  for (const auto& each : topology.cards) distances.push_back(Topology::distance(each, topology.nics[0]));
  EXPECT_EQ(distances, (std::vector<std::string_view>{"switch", "root", "node", "system", "", "", "node"}));
  const auto names = [&](std::size_t nic) {
    std::vector<std::string> found;
    for (const auto* each : topology.near(topology.nics[nic])) found.push_back(each->name);
    return found;
  };
  EXPECT_EQ(names(0), (std::vector<std::string>{"behind"}));
  EXPECT_EQ(names(1), (std::vector<std::string>{"behind", "beside", "same node"}));
  EXPECT_TRUE(names(2).empty());
  EXPECT_TRUE(names(3).empty());
  const auto again = Topology::parse(topology.str());
  ASSERT_TRUE(again.ok()) << again.status().str();
  EXPECT_EQ(*again, topology);
}

TEST(Topology, ThisHostIsDiscovered) {
  const Topology topology = Topology::discover();
  ASSERT_TRUE(topology.check().ok()) << topology.check().str();
  ASSERT_FALSE(topology.cards.empty());
  EXPECT_TRUE(topology.cards.front().device.is_cpu());
  EXPECT_EQ(topology.processes(), 0);
}

}  // namespace
}  // namespace hmc
