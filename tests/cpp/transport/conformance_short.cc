// Conformance: short puts are over when they return, or moved nothing.
#include <cstring>

#include "transport/conformance.h"

namespace hmc::testing {
namespace {

class ConformanceShort : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Transports, ConformanceShort, ::testing::ValuesIn(subjects()), subject_name);

TEST_P(ConformanceShort, AllOrNothing) {
  HMC_PAIR_OR_SKIP();
  constexpr std::size_t room = 3 * short_put_bytes;
  for (const bool shareable : {true, false}) {
    const Area local(*pair->a().node, room, false);
    const Area remote(*pair->b().node, room, shareable);
    const auto imported = pair->import(pair->a(), remote);
    std::uint64_t seed = 1;
    std::size_t signals = 0;
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{7}, std::size_t{8}, std::size_t{4095}, short_put_bytes}) {
      for (const bool with_signal : {false, true}) {
        fill_pattern(local.span(), ++seed);
        fill_pattern(remote.span(), ++seed);
        Bytes expected(remote.data(), remote.data() + room);
        const Bytes signal = with_signal ? pattern(21, seed) : Bytes();
        const std::uint64_t from = 33, to = room - bytes;
        const hmc::Run run{local.region(), imported.get(), &from, &to, 1, bytes};
        bool over = false;
        {
          const auto lock = pair->a().lock();
          over = pair->a().endpoint->put_short(run, signal);
        }
        if (over) std::memcpy(expected.data() + to, local.data() + from, bytes);
        EXPECT_EQ(std::memcmp(remote.data(), expected.data(), room), 0) << bytes << " bytes, " << (over ? "done" : "refused");
        if (over && with_signal) {
          ++signals;
          ASSERT_TRUE(pair->until([&] { return pair->b().sink.signals.size() == signals; }));
          EXPECT_EQ(pair->b().sink.signals.back(), signal);
        }
        pair->settle();
        EXPECT_EQ(pair->b().sink.signals.size(), signals);
      }
    }
    // Beyond the regions: refused without a byte.
    const Bytes before(remote.data(), remote.data() + room);
    for (const auto& [from, to] :
         {std::pair<std::uint64_t, std::uint64_t>{room - 3, 0}, {0, room - 3}, {0, ~std::uint64_t{0} - 2}}) {
      const hmc::Run run{local.region(), imported.get(), &from, &to, 1, 8};
      const auto lock = pair->a().lock();
      EXPECT_FALSE(pair->a().endpoint->put_short(run, {}));
    }
    EXPECT_EQ(std::memcmp(remote.data(), before.data(), room), 0);
    pair->b().sink.signals.clear();
  }
}

}  // namespace
}  // namespace hmc::testing
