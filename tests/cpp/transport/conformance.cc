// Conformance: what a transport says of itself, and whole transfers of every size, kind of memory and shape.
#include <cstring>

#include "transport/conformance.h"

namespace hmc::testing {
namespace {

TEST_P(Conformance, SaysWhatItIs) {
  HMC_PAIR_OR_SKIP();
  const Transport& transport = *pair->a().node->transport;
  EXPECT_EQ(transport.name(), GetParam().factory->name);
  EXPECT_GE(pair->capabilities().max_signal, 2048U);
  EXPECT_LE(pair->capabilities().eager_limit, pair->capabilities().max_signal);
  EXPECT_FALSE(pair->capabilities().reason.empty());
  EXPECT_LE(transport.domain().size(), 1024U);
}

TEST_P(Conformance, RefusesForeignDomainsWithAReason) {
  HMC_PAIR_OR_SKIP();
  const Bytes nonsense = pattern(1024, 5);
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{17}, std::size_t{1024}}) {
    PeerDomain peer;
    peer.domain = ByteSpan(nonsense).first(size);
    const Reach reach = pair->a().node->transport->reach(peer, Device::cpu(), Device::cpu());
    EXPECT_TRUE(reach.ok || !reach.reason.empty());
  }
  const Bytes domain = pair->b().node->transport->domain();
  for (const auto* runtime : device_runtimes()) {
    const Device device = Device::parse(runtime->vendor).value();
    const Reach reach = pair->a().node->transport->reach(Pair::peer_domain(domain), device, device);
    EXPECT_TRUE(reach.ok || !reach.reason.empty()) << device.str();
  }
}

