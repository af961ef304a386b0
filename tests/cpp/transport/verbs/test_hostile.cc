// A peer that has a real connection and keeps no promise: it reaches for what it may not, and sends what no endpoint would.
#if __has_include(<infiniband/verbs.h>)

#include <arpa/inet.h>

#include <cstring>

#include "transport/one_transport.h"
#include "transport/verbs/queue_pair.h"
#include "transport/verbs/signal_heads.h"

namespace hmc::testing {
namespace {

using namespace hmc::verbs;

// The other end of an endpoint of `victim`, by hand.
class Intruder {
 public:
  static std::unique_ptr<Intruder> create(Node& victim, std::string& reason) {
    auto one = std::make_unique<Intruder>();
    const auto api = Api::get();
    if (!api.ok()) return reason = api.status().str(), nullptr;
    one->engine_ = Engine::create(Progress::manual).value();
    const auto own_lock = one->engine_->lock();
    one->nics_ = Nic::open_all(**api, one->engine_, reason);
    if (one->nics_.empty()) return nullptr;
    Nic& nic = *one->nics_[0];
    one->outbound_ = QueuePair::create(nic, QueuePair::Role::requester, 16, 1, 0).value();
    one->inbound_ = QueuePair::create(nic, QueuePair::Role::target, 1, 16, 0).value();
    one->memory_handle_ = nic.register_memory(one->memory_.data(), one->memory_.size(), IBV_ACCESS_LOCAL_WRITE).value();

    one->side.node = &victim;
    const auto lock = one->side.lock();
    const Bytes domain = encode_domain({{nic.info()}});
    one->side.endpoint = victim.transport->create_endpoint(same_process_domain(domain), one->side.sink).value();
    one->victim_ = decode_address(one->side.endpoint->address().value().bytes).value().rails.at(0);
    Blob address;
    address.bytes = encode_address({0, {{nic.info(), one->outbound_->number(), one->inbound_->number(), sequence, 0}}});
    Done done;
    EXPECT_TRUE(one->side.endpoint->connect(address, &done).ok() && done.done());
    EXPECT_TRUE(one->inbound_->connect(one->victim_.port, one->victim_.outbound, one->victim_.sequence, {}).ok());
    EXPECT_TRUE(one->outbound_->connect(one->victim_.port, one->victim_.inbound, sequence, {}).ok());
    return one;
  }
  ~Intruder() {
    if (side.endpoint) side.close();
    if (!engine_) return;
    const auto lock = engine_->lock();
    outbound_.reset();
    inbound_.reset();
    if (memory_handle_ != nullptr) nics_[0]->api().dereg_mr(memory_handle_);
    nics_.clear();
  }

  // One work request; how it ended.
  ibv_wc_status post(ibv_wr_opcode opcode, std::size_t bytes, std::uint64_t address = 0, std::uint32_t key = 0,
                     std::uint32_t immediate = 0) {
    ibv_sge part{reinterpret_cast<std::uintptr_t>(memory_.data()), static_cast<std::uint32_t>(bytes), memory_handle_->lkey};
    ibv_send_wr work{};
    work.sg_list = &part;
    work.num_sge = 1;
    work.opcode = opcode;
    work.send_flags = IBV_SEND_SIGNALED;
    work.wr.rdma.remote_addr = address;
    work.wr.rdma.rkey = key;
    work.imm_data = htonl(immediate);
    ibv_send_wr* refused = nullptr;
    EXPECT_EQ(ibv_post_send(outbound_->handle(), &work, &refused), 0);
    std::optional<ibv_wc_status> status;
    const Deadline deadline = Deadline::after_seconds(60);
    while (!status && !deadline.passed()) {
      const auto lock = engine_->lock();
      nics_[0]->queues().poll([&](const ibv_wc& completion) { status = completion.status; });
    }
    return status.value_or(IBV_WC_GENERAL_ERR);
  }
  std::byte* memory() noexcept { return memory_.data(); }

  Side side;  // the victim's end
  static constexpr std::uint32_t sequence = 1000;

