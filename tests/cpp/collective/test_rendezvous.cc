// Meeting points: links to sockets, dead and living; addresses as others reach them.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/fd.h"
#include "collective/rendezvous.h"
#include "held_lookup.h"
#include "hmc/interrupt.h"
#include "progress/host_lookup.h"

namespace hmc {
namespace {

namespace fs = std::filesystem;

class Rendezvous : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = (fs::temp_directory_path() / "hmc-meet-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { fs::remove_all(folder_); }

  UniqueFd listen_at(const std::string& path) {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(fd.get(), 8), 0);
    return fd;
  }
  std::string folder_;
};

TEST_F(Rendezvous, LinkAppearsAndGoes) {
  const auto socket = listen_at(folder_ + "/socket");
  {
    const auto link = MeetingLink::publish(folder_ + "/meet", folder_ + "/socket");
    ASSERT_TRUE(link.ok()) << link.status().str();
    EXPECT_EQ(fs::read_symlink(folder_ + "/meet"), folder_ + "/socket");
  }
  EXPECT_FALSE(fs::exists(fs::symlink_status(folder_ + "/meet")));
}

TEST_F(Rendezvous, SecondRankZeroIsRefused) {
  const auto socket = listen_at(folder_ + "/socket");
  const auto first = MeetingLink::publish(folder_ + "/meet", folder_ + "/socket");
  ASSERT_TRUE(first.ok());
  const auto second = MeetingLink::publish(folder_ + "/meet", folder_ + "/other");
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::invalid_argument);
  EXPECT_NE(second.status().message().find("rank 0"), std::string_view::npos);
  EXPECT_EQ(fs::read_symlink(folder_ + "/meet"), folder_ + "/socket");
}

TEST_F(Rendezvous, DeadOnesAreReplaced) {
  fs::create_symlink(folder_ + "/gone", folder_ + "/dangling");
  EXPECT_TRUE(MeetingLink::publish(folder_ + "/dangling", folder_ + "/socket").ok());
  {
    const auto dead = listen_at(folder_ + "/dead");
  }
  fs::create_symlink(folder_ + "/dead", folder_ + "/stale");
  EXPECT_TRUE(MeetingLink::publish(folder_ + "/stale", folder_ + "/socket").ok());
  {
    const auto dead = listen_at(folder_ + "/bare");
  }
  EXPECT_TRUE(MeetingLink::publish(folder_ + "/bare", folder_ + "/socket").ok());
}

