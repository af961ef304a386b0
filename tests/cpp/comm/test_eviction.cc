// A budget of registered memory: idle buffers give way, those in use do not, and nothing lands in or comes from the wrong place.
#include <chrono>
#include <thread>

#include "scarce.h"
#include "support.h"

namespace hmc {
namespace {

using namespace testing;
using std::chrono::milliseconds;

constexpr std::size_t large = 4'000'000;  // two fit

// Long enough for a region to be among those that may go.
void grow_old() { std::this_thread::sleep_for(milliseconds(1050)); }

class Eviction : public ::testing::Test {
 protected:
  void SetUp() override {
    add_scarce_transport();
    pair_.emplace("scarce,tcp");
    ASSERT_TRUE(pair_->ab.valid());
  }
  void TearDown() override {
    scarce_holds = false;
    remotes_.clear();
    targets_.clear();
    source_ = {};
    pair_.reset();
    EXPECT_EQ(scarce_used.load(), 0U);
  }
  // Buffers of b, imported by a.
  void offer(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      targets_.push_back(*pair_->b.buffer(large, Device::cpu()));
      fill_pattern(span_of(targets_.back()), 50 + targets_.size());
      auto remote = pair_->ab.import(*targets_.back().descriptor(), soon());
      HMC_ASSERT_OK(remote.status());
      remotes_.push_back(*remote);
    }
  }
  void put(std::size_t i, std::uint64_t seed) {
    constexpr std::size_t bytes = 300'001, offset = 77;
    if (!source_.valid()) source_ = *pair_->a.buffer(bytes, Device::cpu());
    fill_pattern(span_of(source_), seed);
    const auto work = pair_->ab.put(source_, *remotes_[i].slice(offset, bytes));
    HMC_ASSERT_OK(work.status());
    HMC_ASSERT_OK(work->wait(soon()));
    EXPECT_EQ(first_mismatch(span_of(targets_[i]).subspan(offset, bytes), seed), -1) << i;
  }
  [[nodiscard]] std::uint64_t by(const std::string& transport) const { return counter(pair_->a, "put.count." + transport); }
  [[nodiscard]] std::uint64_t evicted() const { return counter(pair_->b, "registrations.evicted"); }

  void wait_for_eviction() const {
    const auto limit = soon();
    while (evicted() == 0 && !limit.passed()) std::this_thread::sleep_for(milliseconds(5));
    EXPECT_EQ(evicted(), 1U);
  }
  // Until the get is posted, with its local buffer registered, and does not complete.
  static void wait_until_held() {
    const auto limit = soon();
    while (scarce_held.load() == 0 && !limit.passed()) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_EQ(scarce_held.load(), 1U);
  }

