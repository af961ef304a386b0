#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>

#include "base/env.h"
#include "base/fd.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/random.h"
#include "base/text.h"
#include "base/thread.h"
#include "base/wire.h"
#include "hmc/deadline.h"
#include "hmc/status.h"
#include "testing.h"

namespace hmc {
namespace {

TEST(Status, OkCostsNothingAndErrorsSayEverything) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status().code(), Code::ok);
  EXPECT_EQ(Status(Code::ok, "ignored").message(), "");
  const Status error(Code::peer_lost, "peer 4711 is gone", 104);
  EXPECT_EQ(error.str(), "peer_lost: peer 4711 is gone (native 104)");
  EXPECT_EQ(error.with_context("put of 8 bytes").message(), "put of 8 bytes: peer 4711 is gone");
  EXPECT_EQ(error.with_context("x").native(), 104);
}

TEST(Status, EveryCodeHasAName) {
  for (int code = 0; code <= static_cast<int>(Code::protocol); ++code) EXPECT_NE(to_string(static_cast<Code>(code)), "unknown");
}

TEST(Threads, FaultsReachTheApplicationsHandlers) {
  sigset_t blocked;
  sigemptyset(&blocked);
  const auto thread = start_thread("faults", [&] { pthread_sigmask(SIG_SETMASK, nullptr, &blocked); });
  ASSERT_NE(thread, nullptr);
  thread->join();
  for (const int fault : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP})
    EXPECT_EQ(sigismember(&blocked, fault), 0) << fault;
  for (const int other : {SIGINT, SIGTERM, SIGCHLD, SIGPROF, SIGUSR1}) EXPECT_EQ(sigismember(&blocked, other), 1) << other;
}

TEST(Status, ErrnoIsClassified) {
  EXPECT_EQ(errno_status("open", EMFILE).code(), Code::out_of_memory);
  EXPECT_NE(errno_status("open", EMFILE).message().find("ulimit -n"), std::string_view::npos);
  EXPECT_EQ(errno_status("connect", ECONNREFUSED).code(), Code::peer_lost);
  EXPECT_EQ(errno_status("x", EIO).native(), EIO);
}

Result<int> half(int value) {
  if (value % 2 != 0) return Status(Code::invalid_argument, "odd");
  return value / 2;
}
Result<int> quarter(int value) {
  HMC_ASSIGN(const int h, half(value));
  return half(h);
}

TEST(Result, PropagatesTheFirstError) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(6).status().message(), "odd");
}

TEST(ResultDeathTest, UsingAnErrorEndsTheProgramWithItsMessage) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Result<std::string> error(Status(Code::unsupported, "no transport \"nonsense\""));
  const Result<std::string> constant(Status(Code::unsupported, "no transport \"nonsense\""));
  constexpr const char* message = "holds an error: unsupported: no transport \"nonsense\"";
  EXPECT_DEATH(static_cast<void>(error.value()), message);
  EXPECT_DEATH(static_cast<void>(constant.value()), message);
  EXPECT_DEATH(static_cast<void>(std::move(error).value()), message);
  EXPECT_DEATH(static_cast<void>(error->size()), message);
  EXPECT_DEATH(static_cast<void>(constant->size()), message);
  EXPECT_DEATH(static_cast<void>(*error), message);
  EXPECT_DEATH(static_cast<void>(*constant), message);
  EXPECT_DEATH(static_cast<void>(*std::move(error)), message);
}

TEST(Deadline, RangesAreSafe) {
  EXPECT_TRUE(Deadline::after_seconds(1e300).is_never());
  EXPECT_TRUE(Deadline::after_seconds(-1).passed());
  EXPECT_EQ(Deadline::never().poll_timeout_ms(), -1);
  EXPECT_EQ(Deadline::after_seconds(-1).poll_timeout_ms(), 0);
  EXPECT_GT(Deadline::after_seconds(3600).poll_timeout_ms(), 3'000'000);
}

TEST(Wire, RoundTripsEverything) {
  Bytes out;
  const auto blob = testing::pattern(300, 1);
  WireWriter(out)
      .u8(0xfe)
      .u16(0xfedc)
      .u32(0xfedcba98U)
      .u64(0xfedcba9876543210ULL)
      .i64(-5)
      .f64(-0.125)
      .bytes(blob)
      .text("name")
      .raw(blob);
  WireReader in(out);
  EXPECT_EQ(in.u8(), 0xfe);
  EXPECT_EQ(in.u16(), 0xfedc);
  EXPECT_EQ(in.u32(), 0xfedcba98U);
  EXPECT_EQ(in.u64(), 0xfedcba9876543210ULL);
  EXPECT_EQ(in.i64(), -5);
  EXPECT_EQ(in.f64(), -0.125);
  const ByteSpan back = in.bytes(300);
  EXPECT_EQ(Bytes(back.begin(), back.end()), blob);
  EXPECT_EQ(in.text(10), "name");
  EXPECT_FALSE(in.finish());
  EXPECT_EQ(in.rest().size(), 300U);
  EXPECT_TRUE(in.finish());
}

