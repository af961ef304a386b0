// A peer of several rails that is made by hand: it says when it likes which rails it has left and offers.
#include "transport/verbs_fabric/support.h"

#ifdef HMC_FABRIC_LIBRARY

#include <array>
#include <optional>
#include <random>
#include <utility>

#include "transport/verbs/messages.h"
#include "transport/verbs/queue_pair.h"

namespace hmc::testing {
namespace {

using namespace hmc::verbs;

constexpr std::size_t rails = 3;
constexpr std::uint32_t greatest = number_mask;  // as the sequence of its first packet: it is this peer that offers rails

struct News {
  MessageHead head;
  std::size_t by;  // rail
  Bytes body;
  [[nodiscard]] bool is(MessageKind kind, std::size_t rail, unsigned life) const noexcept {
    return head.kind == kind && head.rail == rail && head.life == life;
  }
};

class HandMade {
 public:
  explicit HandMade(Node& victim) {
    side.node = &victim;
    std::string problems;
    engine_ = Engine::create(Progress::manual).value();
    const auto own_lock = engine_->lock();
    nics_ = Nic::open_all(*Api::get().value(), engine_, problems);
    EXPECT_EQ(nics_.size(), rails) << problems;
    Domain domain;
    Address address;
    for (std::size_t i = 0; i < rails; ++i) {
      domain.ports.push_back(nics_[i]->info());
      handles_[i] = nics_[i]->register_memory(memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE).value();
      address.rails.push_back(make(i));
    }
    const auto lock = side.lock();
    const Bytes encoded = encode_domain(domain);
    side.endpoint = victim.transport->create_endpoint(same_process_domain(encoded), side.sink).value();
    const Address theirs = decode_address(side.endpoint->address().value().bytes).value();
    EXPECT_EQ(theirs.rails.size(), rails);
    Blob blob;
    blob.bytes = encode_address(address);
    Done done;
    EXPECT_TRUE(side.endpoint->connect(blob, &done).ok() && done.done());
    for (std::size_t i = 0; i < rails; ++i) join(i, theirs.rails[i]);
  }
  ~HandMade() {
    if (side.endpoint) side.close();
    const auto lock = engine_->lock();
    for (std::size_t i = 0; i < rails; ++i) {
      outbound_[i].reset();
      inbound_[i].reset();
      nics_[i]->api().dereg_mr(handles_[i]);
    }
    nics_.clear();
  }

  // This end of a rail, from its start.
  RailAddress make(std::size_t i) {
    Nic& nic = *nics_[i];
    outbound_[i] = QueuePair::create(nic, QueuePair::Role::requester, 256, 1, 220).value();
    inbound_[i] = QueuePair::create(nic, QueuePair::Role::target, 1, 64, 0).value();
    return {nic.info(), outbound_[i]->number(), inbound_[i]->number(), greatest, 0};
  }
  RailAddress make_anew(std::size_t i) {
    const auto lock = engine_->lock();
    return make(i);
  }
  void join(std::size_t i, const RailAddress& theirs) {
    HMC_EXPECT_OK(inbound_[i]->connect(theirs.port, theirs.outbound, theirs.sequence, {}));
    HMC_EXPECT_OK(outbound_[i]->connect(theirs.port, theirs.inbound, greatest, {}));
  }
  // Room for so many messages by that rail.
  void expect(std::size_t i, unsigned count) {
    const auto lock = engine_->lock();
    for (; count != 0; --count) {
      ibv_sge part{reinterpret_cast<std::uintptr_t>(memory_.data() + next_slot_ * slot_bytes), slot_bytes, handles_[i]->lkey};
      ibv_recv_wr work{};
      work.wr_id = i << 16 | next_slot_;
      next_slot_ = (next_slot_ + 1) % receive_slots;
      work.sg_list = &part;
      work.num_sge = 1;
      ibv_recv_wr* refused = nullptr;
      EXPECT_EQ(ibv_post_recv(inbound_[i]->handle(), &work, &refused), 0);
    }
  }
  // Whether it was taken: by a connection that has ended it is not.
  bool post(std::size_t by, const MessageHead& head, ByteSpan body = {}) {
    Bytes message(head_bytes + body.size());
    encode_head(message.data(), head);
    std::ranges::copy(body, message.begin() + head_bytes);
    ibv_sge part{reinterpret_cast<std::uintptr_t>(message.data()), static_cast<std::uint32_t>(message.size()), 0};
    ibv_send_wr work{};
    work.wr_id = sent_mark;
    work.sg_list = &part;
    work.num_sge = 1;
    work.opcode = IBV_WR_SEND;
    work.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
    ibv_send_wr* refused = nullptr;
    const auto lock = engine_->lock();
    return ibv_post_send(outbound_[by]->handle(), &work, &refused) == 0;
  }
  // Sent, and acknowledged by the other end's card.
  void send(std::size_t by, const MessageHead& head, ByteSpan body = {}) {
    acknowledged_.reset();
    EXPECT_TRUE(post(by, head, body));
    const Deadline deadline = Deadline::after_seconds(60);
    while (!acknowledged_ && !deadline.passed()) poll();
    EXPECT_EQ(acknowledged_, IBV_WC_SUCCESS);
  }
  void poll() {
    const auto lock = engine_->lock();
    for (const auto& nic : nics_) {
      nic->queues().poll([this](const ibv_wc& completion) { take(completion); });
    }
  }
  // Has that come? Polls both ends until it has, for a while.
  const News* heard(MessageKind kind, std::size_t rail, unsigned life) {
    const Deadline deadline = Deadline::after_seconds(10);
    for (;;) {
      for (const News& each : news) {
        if (each.is(kind, rail, life)) return &each;
      }
      if (deadline.passed()) return nullptr;
      side.node->poll();
      poll();
    }
  }

