// What a process may be denied: descriptors, shared memory, ptrace, pinned pages. The next path is taken, or the error says what to
// change, and nothing leaks.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <sstream>
#include <thread>

#include "ways.h"

namespace hmc {
namespace {

using namespace testing;

// From now on these system calls of this process and its later threads are refused with EPERM, as a container would.
bool deny(const std::vector<long>& calls) {
#if defined(__x86_64__) || defined(__aarch64__)
  std::vector<sock_filter> program{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const long call : calls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
#else
  static_cast<void>(calls);
  return false;
#endif
}

// "<address> <what is denied>": tells its path, then echoes a message and its own buffer.
TEST(Role, DISABLED_denied) {
  std::istringstream words(role_arguments());
  std::string address, what;
  words >> address >> what;
  const std::vector<long> calls = what == "memfd" ? std::vector<long>{SYS_memfd_create}
                                                  : std::vector<long>{SYS_process_vm_readv, SYS_process_vm_writev, SYS_ptrace};
  if (!deny(calls)) {
    tell("skip");
    return;
  }
  const auto context = make_context();
  const auto peer = context.connect(address, soon());
  ASSERT_TRUE(peer.ok()) << peer.status().str();
  const auto path = peer->path(Device::cpu(), Device::cpu());
  ASSERT_TRUE(path.ok()) << path.status().str();
  std::string text = path->str();
  for (char& c : text) c = c == '\n' ? ';' : c;
  tell(text);
  const auto buffer = context.buffer(100'003);
  tell(buffer.ok() ? "allocated" : buffer.status().str());
  std::vector<std::byte> foreign(100'003);
  const auto shared = buffer.ok() ? *buffer : *context.register_memory(*Memory::wrap(foreign.data(), foreign.size()));
  fill_pattern(span_of(shared), 4);
  HMC_ASSERT_OK(context.publish("mine", shared));
  std::vector<std::byte> bytes(2'000'003);
  for (int i = 0; i < 3; ++i) {
    const auto info = peer->recv(view(bytes), 1, soon());
    ASSERT_TRUE(info.ok()) << info.status().str();
    std::vector<std::byte> copy(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(info->bytes));
    HMC_ASSERT_OK(peer->send(view(copy), 2, soon()));
  }
  hear();
  HMC_EXPECT_OK(peer->wait_notify(7, 1, soon()));
  tell(std::to_string(first_mismatch(span_of(shared), 5)));
  HMC_EXPECT_OK(context.close(soon()));
}

// Everything works with a process that is denied `what`. Its path, as it sees it, and ours.
std::pair<std::string, std::string> work_with(const std::string& what) {
  const auto context = make_context();
  Role role("denied", context.addresses().front() + " " + what);
  const auto peer = context.accept(soon());
  EXPECT_TRUE(peer.ok()) << peer.status().str();
  if (!peer.ok()) return {};
  std::string path = role.read_line();
  if (path == "skip") return {path, path};
  EXPECT_EQ(role.read_line(), "allocated");
  std::uint64_t seed = 10;
  for (const std::size_t size : {100U, 90'000U, 2'000'003U}) {
    auto out = pattern(size, ++seed);
    Guarded in(size);
    const auto received = *peer->irecv(in.view(), 2);
    HMC_EXPECT_OK(peer->send(view(out), 1, soon()));
    HMC_EXPECT_OK(received.wait(soon()));
    EXPECT_TRUE(in.holds(size, seed));
  }
  const auto remote = peer->lookup("mine", soon());
  EXPECT_TRUE(remote.ok()) << remote.status().str();
  if (!remote.ok()) return {};
  const auto local = *context.buffer(remote->size());
  HMC_EXPECT_OK(peer->get(local, *remote)->wait(soon()));
  EXPECT_EQ(first_mismatch(span_of(local), 4), -1);
  fill_pattern(span_of(local), 5);
  PutOptions notified;
  notified.notify = Notify(7);
  HMC_EXPECT_OK(peer->put(local, *remote, notified)->wait(soon()));
  std::string ours = peer->path()->str();
  role.write_line("end");
  EXPECT_EQ(role.read_line(), "-1");
  EXPECT_EQ(role.wait(), 0);
  return {std::move(path), std::move(ours)};
}

TEST(Limits, WithoutSharedMemoryTheNextPathIsTakenAndSaysWhy) {
  const auto [theirs, ours] = work_with("memfd");
  if (theirs == "skip") GTEST_SKIP() << "no seccomp filter can be installed";
  for (const std::string& path : {theirs, ours}) {
    EXPECT_NE(path.find("cpu: tcp"), std::string::npos) << path;
    EXPECT_NE(path.find("not shm"), std::string::npos) << path;
    EXPECT_NE(path.find("memfd"), std::string::npos) << path;
  }
}

TEST(Limits, WithoutPtraceTheRingIsTakenAndSaysSo) {
  setenv("LSAN_OPTIONS", "detect_leaks=0", 1);  // LeakSanitizer itself needs ptrace
  const auto [theirs, ours] = work_with("ptrace");
  unsetenv("LSAN_OPTIONS");
  if (theirs == "skip") GTEST_SKIP() << "no seccomp filter can be installed";
  EXPECT_NE(theirs.find("shm"), std::string::npos) << theirs;
  EXPECT_NE(theirs.find("shared ring"), std::string::npos) << theirs;
  EXPECT_NE(theirs.find("ptrace"), std::string::npos) << theirs;
}

// All of a connection's life; `where` it ended. Whoever connects may wait for `connect_seconds`.
Status live_with(const std::string& transports, std::string& where, double connect_seconds = 20) {
  where = "context";
  ContextOptions options;
  options.transports = transports;
  HMC_ASSIGN(const auto a, Context::create(options));
  HMC_ASSIGN(const auto b, Context::create(options));
  where = "connect";
  HMC_ASSIGN(const auto ab, a.connect(b.addresses().front(), soon(connect_seconds)));
  where = "accept";
  HMC_ASSIGN(const auto ba, b.accept(soon()));
  where = "buffer";
  HMC_ASSIGN(const auto source, a.buffer(70'001));
  HMC_ASSIGN(const auto target, b.buffer(70'001));
  fill_pattern(span_of(source), 1);
  where = "descriptor";
  HMC_ASSIGN(const auto descriptor, target.descriptor());
  where = "import";
  HMC_ASSIGN(const auto remote, ab.import(descriptor, soon()));
  where = "put";
  HMC_ASSIGN(const auto put, ab.put(source, remote, {1, Complete::remote}));
  HMC_TRY(put.wait(soon()));
  HMC_TRY(ba.wait_notify(1, 1, soon()));
  EXPECT_EQ(first_mismatch(span_of(target), 1), -1);
  where = "send";
  std::vector<std::byte> in(70'001);
  HMC_ASSIGN(const auto received, ba.irecv({in.data(), in.size()}, 1));
  HMC_TRY(ab.send(source, 1, soon()));
  HMC_TRY(received.wait(soon()));
  EXPECT_EQ(first_mismatch(in, 1), -1);
  return {};
}

class Descriptors : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Ways, Descriptors, ::testing::ValuesIn(all_ways()), [](const auto& p) { return p.param; });

// The whole of a connection.
TEST_P(Descriptors, ALimitAtEveryPointSaysSoAndLeaksNothing) {
  const Way way(GetParam());
  std::string where;
  HMC_ASSERT_OK(live_with(way.transports, where));
  const int before = open_descriptors();
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
  int failures = 0, successes = 0;
  for (rlim_t spare = 0; spare < 60 && successes < 3; ++spare) {
    const int lowest = dup(0);
    close(lowest);
    const rlimit tight{static_cast<rlim_t>(lowest) + spare, usual.rlim_max};
    setrlimit(RLIMIT_NOFILE, &tight);
    // Where descriptors are short, waiting is in vain. Where there are plenty, only a slow machine takes long.
    const Status status = live_with(way.transports, where, spare < 50 ? 0.3 : 20);
    setrlimit(RLIMIT_NOFILE, &usual);
    SCOPED_TRACE(std::to_string(spare) + " descriptors spare, " + where + ": " + status.str());
    if (status.ok()) {
      ++successes;
    } else {
      ++failures;
      // Whoever connects cannot know that the other end has run out: that one warns.
      const bool far_end = where == "connect" && (status.code() == Code::timeout || status.code() == Code::unsupported);
      EXPECT_TRUE(far_end || status.message().find("ulimit -n") != std::string_view::npos);
    }
    EXPECT_EQ(open_descriptors(), before);
  }
  EXPECT_GT(failures, 5);
  EXPECT_EQ(successes, 3);
  HMC_EXPECT_OK(live_with(way.transports, where));
  EXPECT_EQ(open_descriptors(), before);
}

// A pair that exists goes on while there is not one descriptor left.
TEST_P(Descriptors, ALivePairNeedsNone) {
  const WayPair pair(GetParam());
  const auto source = *pair.a.buffer(300'000), target = *pair.b.buffer(300'000);
  const auto remote = *pair.ab.import(*target.descriptor(), soon());
  HMC_ASSERT_OK(pair.ab.put(source, remote)->wait(soon()));
  rlimit usual{};
  getrlimit(RLIMIT_NOFILE, &usual);
  const rlimit none{0, usual.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  for (std::uint64_t i = 0; i < 20; ++i) {
    fill_pattern(span_of(source), i);
    HMC_EXPECT_OK(pair.ab.put(source, remote, {1, Complete::remote})->wait(soon()));
    HMC_EXPECT_OK(pair.ba.wait_notify(1, 1, soon()));
    EXPECT_EQ(first_mismatch(span_of(target), i), -1);
    auto out = pattern(200'000, i + 50);
    std::vector<std::byte> in(200'000);
    const auto received = *pair.ab.irecv(view(in), 1);
    HMC_EXPECT_OK(pair.ba.send(view(out), 1, soon()));
    HMC_EXPECT_OK(received.wait(soon()));
    EXPECT_EQ(first_mismatch(in, i + 50), -1);
  }
  const auto refused = pair.a.buffer(10);
  const auto connected = pair.a.connect("tcp://127.0.0.1:1", soon(3));
  setrlimit(RLIMIT_NOFILE, &usual);
  EXPECT_EQ(refused.status().code(), Code::out_of_memory) << refused.status().str();
  EXPECT_NE(refused.status().message().find("ulimit -n"), std::string_view::npos) << refused.status().str();
  EXPECT_EQ(connected.status().code(), Code::out_of_memory) << connected.status().str();
  EXPECT_NE(connected.status().message().find("ulimit -n"), std::string_view::npos) << connected.status().str();
  HMC_EXPECT_OK(pair.a.buffer(10).status());
}

}  // namespace
}  // namespace hmc
