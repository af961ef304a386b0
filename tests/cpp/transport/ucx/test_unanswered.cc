// Puts in messages whose answers the peer does not read.
#include "transport/ucx/with_ucx.h"
#if __has_include(<ucp/api/ucp.h>)
#include "base/random.h"
#include "transport/ucx/channel.h"
#include "transport/ucx/worker.h"

namespace hmc::testing {
namespace {

using ucx::MessageHead;
using ucx::MessageKind;

// A peer that has a connection to an endpoint of `victim`, and whose progress is called only when it connects: it reads nothing.
class Deaf {
 public:
  static constexpr unsigned burst = 8;  // messages that find room where their receiver has taken the ones before

  explicit Deaf(Pair& pair) {
    engine_ = Engine::create(Progress::manual).value();
    context_ = ucx::LibraryContext::create(*ucx::Api::get().value(), engine_).value();
    const auto own = engine_->lock();
    worker_ = ucx::Worker::create(context_).value();
    side.node = pair.a().node;
    const Bytes domain = pair.b().node->transport->domain();
    const Bytes address = ucx::encode_address({random_u64(), worker_->address()});
    Done done;
    {
      const auto lock = side.lock();
      side.endpoint = side.node->transport->create_endpoint(same_process_domain(domain), side.sink).value();
      const ucx::Address victim = ucx::decode_address(side.endpoint->address().value().bytes).value();
      token_ = victim.token;
      HMC_EXPECT_OK(worker_->connect(victim.worker));
      Blob blob;
      blob.bytes = address;
      HMC_EXPECT_OK(side.endpoint->connect(blob, &done));
    }
    send({});  // hello
    for (int rounds = 0; rounds < 1000 || !done.done(); ++rounds) {
      worker_->progress();
      side.node->poll();
      if (rounds > 10'000'000) break;
    }
    EXPECT_TRUE(done.done());
  }
  ~Deaf() {
    side.close();
    const auto own = engine_->lock();
    for (void* pending : pending_) worker_->api().request_free(pending);
    worker_.reset();
    context_.reset();
  }

  void send(MessageHead head) {
    head.token = token_;
    head.number = sent_++;
    std::array<std::byte, ucx::head_bytes>& bytes =
        *heads_.emplace_back(std::make_unique<std::array<std::byte, ucx::head_bytes>>());
    const std::size_t length = ucx::encode_head(head, bytes);
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_EAGER;
    const auto result =
        worker_->api().am_send_nbx(worker_->endpoint(), ucx::Channel::id, bytes.data(), length, nullptr, 0, &params);
    EXPECT_FALSE(UCS_PTR_IS_ERR(result));
    if (UCS_PTR_IS_PTR(result)) pending_.push_back(result);
  }

  Side side;  // the victim's end

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<const ucx::LibraryContext> context_;
  std::shared_ptr<ucx::Worker> worker_;
  std::uint64_t token_ = 0, sent_ = 0;
  std::vector<std::unique_ptr<std::array<std::byte, ucx::head_bytes>>> heads_;
  std::vector<void*> pending_;
};

class UcxUnanswered : public WithUcx {};

// What is to be answered is kept until it can be, up to a limit that no endpoint reaches.
TEST_F(UcxUnanswered, PutsOfAPeerThatReadsNothing) {
  const Bytes domain = pair_->b().node->transport->domain();
  const std::string way = pair_->a().node->transport->reach(Pair::peer_domain(domain), Device::cpu(), Device::cpu()).detail;
  if (way.find("sysv") == std::string::npos && way.find("posix") == std::string::npos) GTEST_SKIP() << "sockets hold many: " << way;
  Deaf peer(*pair_);
  constexpr unsigned most = 8 * ucx::max_unanswered_puts;
  MessageHead end;
  end.kind = MessageKind::put_last;
  for (unsigned i = 0; i < most && peer.side.sink.failure.ok(); ++i) {
    end.op = i + 1;
    peer.send(end);
    if (i % Deaf::burst == 0) {
      for (int rounds = 0; rounds < 10; ++rounds) peer.side.node->poll();
    }
  }
  pair_->settle();
  EXPECT_EQ(peer.side.sink.failure.code(), Code::protocol) << peer.side.sink.failure.str();
  expect_link_works(*pair_);
}

// More puts than may be unanswered, at an end that does not run meanwhile: all arrive, also into a region that is gone.
TEST_F(UcxUnanswered, PutsBeyondTheLimitWait) {
  constexpr std::size_t bytes = 64, count = 3 * ucx::max_unanswered_puts;
  const Area local(*pair_->a().node, bytes, false), kept(*pair_->b().node, bytes, false);
  Area gone(*pair_->b().node, bytes, false);
  fill_pattern(local.span(), 1);
  const auto to_gone = pair_->import(pair_->a(), gone), to_kept = pair_->import(pair_->a(), kept);
  gone.deregister();
  std::vector<std::unique_ptr<Transfer>> all;
  for (std::size_t i = 0; i < count; ++i) {
    all.push_back(std::make_unique<Transfer>(pair_->a(), local, i % 2 == 0 ? *to_kept : *to_gone));
    HMC_ASSERT_OK(all.back()->put());
    pair_->a().node->poll();
  }
  // One that waits may be withdrawn.
  HMC_EXPECT_OK(all.back()->cancel());
  ASSERT_TRUE(pair_->until([&] { return std::ranges::all_of(all, [](const auto& one) { return one->done.done(); }); }));
  for (std::size_t i = 0; i < count; ++i) {
    const Code expected = i + 1 == count ? Code::cancelled : i % 2 == 0 ? Code::ok : Code::stale;
    EXPECT_EQ(all[i]->done.status().code(), expected) << i << ' ' << all[i]->done.status().str();
    EXPECT_EQ(all[i]->done.count(), 1);
  }
  EXPECT_EQ(first_mismatch(kept.span(), 1), -1);
  EXPECT_TRUE(pair_->a().sink.failure.ok() && pair_->b().sink.failure.ok());
  expect_link_works(*pair_);
}

}  // namespace
}  // namespace hmc::testing

#endif