  Side side;  // the other end
  std::vector<News> news;

 private:
  static constexpr std::uint64_t sent_mark = 1ULL << 32;
  static constexpr std::size_t receive_slots = 1024;

  void take(const ibv_wc& completion) {
    if (completion.wr_id == sent_mark) {
      acknowledged_ = completion.status;
      return;
    }
    if (completion.status != IBV_WC_SUCCESS) return;
    const ByteSpan message(memory_.data() + (completion.wr_id & 0xFFFF) * slot_bytes, completion.byte_len);
    News one{{}, completion.wr_id >> 16, {}};
    EXPECT_TRUE(decode_head(message, one.head));
    one.body.assign(message.begin() + head_bytes, message.end());
    news.push_back(std::move(one));
  }

  std::shared_ptr<Engine> engine_;
  std::vector<std::unique_ptr<Nic>> nics_;
  std::array<std::unique_ptr<QueuePair>, rails> outbound_, inbound_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(receive_slots * slot_bytes);
  std::array<ibv_mr*, rails> handles_{};
  std::size_t next_slot_ = 0;
  std::optional<ibv_wc_status> acknowledged_;
};

class VerbsHandMade : public OnFabric {
 protected:
  void SetUp() override {
    OnFabric::SetUp();
    fabric().configure({.devices = rails});
    connect();
    peer_ = std::make_unique<HandMade>(*pair->a().node);
  }
  void TearDown() override {
    peer_.reset();
    OnFabric::TearDown();
  }
  std::unique_ptr<HandMade> peer_;
};

// The other end leaves rail 1 while rail 0 is joining, says so by rail 2 alone, and that one fails before it has arrived.
TEST_F(VerbsHandMade, ARailThatJoinsTellsOfThoseThatWereLeft) {
  peer_->expect(1, 8);
  peer_->expect(2, 8);
  peer_->send(1, {MessageKind::rail_down, 0, 0, 0});
  ASSERT_NE(peer_->heard(MessageKind::rail_down, 0, 0), nullptr);
  const RailOffer offer{rails, peer_->make_anew(0)};
  peer_->expect(0, 8);
  peer_->send(1, {MessageKind::rail_up, 0, 1, 0}, encode_offer(offer));
  const News* answer = peer_->heard(MessageKind::rail_up, 0, 1);
  ASSERT_NE(answer, nullptr);
  peer_->join(0, decode_offer(answer->body).value().address);
  fabric().hang_port(2, 0, 1);
  peer_->send(1, {MessageKind::rail_down, 1, 0, 0});
  pair->settle();
  peer_->send(0, {MessageKind::credit, 0, 0, 0});
  pair->settle();
  fabric().mend_ports();
  fabric().fail_port(2, 0, 0);
  EXPECT_NE(peer_->heard(MessageKind::rail_down, 2, 0), nullptr) << peer_->side.sink.failure.str();
  EXPECT_NE(peer_->heard(MessageKind::rail_down, 1, 0), nullptr);
  EXPECT_TRUE(peer_->side.sink.failure.ok()) << peer_->side.sink.failure.str();
}

// A signal's handler asks for the rest, which says that its rail was left, and offers another in its place too early.
TEST_F(VerbsHandMade, ARailIsNotReplacedWhileItsSignalIsTaken) {
  RailOffer offer;
  int signals = 0;
  peer_->side.sink.handler = [&](ByteSpan) {
    ++signals;
    const auto rest = [&] { peer_->side.endpoint->receive_rest(); };
    peer_->send(1, {MessageKind::rail_down, 0, 0, 0});
    for (int i = 0; i < 4; ++i) rest();
    peer_->send(1, {MessageKind::rail_up, 0, 1, 0}, encode_offer(offer));
    rest();
  };
  peer_->send(0, {MessageKind::signal, 0, 0, 0});
  offer = {rails, peer_->make_anew(0)};
  const Handled handled(&peer_->side.sink);
  ASSERT_TRUE(pair->until([&] { return !peer_->side.sink.failure.ok(); }));
  EXPECT_EQ(signals, 1);
  EXPECT_EQ(peer_->side.sink.failure.code(), Code::protocol) << peer_->side.sink.failure.str();
}

// Rails are left, offered and joined in any order, now and then with what cannot be, beside signals and credit.
TEST_F(VerbsHandMade, NewsInAnyOrder) {
  unsigned joined = 0;
  for (unsigned seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](unsigned end) { return static_cast<std::uint32_t>(random() % end); };
    const auto seldom = [&] { return below(150) == 0; };
    peer_ = std::make_unique<HandMade>(*pair->a().node);
    std::array<std::uint16_t, rails> lives{};
    std::array<bool, rails> left{};
    for (std::size_t i = 0; i < rails; ++i) peer_->expect(i, 8);
    peer_->side.sink.handler = [&](ByteSpan) {
      if (below(4) == 0) peer_->side.endpoint->receive_rest();
    };
    const Handled handled(&peer_->side.sink);
    const auto turn = [&](std::uint32_t rounds) {
      for (; rounds != 0; --rounds) {
        peer_->poll();
        pair->a().node->poll();
      }
      for (const News& each : std::exchange(peer_->news, {})) {
        const std::size_t rail = each.head.rail;
        if (each.is(MessageKind::rail_down, rail, lives[rail])) left[rail] = true;
        if (!each.is(MessageKind::rail_up, rail, lives[rail]) || !left[rail]) continue;
        left[rail] = false;
        ++joined;
        peer_->join(rail, decode_offer(each.body).value().address);
        peer_->post(rail, {MessageKind::credit, 0, 0, 0});
      }
    };
    for (int step = 0; step < 400 && peer_->side.sink.failure.ok(); ++step) {
      const std::size_t by = below(rails), told = below(rails);
      const auto number = static_cast<std::uint8_t>(told);
      const auto life = static_cast<std::uint16_t>(lives[told] + (seldom() ? below(3) : 0));
      switch (below(8)) {
        case 0:
          if (std::ranges::count(left, true) < 2 || seldom()) peer_->post(by, {MessageKind::rail_down, number, life, 0});
          break;
        case 1: {
          if (!left[told] && !seldom()) break;
          const RailOffer offer{below(6), peer_->make_anew(told)};
          peer_->expect(told, 8);
          lives[told] = static_cast<std::uint16_t>(life + 1);
          peer_->post(by, {MessageKind::rail_up, number, lives[told], 0}, encode_offer(offer));
          break;
        }
        case 2:
          peer_->post(by, {MessageKind::credit, 0, 0, seldom() ? 1U : 0U});
          break;
        case 3:
          peer_->post(by, {MessageKind::signal, 0, 0, 0});
          break;
        case 4:
          static_cast<void>(send_signal(peer_->side, numbered_signal(1, 1, false)));
          break;
        default:
          if (below(2) == 0) peer_->expect(by, 2);
          turn(below(40));
      }
    }
  }
  EXPECT_GT(joined, 0U);
  peer_.reset();
  expect_link_works(*pair);
}

}  // namespace
}  // namespace hmc::testing

#endif
