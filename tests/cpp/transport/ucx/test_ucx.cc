// What the ucx transport says of versions, and messages that no endpoint of this version sends.
#include "transport/ucx/wire.h"
#include "transport/ucx/with_ucx.h"
#if __has_include(<ucp/api/ucp.h>)
#include "transport/ucx/region.h"
#endif

namespace hmc::testing {
namespace {

using ucx::MessageHead;
using ucx::MessageKind;

class Ucx : public WithUcx {};

TEST_F(Ucx, OtherVersionsAreRefusedByName) {
  const Transport& transport = *pair_->a().node->transport;
  ucx::Domain theirs = ucx::decode_domain(transport.domain()).value();
  const auto reach = [&] {
    const Bytes domain = ucx::encode_domain(theirs);
    return transport.reach(Pair::peer_domain(domain), Device::cpu(), Device::cpu());
  };
  EXPECT_TRUE(reach().ok);
  ++theirs.minor;
  const Reach other = reach();
  EXPECT_FALSE(other.ok);
  EXPECT_NE(other.reason.find("1." + std::to_string(theirs.minor)), std::string::npos) << other.reason;
  EXPECT_NE(other.reason.find("install the same"), std::string::npos) << other.reason;
}

TEST_F(Ucx, PathsNameWhatUcxUses) {
  const Bytes domain = pair_->b().node->transport->domain();
  const Reach reach = pair_->a().node->transport->reach(Pair::peer_domain(domain), Device::cpu(), Device::cpu());
  EXPECT_NE(reach.detail.find(" of UCX 1."), std::string::npos) << reach.detail;
  EXPECT_NE(reach.detail.find("not encrypted"), std::string::npos) << reach.detail;
}

TEST_F(Ucx, ManyPutsToARegionThatIsGone) {
  constexpr std::size_t bytes = 100'000;
  const Area local(*pair_->a().node, bytes, false), kept(*pair_->b().node, bytes, false);
  Area gone(*pair_->b().node, bytes, false);
  fill_pattern(local.span(), 1);
  const auto to_gone = pair_->import(pair_->a(), gone), to_kept = pair_->import(pair_->a(), kept);
  gone.deregister();
  fill_pattern(gone.span(), 2);
  std::vector<std::unique_ptr<Transfer>> all;
  for (int i = 0; i < 60; ++i) {
    all.push_back(std::make_unique<Transfer>(pair_->a(), local, i % 4 == 0 ? *to_kept : *to_gone));
    HMC_ASSERT_OK(i % 2 == 0 ? all.back()->put() : all.back()->get());
  }
  ASSERT_TRUE(pair_->until([&] { return std::ranges::all_of(all, [](const auto& one) { return one->done.done(); }); }));
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]->done.status().code(), i % 4 == 0 ? Code::ok : Code::stale) << i;
    EXPECT_EQ(all[i]->done.count(), 1);
  }
  EXPECT_EQ(first_mismatch(kept.span(), 1), -1);
  EXPECT_EQ(first_mismatch(gone.span(), 2), -1);
  expect_link_works(*pair_);
}

// A handler, and a completion, that ask for the rest while what came with theirs is being delivered.
TEST_F(Ucx, CallbacksMayAskForTheRest) {
  constexpr unsigned count = 20;
  constexpr std::size_t bytes = 3000;
  const Area local(*pair_->a().node, bytes, false), remote(*pair_->b().node, bytes, false);
  fill_pattern(local.span(), 1);
  const auto to_remote = pair_->import(pair_->a(), remote);
  const auto rest = [](Side& side) { side.endpoint->receive_rest(); };
  std::vector<Bytes> came;
  pair_->b().sink.handler = [&](ByteSpan signal) {
    const Bytes before(signal.begin(), signal.end());
    came.push_back(before);
    rest(pair_->b());
    EXPECT_EQ(Bytes(signal.begin(), signal.end()), before);
  };
  std::vector<std::unique_ptr<Transfer>> all;
  for (unsigned i = 0; i < count; ++i) {
    HMC_ASSERT_OK(send_signal(pair_->a(), pattern(40 + i, i)));
    all.push_back(std::make_unique<Transfer>(pair_->a(), local, *to_remote));
    all.back()->done.then = [&] { rest(pair_->a()); };
    HMC_ASSERT_OK(i % 2 == 0 ? all.back()->put() : all.back()->get());
  }
  EXPECT_TRUE(pair_->until([&] {
    return came.size() == count && std::ranges::all_of(all, [](const auto& one) { return one->done.done(); });
  })) << pair_->a().sink.failure.str()
      << pair_->b().sink.failure.str();
  pair_->b().sink.handler = nullptr;
  for (unsigned i = 0; i < came.size(); ++i) EXPECT_EQ(came[i], pattern(40 + i, i)) << i;
  for (const auto& one : all) HMC_EXPECT_OK(Status(one->done.status()));
  ASSERT_TRUE(pair_->a().sink.failure.ok() && pair_->b().sink.failure.ok());
  expect_link_works(*pair_);
}