 private:
  std::shared_ptr<Engine> engine_;
  std::vector<std::unique_ptr<Nic>> nics_;
  std::unique_ptr<QueuePair> outbound_;
  std::unique_ptr<QueuePair> inbound_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(8192);
  ibv_mr* memory_handle_ = nullptr;
  RailAddress victim_;
};

class VerbsHostile : public ::testing::Test {
 protected:
  void SetUp() override {
    pair_ = Pair::create(factory_of("verbs"), reason_);
    if (!pair_) GTEST_SKIP() << reason_;
    intruder_ = Intruder::create(*pair_->a().node, reason_);
    ASSERT_TRUE(intruder_) << reason_;
  }
  void TearDown() override {
    if (!pair_ || !intruder_) return;
    // The honest pair of the same node never noticed.
    HMC_ASSERT_OK(send_signal(pair_->b(), pattern(100, 1)));
    ASSERT_TRUE(pair_->until([&] { return !pair_->a().sink.signals.empty(); }));
    EXPECT_EQ(pair_->a().sink.signals.back(), pattern(100, 1));
    EXPECT_TRUE(pair_->a().sink.failure.ok() && pair_->b().sink.failure.ok());
    intruder_.reset();
  }
  RegionKeys exported(const Area& area) {
    const auto lock = pair_->a().lock();
    return decode_region(area.region()->exported().value().bytes).value();
  }
  // A message of `bytes` is sent; the victim ends the link for it.
  void ends_the_link(std::size_t bytes) {
    EXPECT_EQ(intruder_->post(IBV_WR_SEND, bytes), IBV_WC_SUCCESS);
    is_ended();
  }
  void is_ended() {
    ASSERT_TRUE(pair_->until([&] { return !intruder_->side.sink.failure.ok(); }));
    EXPECT_EQ(intruder_->side.sink.failure.code(), Code::protocol) << intruder_->side.sink.failure.str();
    EXPECT_TRUE(intruder_->side.sink.signals.empty());
  }