TEST(Wire, IsLittleEndian) {
  Bytes out;
  WireWriter(out).u32(0x01020304);
  EXPECT_EQ(out[0], std::byte{4});
  EXPECT_EQ(out[3], std::byte{1});
}

TEST(Wire, TruncationIsStickyAtEveryLength) {
  Bytes out;
  WireWriter(out).u16(7).u64(8).text("hello").u8(1);
  for (std::size_t n = 0; n < out.size(); ++n) {
    WireReader in(ByteSpan(out).first(n));
    in.u16();
    in.u64();
    in.text(16);
    in.u8();
    EXPECT_FALSE(in.finish()) << n;
    EXPECT_EQ(in.u64(), 0U);
    EXPECT_FALSE(in.ok());
  }
}

TEST(Wire, LengthsBeyondTheLimitAreRefused) {
  Bytes out;
  WireWriter(out).bytes(testing::pattern(100, 2));
  WireReader in(out);
  EXPECT_TRUE(in.bytes(99).empty());
  EXPECT_FALSE(in.ok());
  Bytes lie;
  WireWriter(lie).u32(0xffffffffU);
  WireReader liar(lie);
  EXPECT_TRUE(liar.text(1U << 31).empty());
  EXPECT_FALSE(liar.ok());
}

TEST(Text, WhatIsNotUtf8IsReplaced) {
  const std::string mark = "\xef\xbf\xbd";
  EXPECT_EQ(valid_utf8("plain", 100), "plain");
  EXPECT_EQ(valid_utf8("\xc3\xa9t\xc3\xa9 \xf0\x9f\x98\x80", 100), "\xc3\xa9t\xc3\xa9 \xf0\x9f\x98\x80");
  EXPECT_EQ(valid_utf8("a\xff"
                       "b\xc3",
                       100),
            "a" + mark + "b" + mark);
  for (const std::string_view wrong :
       {"\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe0\x80\x80", "\xe2\x82", "\x80", "\xf8\x88"}) {
    std::string expected;
    for (std::size_t i = 0; i < wrong.size(); ++i) expected += mark;
    EXPECT_EQ(valid_utf8(wrong, 100), expected);
  }
}

TEST(Text, IsCutBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
  for (std::size_t limit = 0; limit <= text.size() + 3; ++limit) {
    const std::string_view cut = cut_utf8(text, limit);
    EXPECT_LE(cut.size(), limit);
    EXPECT_GT(cut.size() + 4, std::min(limit, text.size()));
    EXPECT_EQ(valid_utf8(cut, 1000), cut);
    EXPECT_EQ(valid_utf8(text, limit), cut);
    EXPECT_LE(valid_utf8(std::string(limit, '\xff'), limit).size(), limit);
  }
}

TEST(Wire, TextIsAlwaysValid) {
  Bytes out;
  WireWriter(out).text("a\xff").text(std::string(30, '\xfe'));
  WireReader in(out);
  EXPECT_EQ(in.text(10), "a\xef\xbf\xbd");
  EXPECT_EQ(in.text(30).size(), 30U);
  EXPECT_TRUE(in.finish());
}

TEST(Random, NothingComesTwice) {
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 5000; ++i) seen.insert(random_u64());
  std::array<std::byte, 16> bytes{};
  std::array<std::byte, 13> odd{};
  for (int i = 0; i < 1000; ++i) {
    random_bytes(odd);
    random_bytes(bytes);
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + 8, sizeof value);
    seen.insert(value);
  }
  EXPECT_EQ(seen.size(), 6000U);
}

TEST(Random, AForkedChildHasItsOwn) {
  static_cast<void>(random_u64());
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::uint64_t own = random_u64();
    _exit(write(ends[1], &own, sizeof own) == sizeof own ? 0 : 1);
  }
  std::uint64_t theirs = 0;
  ASSERT_EQ(read(ends[0], &theirs, sizeof theirs), static_cast<ssize_t>(sizeof theirs));
  for (int i = 0; i < 200; ++i) EXPECT_NE(random_u64(), theirs);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  close(ends[0]);
  close(ends[1]);
}

TEST(UniqueFd, OwnsAndReleases) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  UniqueFd a(ends[0]);
  UniqueFd b(ends[1]);
  UniqueFd moved = std::move(a);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(moved.get(), ends[0]);
  UniqueFd copy = moved.duplicate();
  EXPECT_NE(fcntl(copy.get(), F_GETFD) & FD_CLOEXEC, 0);
  const int raw = b.release();
  EXPECT_EQ(close(raw), 0);
  moved.reset();
  EXPECT_EQ(fcntl(ends[0], F_GETFD), -1);
}

