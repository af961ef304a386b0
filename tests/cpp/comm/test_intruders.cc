// Everybody who knocks and must not come in, while two peers transfer: the intruders are refused, the transfer notices nothing.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "ways.h"

namespace hmc {
namespace {

using namespace testing;

int dial(const std::string& address) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  return fd;
}

void say(int fd, std::span<const std::byte> bytes) { static_cast<void>(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL)); }
void say(int fd, std::string_view text) { say(fd, std::as_bytes(std::span(text))); }

// Both directions, one- and two-sided, every byte checked, until told to stop.
class Traffic {
 public:
  Traffic(const Context& a, const Context& b, Peer ab, Peer ba) : ab_(std::move(ab)), ba_(std::move(ba)) {
    source_ = *a.buffer(150'001);
    target_ = *b.buffer(150'001);
    remote_ = *ab_.import(*target_.descriptor(), soon());
    thread_ = std::thread([this] { run(); });
  }
  ~Traffic() {
    stop_ = true;
    thread_.join();
    EXPECT_GT(rounds_.load(), 3U);
  }
  [[nodiscard]] std::uint64_t rounds() const { return rounds_.load(); }

 private:
  void run() {
    while (!stop_ && !::testing::Test::HasFailure()) {
      const std::uint64_t seed = rounds_.load();
      fill_pattern(span_of(source_), seed);
      HMC_EXPECT_OK(ab_.put(source_, remote_, {1, Complete::remote})->wait(soon()));
      HMC_EXPECT_OK(ba_.wait_notify(1, 1, soon()));
      EXPECT_EQ(first_mismatch(span_of(target_), seed), -1);
      auto out = pattern(seed % 2 == 0 ? 300 : 120'000, seed + 1);
      Guarded in(out.size());
      const auto received = *ab_.irecv(in.view(), 1);
      HMC_EXPECT_OK(ba_.send(view(out), 1, soon()));
      HMC_EXPECT_OK(received.wait(soon()));
      EXPECT_TRUE(in.holds(out.size(), seed + 1));
      rounds_.fetch_add(1);
    }
  }
  Peer ab_, ba_;
  ConnBuffer source_, target_;
  RemoteBuffer remote_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> rounds_{0};
  std::thread thread_;
};

class Intruders : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Transports, Intruders, ::testing::ValuesIn(peer_transports()), [](const auto& p) { return p.param; });

TEST_P(Intruders, AreRefusedWhileOthersTransfer) {
  ContextOptions secured;
  secured.key = generate_job_key();
  const auto server = make_context(GetParam(), {"tcp://127.0.0.1:0"}, secured);
  std::string tcp;
  for (const auto& address : server.addresses()) {
    if (address.starts_with("tcp:")) tcp = address;
  }
  ASSERT_FALSE(tcp.empty());
  const auto friendly = make_context(GetParam(), {}, secured);
  const auto ab = friendly.connect(tcp, soon());
  ASSERT_TRUE(ab.ok()) << ab.status().str();
  const auto ba = *server.accept(soon());
  const int before = open_descriptors();
  std::vector<int> held;
  {
    const Traffic traffic(friendly, server, *ab, ba);
    ContextOptions wrong = secured;
    wrong.key = generate_job_key();
    const auto stranger = make_context(GetParam(), {}, wrong);
    ContextOptions without;
    without.insecure = true;
    const auto keyless = make_context(GetParam(), {}, without);
    for (int round = 0; round < 4; ++round) {
      const auto refused = stranger.connect(tcp, soon());
      EXPECT_EQ(refused.status().code(), Code::authentication) << refused.status().str();
      const auto unnamed = keyless.connect(tcp, soon());
      EXPECT_EQ(unnamed.status().code(), Code::authentication) << unnamed.status().str();
      // A port scanner, noise behind the right first bytes (a connection of control, of tcp data), and silence.
      for (const std::string_view magic : {"", "HMC-CTL\n", "HMC-TCP\n", "GET / HTTP/1.1\r\n\r\n"}) {
        for (const std::size_t noise : {0U, 1U, 40U, 3000U}) {
          held.push_back(dial(tcp));
          say(held.back(), magic);
          say(held.back(), pattern(noise, static_cast<std::uint64_t>(round)));
        }
      }
    }
    // A slow-loris: a byte now and then while the traffic goes on.
    held.push_back(dial(tcp));
    const auto slow = pattern(60, 9);
    const std::uint64_t start = traffic.rounds();
    for (const std::byte byte : slow) {
      say(held.back(), std::span(&byte, 1));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (traffic.rounds() < start + 4 && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
    EXPECT_EQ(server.peers().size(), 1U);
    EXPECT_EQ(server.accept(soon(0)).status().code(), Code::timeout);
    // Whoever has the key still gets in.
    const auto late = make_context(GetParam(), {}, secured);
    const auto connected = late.connect(tcp, soon());
    EXPECT_TRUE(connected.ok()) << connected.status().str();
    EXPECT_TRUE(server.accept(soon()).ok());
  }
  for (const int fd : held) ::close(fd);
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (open_descriptors() > before && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
  EXPECT_LE(open_descriptors(), before);
}

// Without a key TCP beyond the host is refused with the fix; on the host the kernel vouches for the user.
TEST(Intrusion, ListeningBeyondTheHostNeedsAKeyAndSaysSo) {
  for (const std::string address : {"tcp://0.0.0.0:0", "tcp://[::]:0"}) {
    ContextOptions options;
    options.listen = {address};
    const auto refused = Context::create(options);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.status().message().find("keygen"), std::string_view::npos) << refused.status().str();
    EXPECT_NE(refused.status().message().find("insecure"), std::string_view::npos) << refused.status().str();
  }
}

}  // namespace
}  // namespace hmc