TEST_P(Conformance, RefusesForgedBlobs) {
  HMC_PAIR_OR_SKIP();
  const Area area(*pair->b().node, 4096, false);
  Blob good;
  {
    const auto lock = pair->b().lock();
    good = area.region()->exported().value();
  }
  const auto lock = pair->a().lock();
  for (std::size_t size = 0; size < good.bytes.size(); ++size) {
    Blob cut;
    cut.bytes.assign(good.bytes.begin(), good.bytes.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(pair->a().endpoint->import_region(cut).ok()) << size;
  }
  Blob longer;
  longer.bytes = good.bytes;
  longer.bytes.resize(good.bytes.size() + 1);
  EXPECT_FALSE(pair->a().endpoint->import_region(longer).ok());
}

// local memory and remote memory: mappable or not
class ConformanceTransfer : public Conformance {
 protected:
  void run(bool is_put, std::size_t bytes, bool local_shareable, bool remote_shareable) {
    SCOPED_TRACE(std::string(is_put ? "put " : "get ") + std::to_string(bytes) + (local_shareable ? " shareable" : " foreign") +
                 " -> " + (remote_shareable ? "shareable" : "foreign"));
    constexpr std::size_t local_offset = 13, remote_offset = 4099;
    const Area local(*pair->a().node, bytes + local_offset + 5, local_shareable);
    const Area remote(*pair->b().node, bytes + remote_offset + 7, remote_shareable);
    fill_pattern(local.span(), 1);
    fill_pattern(remote.span(), 2);
    Bytes local_expected(local.span().begin(), local.span().end());
    Bytes remote_expected(remote.span().begin(), remote.span().end());
    if (bytes != 0) {
      if (is_put) {
        std::memcpy(remote_expected.data() + remote_offset, local_expected.data() + local_offset, bytes);
      } else {
        std::memcpy(local_expected.data() + local_offset, remote_expected.data() + remote_offset, bytes);
      }
    }
    const auto imported = pair->import(pair->a(), remote);
    EXPECT_EQ(imported->bytes(), remote.bytes());
    Transfer transfer(pair->a(), local, *imported, {local_offset}, {remote_offset}, bytes);
    HMC_ASSERT_OK(is_put ? transfer.put() : transfer.get());
    ASSERT_TRUE(pair->until([&] { return transfer.done.done(); }));
    HMC_ASSERT_OK(Status(transfer.done.status()));
    const auto lock = pair->b().lock();
    EXPECT_TRUE(same_bytes(local.span(), local_expected));
    EXPECT_TRUE(same_bytes(remote.span(), remote_expected));
    EXPECT_TRUE(local.guards_intact());
    EXPECT_TRUE(remote.guards_intact());
    EXPECT_EQ(transfer.done.count(), 1);
  }
};

TEST_P(ConformanceTransfer, PutAndGetEverySizeAndMemory) {
  HMC_PAIR_OR_SKIP();
  for (const std::size_t bytes : awkward_sizes()) {
    for (const bool is_put : {true, false}) {
      for (const bool local : {true, false}) {
        for (const bool remote : {true, false}) run(is_put, bytes, local, remote);
      }
    }
    if (HasFatalFailure()) return;
  }
}

TEST_P(ConformanceTransfer, PutAndGetLarge) {
  HMC_PAIR_OR_SKIP();
  for (const bool remote : {true, false}) {
    for (const bool is_put : {true, false}) run(is_put, large(std::size_t{64} << 20) + 1, false, remote);
  }
}

// Blocks in a scrambled order on both sides, over several pairs of regions of both kinds in one operation.
class ConformanceBlocks : public Conformance {
 protected:
  static std::vector<std::uint64_t> scrambled(std::size_t count, std::size_t stride, std::size_t shift, std::size_t step) {
    std::vector<std::uint64_t> offsets(count);
    for (std::size_t i = 0; i < count; ++i) offsets[i] = (i * step % count) * stride + shift;
    return offsets;
  }
  void run(bool is_put, std::size_t count, std::size_t block) {
    SCOPED_TRACE(std::string(is_put ? "put " : "get ") + std::to_string(count) + " x " + std::to_string(block));
    const std::size_t local_stride = block + 24, remote_stride = block + 40;
    const auto local_offsets = scrambled(count, local_stride, 3, 7);  // 7 and 11 divide no count used here
    const auto remote_offsets = scrambled(count, remote_stride, 9, 11);
    std::vector<Area> locals;
    std::vector<Area> remotes;
    std::vector<std::unique_ptr<RemoteRegion>> imported;
    for (const bool shareable : {true, false, true}) {
      locals.emplace_back(*pair->a().node, count * local_stride, !shareable);
      remotes.emplace_back(*pair->b().node, count * remote_stride, shareable);
      fill_pattern(locals.back().span(), 10 + locals.size());
      fill_pattern(remotes.back().span(), 20 + remotes.size());
      imported.push_back(pair->import(pair->a(), remotes.back()));
    }
    std::vector<Bytes> expected;
    for (std::size_t r = 0; r < locals.size(); ++r) {
      const Area& target = is_put ? remotes[r] : locals[r];
      const Area& source = is_put ? locals[r] : remotes[r];
      Bytes& bytes = expected.emplace_back(target.span().begin(), target.span().end());
      for (std::size_t i = 0; i < count; ++i) {
        const auto to = is_put ? remote_offsets[i] : local_offsets[i];
        const auto from = is_put ? local_offsets[i] : remote_offsets[i];
        std::memcpy(bytes.data() + to, source.data() + from, block);
      }
    }
    Transfer transfer(pair->a(), locals[0], *imported[0], local_offsets, remote_offsets, block);
    for (std::size_t r = 1; r < locals.size(); ++r) transfer.add(locals[r], *imported[r], local_offsets, remote_offsets, block);
    HMC_ASSERT_OK(is_put ? transfer.put() : transfer.get());
    ASSERT_TRUE(pair->until([&] { return transfer.done.done(); }));
    HMC_ASSERT_OK(Status(transfer.done.status()));
    const auto lock = pair->b().lock();
    for (std::size_t r = 0; r < locals.size(); ++r) {
      EXPECT_TRUE(same_bytes((is_put ? remotes[r] : locals[r]).span(), expected[r])) << "pair " << r;
      EXPECT_TRUE(locals[r].guards_intact() && remotes[r].guards_intact());
    }
    EXPECT_EQ(transfer.done.count(), 1);
  }
};

TEST_P(ConformanceBlocks, ScatteredOnBothSides) {
  HMC_PAIR_OR_SKIP();
  for (const bool is_put : {true, false}) {
    run(is_put, 1, 1);
    run(is_put, 3, 4097);
    run(is_put, 50, 64);
    run(is_put, 513, 16384);
    run(is_put, 5000, 9);
    run(is_put, 3, (1U << 20) + 3);
    if (HasFatalFailure()) return;
  }
}

TEST_P(ConformanceBlocks, EmptyRunsMoveNothing) {
  HMC_PAIR_OR_SKIP();
  const Area local(*pair->a().node, 64, false);
  const Area remote(*pair->b().node, 64, false);
  fill_pattern(local.span(), 1);
  fill_pattern(remote.span(), 2);
  const auto imported = pair->import(pair->a(), remote);
  Transfer transfer(pair->a(), local, *imported, {}, {}, 8);
  transfer.add(local, *imported, {1, 2}, {3, 4}, 0);
  transfer.add(local, *imported, {5}, {6}, 1);
  transfer.add(local, *imported, {}, {}, 0);
  HMC_ASSERT_OK(transfer.put());
  ASSERT_TRUE(pair->until([&] { return transfer.done.done(); }));
  HMC_EXPECT_OK(Status(transfer.done.status()));
  const auto lock = pair->b().lock();
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(remote.data()[i], i == 6 ? local.data()[5] : pattern_byte(i, 2)) << i;
}

TEST_P(Conformance, OutOfRangeIsRefused) {
  HMC_PAIR_OR_SKIP();
  for (const bool shareable : {true, false}) {
    const Area local(*pair->a().node, 100, false);
    const Area remote(*pair->b().node, 100, shareable);
    fill_pattern(remote.span(), 2);
    const auto imported = pair->import(pair->a(), remote);
    struct Case {
      std::uint64_t local, remote;
      std::size_t block;
    };
    constexpr std::uint64_t huge = ~std::uint64_t{0};
    for (const Case& c : {Case{0, 1, 100}, Case{1, 0, 100}, Case{0, 0, 101}, Case{0, 100, 1}, Case{100, 0, 1}, Case{0, huge, 1},
                          Case{huge, 0, 2}, Case{0, huge - 49, 50}, Case{0, 50, static_cast<std::size_t>(huge)}}) {
      for (const bool is_put : {true, false}) {
        Transfer transfer(pair->a(), local, *imported, {0, c.local}, {0, c.remote}, c.block);
        Status status = is_put ? transfer.put() : transfer.get();
        EXPECT_EQ(status.code(), Code::invalid_argument) << status.str();
        pair->settle(5);
        EXPECT_EQ(transfer.done.count(), 0);
      }
    }
    const auto lock = pair->b().lock();
    EXPECT_EQ(first_mismatch(remote.span(), 2), -1);
    EXPECT_TRUE(remote.guards_intact() && local.guards_intact());
  }
}

TEST_P(Conformance, ReadOnlyRegionsAreReadOnly) {
  HMC_PAIR_OR_SKIP();
  for (const bool shareable : {true, false}) {
    const Area local(*pair->a().node, 5000, false);
    const Area remote(*pair->b().node, 5000, shareable, Access::read);
    fill_pattern(local.span(), 1);
    fill_pattern(remote.span(), 2);
    const auto imported = pair->import(pair->a(), remote);
    Transfer put(pair->a(), local, *imported);
    if (Status status = put.put(); status.ok()) {
      ASSERT_TRUE(pair->until([&] { return put.done.done(); }));
      EXPECT_FALSE(put.done.status().ok());
    } else {
      EXPECT_EQ(status.code(), Code::invalid_argument);
    }
    Transfer get(pair->a(), local, *imported);
    HMC_ASSERT_OK(get.get());
    ASSERT_TRUE(pair->until([&] { return get.done.done(); }));
    HMC_ASSERT_OK(Status(get.done.status()));
    const auto lock = pair->b().lock();
    EXPECT_EQ(first_mismatch(remote.span(), 2), -1);
    EXPECT_EQ(first_mismatch(local.span(), 2), -1);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, Conformance, ::testing::ValuesIn(subjects()), subject_name);
INSTANTIATE_TEST_SUITE_P(Transports, ConformanceTransfer, ::testing::ValuesIn(subjects()), subject_name);
INSTANTIATE_TEST_SUITE_P(Transports, ConformanceBlocks, ::testing::ValuesIn(subjects()), subject_name);

}  // namespace
}  // namespace hmc::testing
