#include "base/available_memory.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "testing.h"

namespace hmc {
namespace {

namespace fs = std::filesystem;

// A tree of files like /proc and /sys.
class Tree {
 public:
  Tree() : root_(fs::temp_directory_path() / ("hmc_available_" + std::to_string(getpid()))) { fs::remove_all(root_); }
  ~Tree() { fs::remove_all(root_); }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  [[nodiscard]] std::uint64_t bytes() const { return available_memory(root_).value().bytes; }
  [[nodiscard]] std::string bound() const { return available_memory(root_).value().bound; }
  [[nodiscard]] bool says() const { return available_memory(root_).has_value(); }

 private:
  const fs::path root_;
};

TEST(AvailableMemory, OfTheHostWithSwap) {
  const Tree tree;
  EXPECT_FALSE(tree.says());
  tree.write("proc/meminfo", "MemFree: 9 kB\n");
  EXPECT_FALSE(tree.says());
  tree.write("proc/meminfo", "MemTotal: 3000 kB\nMemAvailable:   0 kB\nSwapTotal: 7 kB\nSwapFree: 1 kB\nHugePages_Total: 5\n");
  EXPECT_EQ(tree.bytes(), 3007U * 1024);
  EXPECT_EQ(tree.bound(), "this host has");
}

TEST(AvailableMemory, TheLeastOfTheGroupsOfVersion2) {
  const Tree tree;
  tree.write("proc/meminfo", "MemTotal: 3000 kB\nSwapTotal: 100 kB\n");
  tree.write("proc/self/cgroup", "0::/user/job\n");
  tree.write("sys/fs/cgroup/user/job/memory.max", "max\n");
  tree.write("sys/fs/cgroup/user/job/memory.current", "5000\n");
  EXPECT_EQ(tree.bytes(), 3100U * 1024);
  tree.write("sys/fs/cgroup/user/memory.max", "1000000\n");  // above the process's own
  tree.write("sys/fs/cgroup/user/memory.current", "400000\n");
  tree.write("sys/fs/cgroup/user/memory.stat", "anon 7\ninactive_file 1000\nactive_file 200\n");
  EXPECT_EQ(tree.bytes(), 600000U + 1200 + 100 * 1024);
  EXPECT_NE(tree.bound().find("control group"), std::string::npos);
  tree.write("sys/fs/cgroup/user/memory.swap.max", "50\n");
  tree.write("sys/fs/cgroup/user/memory.swap.current", "20\n");
  EXPECT_EQ(tree.bytes(), 600000U + 1200 + 30);
  tree.write("sys/fs/cgroup/user/memory.current", "2000000\n");  // above a limit that was lowered
  EXPECT_EQ(tree.bytes(), 1200U + 30);
}

TEST(AvailableMemory, TheGroupOfAContainerIsTheMount) {
  const Tree tree;
  tree.write("proc/meminfo", "MemTotal: 3000 kB\n");
  tree.write("proc/self/cgroup", "4:cpu,memory:/docker/4711\n3:pids:/\nnonsense\n");
  tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  tree.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "5000\n");
  EXPECT_EQ(tree.bytes(), 3000U * 1024);
  tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "70000\n");
  tree.write("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 11\ninactive_file 5\ntotal_active_file 30\n");
  EXPECT_EQ(tree.bytes(), 65041U);
}

TEST(AvailableMemory, OfThisSystem) {
  const auto found = available_memory();
  ASSERT_TRUE(found.has_value());
  EXPECT_GT(found->bytes, 1U << 20);
}

}  // namespace
}  // namespace hmc
