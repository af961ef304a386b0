#include "testing.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>

// Computed block by block beside the data, which memcpy and memcmp then touch: sanitizers check those in one go, and miss nothing.
#define HMC_UNCHECKED __attribute__((no_sanitize("address", "thread", "undefined")))

namespace hmc::testing {
namespace {

using Block = std::array<std::byte, 4096>;

HMC_UNCHECKED void compute(std::byte* out, std::size_t count, std::size_t from, std::uint64_t seed) {
  const std::uint64_t salt = pattern_salt(seed);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t x = (from + i + 1) * pattern_step ^ salt;
    out[i] = static_cast<std::byte>((x >> 29) ^ (x >> 7));
  }
}

}  // namespace

void fill_pattern(std::span<std::byte> bytes, std::uint64_t seed) {
  Block block;
  for (std::size_t at = 0; at < bytes.size(); at += block.size()) {
    const std::size_t count = std::min(block.size(), bytes.size() - at);
    compute(block.data(), count, at, seed);
    std::memcpy(bytes.data() + at, block.data(), count);
  }
}

std::ptrdiff_t first_mismatch(std::span<const std::byte> bytes, std::uint64_t seed) {
  Block block;
  for (std::size_t at = 0; at < bytes.size(); at += block.size()) {
    const std::size_t count = std::min(block.size(), bytes.size() - at);
    compute(block.data(), count, at, seed);
    if (std::memcmp(bytes.data() + at, block.data(), count) == 0) continue;
    for (std::size_t i = 0; i < count; ++i) {
      if (bytes[at + i] != block[i]) return static_cast<std::ptrdiff_t>(at + i);
    }
  }
  return -1;
}

HMC_UNCHECKED std::byte peek(const std::byte& place) { return static_cast<const volatile std::byte&>(place); }

bool same_bytes(std::span<const std::byte> left, std::span<const std::byte> right) {
  return left.size() == right.size() && (left.empty() || std::memcmp(left.data(), right.data(), left.size()) == 0);
}

namespace {

bool tcp_unacknowledged() {
  for (int fd = 0; fd < 4096; ++fd) {  // more than a test opens
    int domain = 0, bytes = 0;
    socklen_t size = sizeof domain;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || (domain != AF_INET && domain != AF_INET6)) continue;
    if (ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes != 0) return true;
  }
  return false;
}

}  // namespace

void wait_until_tcp_has_delivered() {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (tcp_unacknowledged() && std::chrono::steady_clock::now() < give_up)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

namespace {

// Threads of this process; 0: another than the caller runs or ends.
std::size_t sleeping_threads() {
  std::size_t count = 0;
  std::error_code gone;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    std::ifstream file(thread.path() / "stat");
    std::string line;
    if (!std::getline(file, line)) return 0;
    const std::size_t name = line.rfind(") ");
    const bool caller = thread.path().filename() == std::to_string(gettid());
    if (name == std::string::npos || (!caller && line[name + 2] == 'R')) return 0;
    ++count;
  }
  return count;
}

}  // namespace

void wait_until_other_threads_sleep() {
  std::size_t before = 0;
  for (int looks = 0; looks < 200; ++looks) {
    const std::size_t now = sleeping_threads();
    if (now != 0 && now == before) return;
    before = now;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

NoThreads::NoThreads() {
  EXPECT_EQ(pthread_getattr_default_np(&before_), 0);
  pthread_attr_t huge = before_;
  EXPECT_EQ(pthread_attr_setstacksize(&huge, std::size_t{1} << 50), 0);
  EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
}

NoThreads::~NoThreads() {
  EXPECT_EQ(pthread_setattr_default_np(&before_), 0);
  pthread_attr_destroy(&before_);
}

void stop_process(pid_t child) {
  kill(child, SIGSTOP);
  siginfo_t info;
  while (waitid(P_PID, static_cast<id_t>(child), &info, WSTOPPED | WEXITED | WNOWAIT) != 0 && errno == EINTR) {
  }
}

namespace {

bool all_threads_stopped(pid_t process) {
  std::error_code ended;
  const std::filesystem::path tasks = "/proc/" + std::to_string(process) + "/task";
  for (const auto& thread : std::filesystem::directory_iterator(tasks, ended)) {
    std::ifstream file(thread.path() / "stat");
    std::string line;
    std::getline(file, line);
    const std::size_t name_end = line.rfind(')');  // the name may hold anything; ") " and the state follow it
    if (name_end == std::string::npos || line.compare(name_end, 3, ") T") != 0) return false;
  }
  return !ended;
}

}  // namespace

bool wait_until_stopped(pid_t process) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!all_threads_stopped(process)) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

TemporaryFolder::TemporaryFolder() {
  std::string name = std::filesystem::temp_directory_path() / "hmc-test-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) throw std::filesystem::filesystem_error("mkdtemp " + name, {errno, std::generic_category()});
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void write_file(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text << "\n";
}

}  // namespace hmc::testing
