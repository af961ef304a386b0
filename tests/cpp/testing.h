// What every C++ test needs: data that is never constant, and comparison of every byte.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace hmc::testing {

// Byte i of pattern `seed`: neighbours, pages and seeds all differ, so shifted or repeated data never compares equal.
inline constexpr std::uint64_t pattern_step = 0x9E3779B97F4A7C15ULL;
constexpr std::uint64_t pattern_salt(std::uint64_t seed) { return (seed + 1) * 0xD1B54A32D192ED03ULL; }
inline std::byte pattern_byte(std::size_t i, std::uint64_t seed) {
  const std::uint64_t x = (i + 1) * pattern_step ^ pattern_salt(seed);
  return static_cast<std::byte>((x >> 29) ^ (x >> 7));
}

// Loops over every byte live in testing.cc, which is optimised also where the tests themselves are not.
void fill_pattern(std::span<std::byte> bytes, std::uint64_t seed);

inline std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed) {
  std::vector<std::byte> bytes(size);
  fill_pattern(bytes, seed);
  return bytes;
}

// Index of the first byte that differs from pattern `seed`, or -1.
std::ptrdiff_t first_mismatch(std::span<const std::byte> bytes, std::uint64_t seed);
bool same_bytes(std::span<const std::byte> left, std::span<const std::byte> right);

// The byte now, which another thread or process may be writing: hidden from ThreadSanitizer. For tests that wait for a transfer to
// be under way.
std::byte peek(const std::byte& place);

// Under sanitizers, and where the whole machine is emulated (HMC_TEST_SLOW=1), every byte costs many times as much. Data that is
// large only to be large has 1/16 of its size there, data that must still be under way when something happens to it 1/4.
#ifdef HMC_TEST_SANITIZED
inline bool slow() { return true; }
#else
inline bool slow() { return std::getenv("HMC_TEST_SLOW") != nullptr; }
#endif
inline std::size_t large(std::size_t bytes) { return slow() ? bytes / 16 : bytes; }
inline std::size_t lengthy(std::size_t bytes) { return slow() ? bytes / 4 : bytes; }
// What a test goes through: there only `few`, one for each path through the code.
template <class T>
std::vector<T> swept(std::initializer_list<T> all, std::initializer_list<T> few) {
  return slow() ? few : all;
}

// Sizes at which copies go wrong.
inline std::vector<std::size_t> awkward_sizes() { return {0, 1, 2, 7, 63, 64, 65, 4095, 4096, 4097, 65535, 65537, (1U << 20) + 3}; }

// Or for a fifth of a second. Before fork(): a thread that ends may hold a lock of a sanitizer's allocator, for which the child
// would wait for ever.
void wait_until_other_threads_sleep();

// While one lives the system gives this process no new thread: each would get a stack that it has no room for.
class NoThreads {
 public:
  NoThreads();
  ~NoThreads();
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_;
};

// Waits until all that this process has written into TCP connections is in the buffers of their other ends, or for a minute.
void wait_until_tcp_has_delivered();
// Sends SIGSTOP to a child and waits until every thread of it has stopped (or it has ended): until the thread that takes the signal
// gets a core, the others run on.
void stop_process(pid_t child);
// Waits until every thread of a process that stops by itself has stopped. False: it took longer than 60 s.
[[nodiscard]] bool wait_until_stopped(pid_t process);

// A folder of its own, removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

// `text` and a line's end, folders made as needed.
void write_file(const std::filesystem::path& file, const std::string& text);

#define HMC_ASSERT_OK(expr)                                         \
  do {                                                              \
    const ::hmc::Status hmc_assert_status = (expr);                 \
    ASSERT_TRUE(hmc_assert_status.ok()) << hmc_assert_status.str(); \
  } while (false)
#define HMC_EXPECT_OK(expr)                                         \
  do {                                                              \
    const ::hmc::Status hmc_expect_status = (expr);                 \
    EXPECT_TRUE(hmc_expect_status.ok()) << hmc_expect_status.str(); \
  } while (false)

}  // namespace hmc::testing
