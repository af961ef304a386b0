// Attempts to connect that are given up while the client moves over to the Unix socket.
#include <filesystem>

#include "control/raw.h"

namespace hmc::test {
namespace {

// A raw TCP server. It offers a Unix socket at which nothing answers.
class SilentMove {
 public:
  SilentMove() : path_(std::filesystem::temp_directory_path() / ("hmc-moves-" + std::to_string(random_u64()))) {
    const std::string path = path_.string();
    EXPECT_LT(path.size(), sizeof local_.sun_path);
    path.copy(local_.sun_path, sizeof local_.sun_path - 1);
    local_.sun_family = AF_UNIX;
    EXPECT_EQ(bind(unix_.get(), reinterpret_cast<sockaddr*>(&local_), sizeof local_), 0);
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(tcp_.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
    socklen_t length = sizeof name;
    EXPECT_EQ(getsockname(tcp_.get(), reinterpret_cast<sockaddr*>(&name), &length), 0);
    address = "tcp://127.0.0.1:" + std::to_string(ntohs(name.sin_port));
    EXPECT_EQ(::listen(tcp_.get(), 4), 0);
    EXPECT_EQ(::listen(unix_.get(), 4), 0);
  }
  ~SilentMove() { std::filesystem::remove(path_); }
  SilentMove(const SilentMove&) = delete;
  SilentMove& operator=(const SilentMove&) = delete;

  // Returns when the client has come to the Unix socket, where it waits for an answer.
  void meet(std::uint8_t flags) {
    client_.emplace(accept4(tcp_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    client_->receive(control_magic.size());
    client_->send(raw_hello(control::HelloKind::accept, flags));
    control::Identity identity;
    identity.ticket.emplace();
    identity.move_address = "unix:" + path_.string();
    client_->send(raw_frame(control::FrameType::identity, control::encode_identity(identity)));
    moved_.emplace(accept4(unix_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_EQ(moved_->receive(control_magic.size()).size(), control_magic.size());
  }
  std::string address;

 private:
  const std::filesystem::path path_;
  sockaddr_un local_{};
  UniqueFd tcp_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  UniqueFd unix_{socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::optional<RawSocket> client_;
  std::optional<RawSocket> moved_;
};

class GivingUp : public ::testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(GivingUp, DuringTheMoveIsClosed) {
  const auto [insecure, with_the_plane] = GetParam();
  SilentMove server;
  Node client(Node::Setup{"", insecure, 5, true, "client"});
  std::vector<Status> told;
  std::function<void()> give_up;
  {
    const auto held = client.engine->lock();
    give_up = client.plane->connect(server.address, Deadline::never(),
                                    [&](Result<std::unique_ptr<Channel>> result) { told.push_back(result.status()); });
  }
  server.meet(insecure ? control::hello_insecure : 0);
  const auto held = client.engine->lock();
  ASSERT_TRUE(told.empty());
  if (with_the_plane) {
    client.plane.reset();
  } else {
    give_up();
  }
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].code(), Code::closed) << told[0].str();
}

INSTANTIATE_TEST_SUITE_P(Control, GivingUp, ::testing::Combine(::testing::Bool(), ::testing::Bool()), [](const auto& by) {
  return std::string(std::get<0>(by.param) ? "Insecure" : "Secure") + (std::get<1>(by.param) ? "PlaneGoes" : "GivenUp");
});

}  // namespace
}  // namespace hmc::test