TEST(Fork, ChildLosesOurDescriptorsAndKnowsIt) {
  install_fork_handler();
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd ours(ends[0]);
  const std::uint32_t before = fork_epoch();
  const pid_t child = fork();
  if (child == 0) {
    const bool closed = fcntl(ends[0], F_GETFD) == -1;
    const bool kept = fcntl(ends[1], F_GETFD) != -1;
    _exit(closed && kept && fork_epoch() == before + 1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(fcntl(ends[0], F_GETFD), -1);
  EXPECT_EQ(fork_epoch(), before);
  close(ends[1]);
}

TEST(Fork, OwnersFromBeforeLeaveTheNumbersToNewOnes) {
  install_fork_handler();
  const int number = open("/dev/null", O_RDONLY | O_CLOEXEC);
  UniqueFd reset(number), moved, released(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int second = released.get();
  const pid_t child = fork();
  if (child == 0) {
    const UniqueFd mine(open("/dev/null", O_RDONLY | O_CLOEXEC)), other(open("/dev/null", O_RDONLY | O_CLOEXEC));
    const bool reused = mine.get() == number && other.get() == second;
    const bool refused = !reset.duplicate() && errno == EBADF && released.release() == -1;
    moved = std::move(reset);
    moved.reset();
    const auto is_open = [](const UniqueFd& fd) { return fcntl(fd.get(), F_GETFD) != -1; };
    // What the child owns is still known to be: a child of its own loses it.
    const pid_t grandchild = fork();
    if (grandchild == 0) _exit(is_open(mine) || is_open(other) ? 1 : 0);
    int status = -1;
    waitpid(grandchild, &status, 0);
    _exit(reused && refused && is_open(mine) && is_open(other) && status == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(fcntl(number, F_GETFD), -1);
}

TEST(Env, ReadsNowAndClamps) {
  setenv("HMC_TCP_STREAMS", "99", 1);
  EXPECT_EQ(env_integer("HMC_TCP_STREAMS", 2, 1, 16), 16);
  setenv("HMC_TCP_STREAMS", "99999999999999999999", 1);
  EXPECT_EQ(env_integer("HMC_TCP_STREAMS", 2, 1, 16), 16);
  setenv("HMC_TCP_STREAMS", "-99999999999999999999", 1);
  EXPECT_EQ(env_integer("HMC_TCP_STREAMS", 2, 1, 16), 1);
  setenv("HMC_TCP_STREAMS", "99999999999999999999x", 1);
  EXPECT_EQ(env_integer("HMC_TCP_STREAMS", 2, 1, 16), 2);
  setenv("HMC_TCP_STREAMS", "x1", 1);
  EXPECT_EQ(env_integer("HMC_TCP_STREAMS", 2, 1, 16), 2);
  setenv("HMC_TCP_STREAMS", "", 1);
  EXPECT_EQ(env_integer("HMC_TCP_STREAMS", 2, 1, 16), 2);
  unsetenv("HMC_TCP_STREAMS");
  setenv("HMC_SHM_PTRACE", "off", 1);
  EXPECT_FALSE(env_flag("HMC_SHM_PTRACE", true));
  setenv("HMC_SHM_PTRACE", "maybe", 1);
  EXPECT_TRUE(env_flag("HMC_SHM_PTRACE", true));
  unsetenv("HMC_SHM_PTRACE");
}

TEST(Env, TableIsSortedAndExplained) {
  std::string_view last;
  for (const auto& row : env_table()) {
    EXPECT_LT(last, row.name);
    EXPECT_TRUE(row.name.starts_with("HMC_"));
    EXPECT_GT(row.help.size(), 20U);
    last = row.name;
  }
}

TEST(LogDeathTest, SaysOnceThatItsLevelIsUnknown) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto logs = [] {
    setenv("HMC_LOG", "verbose", 1);
    log(LogLevel::info, "not shown");
    log(LogLevel::warning, "shown");
    std::exit(0);
  };
  EXPECT_EXIT(logs(), ::testing::ExitedWithCode(0),
              "^hmc.[0-9]+. warning: HMC_LOG=verbose is none of error, warning, info and debug; using warning\n"
              "hmc.[0-9]+. warning: shown\n$");
}

TEST(LogDeathTest, AMessageIsOneLine) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto logs = [] {
    log(LogLevel::error, "peer \"a\nhmc[1] error: forged\x1b[2J\"");
    std::exit(0);
  };
  EXPECT_EXIT(logs(), ::testing::ExitedWithCode(0), "^hmc.[0-9]+. error: peer \"a hmc.1. error: forged .2J\"\n$");
}

// Where the application has closed it, the next descriptor gets its number.
TEST(Log, WritesIntoNoDescriptorOfOurs) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    const UniqueFd ours(dup2(ends[1], STDERR_FILENO));
    log(LogLevel::error, "into a connection");
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  close(ends[1]);
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 0);
  close(ends[0]);
}

}  // namespace
}  // namespace hmc