// Somebody uses what no stream can be connected to, or what this process may not look at.
TEST_F(Rendezvous, OnesThatMayBeInUseStay) {
  const UniqueFd fd(socket(AF_UNIX, SOCK_DGRAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = folder_ + "/datagrams";
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  ASSERT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const auto link = MeetingLink::publish(path, folder_ + "/socket");
  EXPECT_NE(link.status().message().find("cannot see whether somebody listens"), std::string_view::npos) << link.status().str();
  EXPECT_TRUE(fs::is_socket(path));
}

TEST_F(Rendezvous, FilesThatAreNoSocketsStay) {
  std::ofstream(folder_ + "/thesis.txt") << "years of work";
  const auto link = MeetingLink::publish(folder_ + "/thesis.txt", folder_ + "/socket");
  ASSERT_FALSE(link.ok());
  EXPECT_EQ(link.status().code(), Code::invalid_argument);
  EXPECT_TRUE(fs::exists(folder_ + "/thesis.txt"));
  EXPECT_FALSE(MeetingLink::publish(folder_ + "/" + std::string(120, 'x'), folder_ + "/socket").ok());
  EXPECT_FALSE(MeetingLink::publish("", folder_ + "/socket").ok());
  EXPECT_FALSE(MeetingLink::publish(folder_ + "/none/such", folder_ + "/socket").ok());
}

TEST_F(Rendezvous, SomebodyElsesLinkIsLeftAlone) {
  {
    const auto link = MeetingLink::publish(folder_ + "/meet", folder_ + "/a");
    ASSERT_TRUE(link.ok());
    fs::remove(folder_ + "/meet");
    fs::create_symlink(folder_ + "/b", folder_ + "/meet");
  }
  EXPECT_EQ(fs::read_symlink(folder_ + "/meet"), folder_ + "/b");
}

// Each sees a dead link, and one alone may replace it: the other's ranks would wait at a place that nobody finds.
TEST_F(Rendezvous, OneOfTwoProcessesReplacesADeadOne) {
  constexpr int rounds = 300;
  const std::string meet = folder_ + "/meet";
  std::array<pid_t, 2> children{};
  std::array<UniqueFd, 2> starts, ends;
  for (std::size_t who = 0; who < 2; ++who) {
    std::array<int, 2> start{}, end{};
    ASSERT_EQ(pipe(start.data()), 0);
    ASSERT_EQ(pipe(end.data()), 0);
    children[who] = fork();
    if (children[who] == 0) {
      ::alarm(60);
      close(start[1]);  // so that read() sees the end of the parent's
      for (UniqueFd& other : starts) other.reset();
      const std::string own = folder_ + "/socket-" + std::to_string(who);
      const UniqueFd socket = listen_at(own);
      MeetingLink link;
      for (char go = 0; read(start[0], &go, 1) == 1;) {
        link = {};
        auto made = MeetingLink::publish(meet, own);
        const char answer = made.ok() ? 'y' : made.status().code() == Code::invalid_argument ? 'n' : '?';
        if (made.ok()) link = std::move(*made);
        if (write(end[1], &answer, 1) != 1) break;
      }
      _exit(0);
    }
    close(start[0]);
    close(end[1]);
    starts[who] = UniqueFd(start[1]);
    ends[who] = UniqueFd(end[0]);
  }
  for (int round = 0; round < rounds; ++round) {
    fs::remove(meet);
    fs::create_symlink(folder_ + "/gone", meet);
    for (const UniqueFd& start : starts) ASSERT_EQ(write(start.get(), "g", 1), 1);
    std::string answers(2, ' ');
    for (std::size_t who = 0; who < 2; ++who) ASSERT_EQ(read(ends[who].get(), &answers[who], 1), 1);
    ASSERT_TRUE(answers == "yn" || answers == "ny") << answers << " in round " << round;
    ASSERT_EQ(fs::read_symlink(meet), folder_ + (answers[0] == 'y' ? "/socket-0" : "/socket-1"));
  }
  for (std::size_t who = 0; who < 2; ++who) {
    starts[who].reset();
    int status = 0;
    ASSERT_EQ(waitpid(children[who], &status, 0), children[who]);
    EXPECT_EQ(status, 0);
  }
  EXPECT_FALSE(fs::exists(meet + ".hmc-lock"));
}

// Processes of two hosts that cannot read theirs were taken for those of one.
TEST(KernelId, IsAProcessesOwnWhereItCannotBeRead) {
  std::string folder = (fs::temp_directory_path() / "hmc-kernel-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string empty = folder + "/empty", none = folder + "/none", readable = folder + "/id";
  std::ofstream(empty) << "";
  std::ofstream(readable) << "c0ffee\n";
  EXPECT_EQ(kernel_id_from(readable), "c0ffee");
  EXPECT_EQ(kernel_id(), kernel_id());
  EXPECT_LE(kernel_id().size(), 64U);
  const std::string own = kernel_id_from(none);
  EXPECT_EQ(kernel_id_from(empty), own);
  EXPECT_LE(own.size(), 64U);
  EXPECT_TRUE(may_be_one_kernel(own, "c0ffee"));
  EXPECT_TRUE(may_be_one_kernel("c0ffee", own));
  EXPECT_TRUE(may_be_one_kernel("c0ffee", "c0ffee"));
  EXPECT_FALSE(may_be_one_kernel("c0ffee", "decaf"));
  EXPECT_FALSE(own.empty());
  fs::remove_all(folder);
}

TEST(RendezvousAddress, Tcp) {
  const auto v4 = parse_tcp("tcp://10.0.0.1:7000");
  ASSERT_TRUE(v4.ok());
  EXPECT_EQ(v4->host, "10.0.0.1");
  EXPECT_EQ(v4->port, "7000");
  const auto v6 = parse_tcp("tcp://[fd00::2]:1");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(v6->host, "fd00::2");
  for (const auto* wrong : {"", "tcp://", "tcp://h", "tcp://h:", "tcp://:1", "tcp://h:0", "tcp://h:65536", "tcp://h:1x",
                            "udp://h:1", "h:1", "unix:/x"}) {
    EXPECT_EQ(parse_tcp(wrong).status().code(), Code::invalid_argument) << wrong;
  }
  EXPECT_EQ(listen_address_for({"node7", "7000"}), "tcp://[::]:7000");
  EXPECT_EQ(listen_address_for({"127.0.0.1", "7000"}), "tcp://127.0.0.1:7000");
  EXPECT_EQ(listen_address_for({"::1", "7000"}), "tcp://[::1]:7000");
}

TEST(RendezvousAddress, WildcardsAreReplaced) {
  const std::vector<std::string> listening{"unix:/s", "tcp://[::]:5000", "tcp://10.1.1.1:6000"};
  EXPECT_EQ(reachable_addresses(listening, "tcp://node7:7000", true, Deadline::never()),
            (std::vector<std::string>{"unix:/s", "tcp://node7:5000", "tcp://10.1.1.1:6000"}));
  EXPECT_EQ(reachable_addresses(listening, "tcp://127.0.0.1:7000", false, Deadline::never()),
            (std::vector<std::string>{"unix:/s", "tcp://127.0.0.1:5000", "tcp://10.1.1.1:6000"}));
  EXPECT_EQ(reachable_addresses(listening, "unix:/r", false, Deadline::never()),
            (std::vector<std::string>{"unix:/s", "tcp://10.1.1.1:6000"}));
}

TEST(RendezvousAddress, NameLookupKeepsTheDeadline) {
  testing::HeldLookup held;
  const std::vector<std::string> listening{"unix:/s", "tcp://[::]:5000"};
  const std::string rendezvous = "tcp://" + std::string(held.name) + ":7000";
  EXPECT_EQ(reachable_addresses(listening, rendezvous, false, Deadline::after_seconds(0)), (std::vector<std::string>{"unix:/s"}));
  held.release();
  EXPECT_EQ(reachable_addresses(listening, rendezvous, false, Deadline::never()),
            (std::vector<std::string>{"unix:/s", "tcp://127.0.0.1:5000"}));
}

TEST(RendezvousAddress, ASignalEndsTheLookup) {
  struct Caller final : Interruptible {
    bool asked() override { return waiting; }
    void before_waiting() override { waiting = true; }
    bool waiting = false;
  };
  testing::HeldLookup held;
  Caller caller;
  const auto found = resolve_tcp_until("tcp://" + std::string(held.name) + ":7000", Deadline::never());
  EXPECT_EQ(found.status().code(), Code::cancelled) << found.status().str();
  EXPECT_TRUE(caller.interrupted());
  held.release();
}

}  // namespace
}  // namespace hmc
