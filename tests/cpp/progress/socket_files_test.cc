// Files of Unix sockets that listeners make, replace and remove, and the folder that they are in.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "hmc/deadline.h"
#include "progress/listener.h"
#include "testing.h"

namespace hmc {
namespace {

class SocketFilesTest : public ::testing::TestWithParam<Progress> {
 protected:
  void SetUp() override {
    setenv("XDG_RUNTIME_DIR", runtime_.path().c_str(), 1);
    engine_ = Engine::create(GetParam()).value();
    const auto lock = engine_->lock();
    listener_ = Listener::create(engine_).value();
  }

  void TearDown() override {
    {
      const auto lock = engine_->lock();
      listener_.reset();
    }
    engine_->stop();
    unsetenv("XDG_RUNTIME_DIR");
  }

  std::string listen(std::string_view address) {
    const auto lock = engine_->lock();
    auto result = listener_->listen(address);
    EXPECT_TRUE(result.ok()) << result.status().str();
    return result.ok() ? result.value() : "";
  }

  testing::TemporaryFolder runtime_;
  std::shared_ptr<Engine> engine_;
  std::unique_ptr<Listener> listener_;
};

INSTANTIATE_TEST_SUITE_P(Modes, SocketFilesTest, ::testing::Values(Progress::background, Progress::manual),
                         [](const auto& mode) { return mode.param == Progress::manual ? "manual" : "background"; });

TEST_P(SocketFilesTest, OneGoesWithItsListenerAndIsPrivate) {
  const std::string path = listen("unix").substr(5);
  struct stat info{};
  ASSERT_EQ(lstat(path.c_str(), &info), 0);
  EXPECT_TRUE(S_ISSOCK(info.st_mode));
  EXPECT_EQ(info.st_mode & 077U, 0U);
  {
    const auto lock = engine_->lock();
    listener_.reset();
  }
  EXPECT_NE(lstat(path.c_str(), &info), 0);
}

// Another listener finds the socket dead, or bound and not listening yet: one alone may have the path.
TEST_P(SocketFilesTest, OneOfTwoListenersReplacesADeadSocket) {
  const std::string path = (runtime_.path() / "meet").string();
  const auto other_engine = Engine::create(GetParam()).value();
  const auto listens = [&path](const std::shared_ptr<Engine>& engine, std::unique_ptr<Listener>& into) {
    const auto lock = engine->lock();
    into = Listener::create(engine).value();
    return into->listen("unix:" + path).ok();
  };
  for (int round = 0; round < 200; ++round) {
    {
      const UniqueFd dead(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const auto name = unix_socket_address(path).value();
      ASSERT_EQ(bind(dead.get(), name.get(), name.size), 0);
    }
    std::unique_ptr<Listener> own, others;
    std::atomic<int> ready{0};
    bool other_listens = false;
    std::thread other([&] {
      for (ready += 1; ready < 2;) continue;
      other_listens = listens(other_engine, others);
    });
    for (ready += 1; ready < 2;) continue;
    const bool listening = listens(engine_, own);
    other.join();
    EXPECT_NE(listening, other_listens) << "round " << round;
    {
      const auto lock = engine_->lock();
      own.reset();
    }
    const auto lock = other_engine->lock();
    others.reset();
    if (HasFailure()) break;
  }
  EXPECT_TRUE(std::filesystem::is_empty(runtime_.path()));
  other_engine->stop();
}

TEST_P(SocketFilesTest, StaleSocketsOfTheDeadAreRemovedLiveOnesKept) {
  ASSERT_TRUE(private_directory().ok());
  const std::string directory = private_directory().value();
  const std::string dead = directory + "/4194304-";  // a number that Linux gives to no process
  const auto bind_at = [&](const std::string& path) {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::strcpy(name.sun_path, path.c_str());
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
    EXPECT_EQ(::listen(fd.get(), 1), 0);
    return fd;
  };
  const std::string stale = dead + "1.sock";
  const std::string foreign = dead + "2.sock";  // dead pid here, yet somebody listens
  bind_at(stale).reset();
  const UniqueFd live = bind_at(foreign);
  std::string user = directory + "/user.sock";
  bind_at(user).reset();
  const std::string dangling = dead + "3.sock";
  ASSERT_EQ(symlink((directory + "/nothing").c_str(), dangling.c_str()), 0);
  listen("unix");
  EXPECT_NE(access(stale.c_str(), F_OK), 0);
  struct stat info{};
  EXPECT_NE(lstat(dangling.c_str(), &info), 0);
  EXPECT_EQ(access(foreign.c_str(), F_OK), 0);
  EXPECT_EQ(access(user.c_str(), F_OK), 0);
  // An address given by the user takes over what a dead process left, never what is in use.
  EXPECT_EQ(listen("unix:" + user), "unix:" + user);
  const auto lock = engine_->lock();
  const auto taken = listener_->listen("unix:" + user);
  EXPECT_EQ(taken.status().code(), Code::invalid_argument) << taken.status().str();
}

TEST_P(SocketFilesTest, PrivateDirectoryOpenToOthersIsRefused) {
  const auto directory = private_directory();
  ASSERT_TRUE(directory.ok()) << directory.status().str();
  struct stat info{};
  ASSERT_EQ(stat(directory.value().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777U, 0700U);
  ASSERT_EQ(chmod(directory.value().c_str(), 0750), 0);
  EXPECT_EQ(private_directory().status().code(), Code::authentication);
  EXPECT_NE(private_directory().status().message().find("chmod 700"), std::string_view::npos);
  std::filesystem::remove_all(directory.value());
  std::filesystem::create_directory_symlink("/tmp", directory.value());
  EXPECT_EQ(private_directory().status().code(), Code::authentication);
  std::filesystem::remove(directory.value());
  if (geteuid() == 0) {
    ASSERT_EQ(mkdir(directory.value().c_str(), 0700), 0);
    ASSERT_EQ(chown(directory.value().c_str(), 12345, 12345), 0);
    EXPECT_EQ(private_directory().status().code(), Code::authentication);
  }
}

}  // namespace
}  // namespace hmc