  std::string reason_;
  std::unique_ptr<Pair> pair_;
  std::unique_ptr<Intruder> intruder_;
};

TEST_F(VerbsHostile, AWrongKeyMovesNothing) {
  const Area area(*pair_->a().node, 4096, false);
  fill_pattern(area.span(), 1);
  const RegionKeys keys = exported(area);
  EXPECT_EQ(intruder_->post(IBV_WR_RDMA_WRITE, 64, keys.address, *keys.keys[0] ^ 0x5A00), IBV_WC_REM_ACCESS_ERR);
  pair_->settle();
  EXPECT_EQ(first_mismatch(area.span(), 1), -1);
  EXPECT_TRUE(intruder_->side.sink.failure.ok());
}

TEST_F(VerbsHostile, NothingBeyondTheRegion) {
  const Area area(*pair_->a().node, 4096, false);
  fill_pattern(area.span(), 1);
  const RegionKeys keys = exported(area);
  EXPECT_EQ(intruder_->post(IBV_WR_RDMA_WRITE, 64, keys.address + 4096 - 63, *keys.keys[0]), IBV_WC_REM_ACCESS_ERR);
  pair_->settle();
  EXPECT_EQ(first_mismatch(area.span(), 1), -1);
  EXPECT_TRUE(area.guards_intact());
}

TEST_F(VerbsHostile, ReadOnlyIsReadOnlyForTheCard) {
  const Area area(*pair_->a().node, 4096, false, Access::read);
  fill_pattern(area.span(), 1);
  const RegionKeys keys = exported(area);
  EXPECT_EQ(intruder_->post(IBV_WR_RDMA_READ, 4096, keys.address, *keys.keys[0]), IBV_WC_SUCCESS);
  EXPECT_EQ(first_mismatch({intruder_->memory(), 4096}, 1), -1);
  EXPECT_EQ(intruder_->post(IBV_WR_RDMA_WRITE, 64, keys.address, *keys.keys[0]), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(first_mismatch(area.span(), 1), -1);
}

TEST_F(VerbsHostile, ADeregisteredRegionIsClosed) {
  Area area(*pair_->a().node, 4096, false);
  const RegionKeys keys = exported(area);
  EXPECT_EQ(intruder_->post(IBV_WR_RDMA_WRITE, 64, keys.address, *keys.keys[0]), IBV_WC_SUCCESS);
  area.deregister();
  fill_pattern(area.span(), 2);
  EXPECT_EQ(intruder_->post(IBV_WR_RDMA_WRITE, 64, keys.address, *keys.keys[0]), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(first_mismatch(area.span(), 2), -1);
}

// Their queue pair starts over once for all of them, not once for each.
TEST_F(VerbsHostile, ManyPutsToARegionThatIsGone) {
  constexpr std::size_t bytes = 100'000;
  const Area local(*pair_->a().node, bytes, false), kept(*pair_->b().node, bytes, false);
  Area gone(*pair_->b().node, bytes, false);
  fill_pattern(local.span(), 1);
  const auto to_gone = pair_->import(pair_->a(), gone), to_kept = pair_->import(pair_->a(), kept);
  std::vector<std::unique_ptr<Transfer>> all;
  for (int i = 0; i < 400; ++i) {
    all.push_back(std::make_unique<Transfer>(pair_->a(), local, i % 4 == 0 ? *to_kept : *to_gone));
    HMC_ASSERT_OK(all.back()->put());
  }
  gone.deregister();
  ASSERT_TRUE(pair_->until([&] { return std::ranges::all_of(all, [](const auto& one) { return one->done.done(); }); }));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Code code = all[i]->done.status().code();
    EXPECT_TRUE(code == Code::ok || (i % 4 != 0 && code == Code::stale)) << i << ' ' << all[i]->done.status().str();
    EXPECT_EQ(all[i]->done.count(), 1);
  }
  EXPECT_EQ(all[399]->done.status().code(), Code::stale);
  EXPECT_EQ(first_mismatch(kept.span(), 1), -1);
}

TEST_F(VerbsHostile, AnEmptyMessage) { ends_the_link(0); }

TEST_F(VerbsHostile, AnUnknownMessage) {
  std::memset(intruder_->memory(), 0xEE, 100);
  ends_the_link(100);
}

TEST_F(VerbsHostile, CreditForSignalsThatWereNotSent) {
  encode_head(intruder_->memory(), {MessageKind::signal, 0, 0, 1});
  ends_the_link(head_bytes + 5);
}

TEST_F(VerbsHostile, NewsOfARailThatThereIsNot) {
  encode_head(intruder_->memory(), {MessageKind::rail_down, 1, 0, 0});
  ends_the_link(head_bytes);
}

TEST_F(VerbsHostile, AnOfferOfNothing) {
  encode_head(intruder_->memory(), {MessageKind::rail_up, 0, 1, 0});
  ends_the_link(head_bytes + 3);
}

TEST_F(VerbsHostile, AHeadOfSignalsThatCannotBe) {
  encode_head(intruder_->memory(), {MessageKind::signal_head, 0, 0, 0});
  ends_the_link(head_bytes + max_signal_head + 1);
}

// What it may write it has written; the signal it has no name for.
TEST_F(VerbsHostile, AnImmediateOfNoHeadThatWasTold) {
  const Area area(*pair_->a().node, 4096, false);
  const RegionKeys keys = exported(area);
  EXPECT_EQ(intruder_->post(IBV_WR_RDMA_WRITE_WITH_IMM, 64, keys.address, *keys.keys[0], 0x05000001), IBV_WC_SUCCESS);
  is_ended();
}

TEST_F(VerbsHostile, AMessageLargerThanTheReceives) {
  encode_head(intruder_->memory(), {MessageKind::signal, 0, 0, 0});
  EXPECT_NE(intruder_->post(IBV_WR_SEND, 8192), IBV_WC_SUCCESS);
  pair_->settle();
  EXPECT_TRUE(intruder_->side.sink.signals.empty());
}

}  // namespace
}  // namespace hmc::testing

#endif
