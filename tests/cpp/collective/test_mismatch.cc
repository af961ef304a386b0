// Ranks that are in different collectives at once: each is told which, and by whom.
#include <map>
#include <utility>

#include "collective/call.h"
#include "collective/job.h"

namespace hmc {
namespace {

using testing::Bytes;
using testing::Process;
using testing::run_job;
using testing::soon;

Status call(const Communicator& group, const std::string& name) {
  const Member me = *group.self();
  const auto size = static_cast<std::size_t>(group.size());
  Bytes in(size * 3000), out(in.size());
  if (name == "barrier") return me.barrier(soon());
  if (name == "all_to_all") return me.all_to_all({out.data(), size * 8}, {in.data(), size * 8}, soon());
  if (name == "all_to_all with blocks of about 3000")
    return me.all_to_all({out.data(), out.size()}, {in.data(), in.size()}, soon());
  if (name == "exchange_bytes") return me.exchange_bytes(std::span(in).first(9), soon()).status();
  if (name == "topology") return group.topology(soon()).status();
  if (name == "split") return group.split(std::vector{0}, std::vector{0}, soon()).status();
  if (name == "exchange") return me.exchange(*group.buffer(100), soon()).status();
  const std::vector<std::uint64_t> counts(size, 8);
  std::vector<std::uint64_t> apart(size);
  for (std::size_t r = 0; r < size; ++r) apart[r] = 8 * r;
  return me.all_to_all_v({out.data(), out.size()}, {counts, apart}, {in.data(), in.size()}, {counts, apart}, soon());
}

struct Case {
  const char* first;  // of rank 0, or of the last rank
  const char* rest;
};

void check(const Process& process, const Communicator& world, const Case& one, bool first_is_last) {
  const auto group = world.split(std::vector{0}, std::vector{process.rank}, soon());
  ASSERT_TRUE(group.ok()) << group.status().str();
  const int odd = first_is_last ? process.size - 1 : 0;
  const Status status = call(*group, process.rank == odd ? one.first : one.rest);
  SCOPED_TRACE(std::string(one.first) + " on rank " + std::to_string(odd) + ", else " + one.rest + ": " + status.str());
  EXPECT_TRUE(status.code() == Code::invalid_argument || status.code() == Code::closed);
  for (const char* word : {one.first, one.rest, "called", "rank "})
    EXPECT_NE(status.message().find(word), std::string_view::npos) << word;
  EXPECT_NE(status.message().find("rank " + std::to_string(odd) + " ("), std::string_view::npos);
}

TEST(Mismatch, EveryRankIsToldBothCalls) {
  run_job(3, [](const Process& process) {
    const Communicator world = process.init();
    for (const Case& one : {Case{"barrier", "all_to_all"}, Case{"all_to_all", "barrier"}, Case{"barrier", "exchange_bytes"},
                            Case{"exchange_bytes", "split"}, Case{"all_to_all_v", "all_to_all"}, Case{"topology", "barrier"},
                            Case{"exchange", "exchange_bytes"}, Case{"all_to_all with blocks of about 3000", "barrier"}}) {
      for (const bool last : {false, true}) check(process, world, one, last);
      HMC_ASSERT_OK(world.barrier(soon()));
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
  });
}

// Small blocks among many ranks go by other messages than large ones: neither would ever meet the other.
TEST(Mismatch, BlocksThatAreRelayedAndBlocksThatAreNot) {
  run_job(16, [](const Process& process) {
    const Communicator world = process.init();
    check(process, world, {"all_to_all with blocks of about 3000", "all_to_all"}, false);
    HMC_ASSERT_OK(world.barrier(soon()));
  });
}

TEST(Mismatch, OneRankAloneFailsByNameAtItsDeadline) {
  run_job(2, [](const Process& process) {
    const Communicator world = process.init();
    if (process.rank == 0) {
      const Status status = world.topology(Deadline::after_seconds(0.2)).status();
      EXPECT_EQ(status.code(), Code::timeout) << status.str();
      EXPECT_NE(status.message().find("topology: "), std::string_view::npos) << status.str();
      EXPECT_NE(status.message().find("rank 1 ("), std::string_view::npos) << status.str();
    }
    process.board[0].fetch_add(1);
    EXPECT_TRUE(process.board.wait(0, 2));
  });
}

TEST(Mismatch, CodesTellKindsAndAlgorithmsApart) {
  std::map<std::uint32_t, std::pair<int, int>> codes;
  for (int k = static_cast<int>(CallKind::barrier); k <= static_cast<int>(CallKind::scatter); ++k) {
    const auto kind = static_cast<CallKind>(k);
    for (int a = 0; a <= static_cast<int>(Algorithm::native); ++a) {
      const auto algorithm = static_cast<Algorithm>(a);
      if (algorithm != Algorithm::chosen && name_of(kind, algorithm).empty()) continue;
      const std::uint32_t call = encode_call(kind, std::uint64_t{0}, algorithm);
      EXPECT_EQ(kind_of(call), kind);
      EXPECT_EQ(algorithm_of(call), algorithm) << describe_call(call);
      EXPECT_TRUE(codes.emplace(call & 0xff, std::pair(k, a)).second) << describe_call(call);
    }
  }
  EXPECT_GT(codes.size(), 50U);
  for (std::uint32_t code = 0; code < 256; ++code) {  // a peer's may be any
    EXPECT_FALSE(describe_call(code).empty());
    EXPECT_TRUE(codes.contains(code) || algorithm_of(code) == Algorithm::chosen) << code;
  }
}

TEST(Mismatch, CallsAreDescribed) {
  EXPECT_EQ(describe_call(encode_call(CallKind::barrier)), "barrier");
  EXPECT_EQ(describe_call(encode_call(CallKind::all_to_all, 0)), "all_to_all with blocks of 0 bytes");
  EXPECT_EQ(describe_call(encode_call(CallKind::all_to_all_relayed, 1023)), "all_to_all with blocks of 1023 bytes");
  EXPECT_EQ(describe_call(encode_call(CallKind::all_to_all, 3 << 20)), "all_to_all with blocks of about 3145728 bytes");
  EXPECT_EQ(describe_call(0xff), "an unknown collective");
  EXPECT_NE(describe_call(encode_call(CallKind::all_to_all, ~std::uint64_t{0})), "");
  EXPECT_EQ(encode_call(CallKind::all_to_all, ~std::uint64_t{0}) >> 24, 0U);
}

}  // namespace
}  // namespace hmc