#if __has_include(<ucp/api/ucp.h>)
// What peers hold a key of, they may still access by themselves when the connection has ended; other memory only by messages to us.
TEST_F(Ucx, MemoryWithAKeyIsAccessedByThePeer) {
  const ucx::Api& real = *ucx::Api::get().value();
  ucx::Api with_cards = real;
  with_cards.context_print_info = [](ucp_context*, std::FILE* out) { std::fputs("resource 0: -- rc_verbs/card0:1\n", out); };
  ucx::Api without = real;
  without.context_print_info = [](ucp_context*, std::FILE* out) { std::fputs("resource 0: -- sysv/memory\n", out); };
  const auto& engine = pair_->a().node->engine;
  std::vector<std::byte> memory(100'000);
  for (const ucx::Api* api : {&with_cards, &without}) {
    const auto context = ucx::LibraryContext::create(*api, engine);
    HMC_ASSERT_OK(context.status());
    for (const std::size_t bytes : {memory.size(), std::size_t{0}}) {
      const RegionView view{{memory.data(), bytes, Device::cpu()}};
      auto region = ucx::UcxLocalRegion::create(view, *context, std::make_shared<ucx::Regions>(), nullptr);
      HMC_ASSERT_OK(region.status());
      EXPECT_EQ((*region)->peer_moves(), api == &with_cards && bytes != 0) << bytes;
      const auto lock = engine->lock();
      region->reset();
    }
  }
}

TEST_F(Ucx, RequestsAreBounded) {
  using enum ucx::Request::Kind;
  const auto& engine = pair_->a().node->engine;
  const auto context = ucx::LibraryContext::create(*ucx::Api::get().value(), engine).value();
  const auto lock = engine->lock();
  const auto worker = ucx::Worker::create(context).value();
  ucx::Requests requests(*worker);
  std::vector<ucx::Request*> taken;
  while (requests.room_for(flush)) taken.push_back(&requests.take(flush));
  EXPECT_FALSE(taken.empty());
  EXPECT_TRUE(requests.room_for(data) && requests.room_for(signal) && requests.room_for(answer));
  requests.release(*taken.back());
  EXPECT_TRUE(requests.room_for(flush));

  constexpr std::size_t much = 64 << 20;
  ucx::Request& put = requests.take(data, much);
  EXPECT_FALSE(requests.room_for(data));
  requests.release(put);
  EXPECT_TRUE(requests.room_for(data));
  requests.add_asked(much);
  EXPECT_FALSE(requests.room_for(data));
  requests.remove_asked(much);
  EXPECT_TRUE(requests.room_for(data));

  EXPECT_FALSE(requests.any_message());
  ucx::Request& message = requests.take(signal);
  EXPECT_GE(message.room, ucx::max_body);
  EXPECT_TRUE(requests.any_message());
  requests.release(message);
  EXPECT_FALSE(requests.any_message());
}
#endif

TEST(UcxWire, HeadsComeBackTheSame) {
  MessageHead head;
  head.token = 0x0102030405060708;
  head.number = 9;
  head.kind = MessageKind::put_done;
  head.code = Code::stale;
  head.bytes = 77;
  head.op = 5;
  head.region = 6;
  head.offset = 1ULL << 40;
  for (const MessageKind kind : {MessageKind::put_done, MessageKind::signal}) {
    head.kind = kind;
    std::array<std::byte, ucx::head_bytes> bytes{}, second{};
    const std::size_t length = ucx::encode_head(head, bytes);
    EXPECT_EQ(length, kind == MessageKind::signal ? ucx::signal_head_bytes : ucx::head_bytes);
    MessageHead again;
    ASSERT_TRUE(ucx::decode_head(ByteSpan(bytes).first(length), again));
    EXPECT_EQ(ucx::encode_head(again, second), length);
    EXPECT_EQ(second, bytes);
    EXPECT_EQ(again.number, head.number);
    EXPECT_EQ(again.code, Code::stale);
    EXPECT_EQ(again.offset, kind == MessageKind::signal ? 0 : head.offset);
    EXPECT_FALSE(ucx::decode_head(ByteSpan(bytes).first(length - 1), again));
    bytes[16] = static_cast<std::byte>(kind == MessageKind::signal ? MessageKind::get : MessageKind::signal);
    EXPECT_FALSE(ucx::decode_head(ByteSpan(bytes).first(length), again)) << "a head of another kind's length";
  }
}

}  // namespace
}  // namespace hmc::testing