  std::optional<Pair> pair_;
  std::vector<ConnBuffer> targets_;
  std::vector<RemoteBuffer> remotes_;
  ConnBuffer source_;
};

TEST_F(Eviction, InTurns) {
  offer(3);  // the third by tcp, for now: nobody has been there for long
  put(2, 1);
  EXPECT_GE(by("tcp") + evicted(), 1U);
  for (std::size_t turn = 0; turn < 20 && evicted() < 4; ++turn) {
    grow_old();
    put((turn + 2) % 3, 10 + turn);
    EXPECT_LE(scarce_used.load(), scarce_budget);
  }
  EXPECT_GE(evicted(), 4U);
}

TEST_F(Eviction, OfWhatIsUnderWay) {
  offer(2);
  put(0, 1);
  put(1, 2);
  grow_old();
  scarce_holds = true;
  const ConnBuffer back = *pair_->a.buffer(300'001, Device::cpu());
  auto get = pair_->ab.get(back, *remotes_[0].slice(77, back.size()));
  HMC_ASSERT_OK(get.status());
  wait_until_held();
  const std::size_t used = scarce_used.load();
  std::thread importer([&] { offer(1); });  // asks for one of the two back
  wait_for_eviction();
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_EQ(scarce_used.load(), used) << "taken away under a get";
  EXPECT_FALSE(get->done());
  scarce_holds = false;
  HMC_ASSERT_OK(get->wait(soon()));
  importer.join();
  EXPECT_EQ(first_mismatch(span_of(back), 1), -1);
  put(0, 3);
  put(2, 4);
  put(1, 5);
}

// Then nothing is taken away, and what wants the room goes another way.
TEST_F(Eviction, OfWhatAPeerDoesNotLetGo) {
  offer(2);
  put(0, 1);
  put(1, 2);
  grow_old();
  const ConnBuffer back = *pair_->a.buffer(300'001, Device::cpu());
  scarce_holds = true;
  auto get = pair_->ab.get(back, *remotes_[0].slice(77, back.size()));
  HMC_ASSERT_OK(get.status());
  wait_until_held();
  offer(1);  // takes the patience
  scarce_holds = false;
  HMC_ASSERT_OK(get->wait(soon()));
  EXPECT_EQ(first_mismatch(span_of(back), 1), -1);
  put(0, 3);
  put(1, 4);
  put(2, 5);
  EXPECT_LE(scarce_used.load(), scarce_budget);
}

// More than all that may go together: they stay.
TEST_F(Eviction, NotInVain) {
  offer(1);
  static_cast<void>(targets_[0].native("scarce"));  // 4 MB that stay
  const ConnBuffer small = *pair_->b.buffer(1'000'000, Device::cpu());
  const auto remote = pair_->ab.import(*small.descriptor(), soon());
  HMC_ASSERT_OK(remote.status());
  grow_old();
  const ConnBuffer big = *pair_->b.buffer(9'000'000, Device::cpu());
  HMC_ASSERT_OK(pair_->ab.import(*big.descriptor(), soon()).status());
  EXPECT_EQ(evicted(), 0U);
}

TEST_F(Eviction, BatchesFindTheirBuffersAgain) {
  offer(2);
  const ConnBuffer source = *pair_->a.buffer(100'000, Device::cpu());
  std::vector<std::uint64_t> here, there;
  for (std::uint64_t i = 0; i < 10; ++i) {
    here.push_back(9000 * i + 5);
    there.push_back(300'000 * (9 - i) + 11);
  }
  std::vector<BlockBatch> batches;
  for (const auto& remote : remotes_) {
    const BlockPair blocks{source, remote, here, there};
    batches.push_back(*pair_->ab.prepare_blocks({&blocks, 1}, 7001));
  }
  for (std::uint64_t turn = 0; turn < 2; ++turn) {
    fill_pattern(span_of(source), turn);
    for (std::size_t i = 0; i < 2; ++i) {
      const auto work = pair_->ab.put_blocks(batches[i]);
      HMC_ASSERT_OK(work.status());
      HMC_ASSERT_OK(work->wait(soon()));
      for (std::size_t b = 0; b < here.size(); ++b) {
        EXPECT_TRUE(std::ranges::equal(span_of(source).subspan(here[b], 7001), span_of(targets_[i]).subspan(there[b], 7001)));
      }
    }
    grow_old();
    if (turn == 0) offer(1);
    grow_old();
  }
  EXPECT_GE(evicted(), 2U);
}

// What this process puts from and gets into gives way, too; not while it is used.
TEST_F(Eviction, LocalBuffers) {
  offer(1);
  std::vector<ConnBuffer> sources;
  for (std::size_t i = 0; i < 3; ++i) sources.push_back(*pair_->a.buffer(large, Device::cpu()));
  for (std::size_t turn = 0; turn < 5; ++turn) {
    const ConnBuffer& source = sources[turn % 3];
    fill_pattern(span_of(source), turn);
    const auto work = pair_->ab.put(source, remotes_[0]);
    HMC_ASSERT_OK(work.status());
    HMC_ASSERT_OK(work->wait(soon()));
    EXPECT_EQ(first_mismatch(span_of(targets_[0]), turn), -1);
    grow_old();
  }
  EXPECT_GE(counter(pair_->a, "registrations.evicted"), 3U);
}

TEST_F(Eviction, OthersWereToldOfIt) {
  offer(2);
  for (const auto& target : targets_) static_cast<void>(target.native("scarce"));
  grow_old();
  offer(1);
  put(2, 1);
  EXPECT_EQ(by("tcp"), 1U);
  EXPECT_EQ(evicted(), 0U);
  put(0, 2);
  put(1, 3);
  EXPECT_EQ(by("tcp"), 1U);
}

TEST_F(Eviction, TheImporterGoes) {
  offer(2);
  put(0, 1);
  put(1, 2);
  grow_old();
  scarce_holds = true;
  const ConnBuffer back = *pair_->a.buffer(300'001, Device::cpu());
  auto get = pair_->ab.get(back, *remotes_[0].slice(77, back.size()));
  HMC_ASSERT_OK(get.status());
  wait_until_held();
  Context c = make_context("scarce,tcp");
  const Peer peer = *c.connect(pair_->b.addresses().front(), soon());
  const ConnBuffer fresh = *pair_->b.buffer(large, Device::cpu());
  std::thread importer([&] {
    const auto remote = peer.import(*fresh.descriptor(), soon());
    HMC_ASSERT_OK(remote.status());
    const ConnBuffer source = *c.buffer(1000, Device::cpu());
    fill_pattern(span_of(source), 9);
    const auto work = peer.put(source, *remote->slice(5, 1000));
    HMC_ASSERT_OK(work.status());
    HMC_ASSERT_OK(work->wait(soon()));
  });
  wait_for_eviction();
  // Its get neither ends nor can be stopped: close says so.
  EXPECT_EQ(pair_->a.close(soon(1)).code(), Code::timeout);
  scarce_holds = false;
  importer.join();
  EXPECT_EQ(first_mismatch(span_of(fresh).subspan(5, 1000), 9), -1);
  EXPECT_TRUE(get->done());
}

}  // namespace
}  // namespace hmc
