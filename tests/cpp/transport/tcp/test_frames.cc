// The tcp codec: what it writes it reads, and nothing that was changed or cut crashes it or passes its limits.
#include "transport/tcp/frames.h"

#include <gtest/gtest.h>

#include <random>

#include "testing.h"
#include "transport/kit/served_regions.h"

namespace hmc::tcp {
namespace {

Header header(FrameType type, std::uint16_t extents, std::uint32_t length, std::uint64_t op, std::uint64_t a, std::uint64_t b) {
  Header h;
  h.type = type;
  h.extents = extents;
  h.length = length;
  h.op = op;
  h.a = a;
  h.b = b;
  return h;
}

std::vector<Header> good_headers() {
  return {header(FrameType::signal, 0, 8, 0, 0, 0),        header(FrameType::put, 1, 4096, 7, 99, 1ULL << 40),
          header(FrameType::put, 3, 30, 8, 99, 0),         header(FrameType::put_end, 0, 17, 7, 1ULL << 33, 0),
          header(FrameType::ack, 0, 0, 5, 3, 0),           header(FrameType::refuse, 0, 0, 5, 2, 0),
          header(FrameType::get, 1, max_payload, 9, 1, 5), header(FrameType::get_data, 0, 1, 9, 0, 0),
          header(FrameType::get_end, 0, 0, 9, 0, 0)};
}

TEST(TcpFrames, HeadersComeBack) {
  for (const Header& in : good_headers()) {
    std::byte bytes[header_bytes];
    encode_header(bytes, in);
    Header out;
    ASSERT_TRUE(decode_header(bytes, out));
    EXPECT_EQ(out.type, in.type);
    EXPECT_EQ(out.extents, in.extents);
    EXPECT_EQ(out.length, in.length);
    EXPECT_EQ(out.op, in.op);
    EXPECT_EQ(out.a, in.a);
    EXPECT_EQ(out.b, in.b);
  }
}

// Whatever is believed keeps to the limits, on which the reader's memory depends.
void expect_limits(const Header& h) {
  EXPECT_LE(inline_bytes(h), std::max(max_signal_bytes, max_extents * extent_bytes));
  EXPECT_LE(h.extents, max_extents);
  EXPECT_LE(h.length, max_payload);
}

TEST(TcpFrames, EveryChangedByteKeepsTheLimits) {
  for (const Header& in : good_headers()) {
    std::byte bytes[header_bytes];
    encode_header(bytes, in);
    for (std::size_t at = 0; at < header_bytes; ++at) {
      const std::byte kept = bytes[at];
      for (int value = 0; value < 256; ++value) {
        bytes[at] = static_cast<std::byte>(value);
        Header out;
        if (decode_header(bytes, out)) expect_limits(out);
      }
      bytes[at] = kept;
    }
  }
  std::mt19937_64 random(3);
  for (int i = 0; i < 200'000; ++i) {
    std::byte bytes[header_bytes];
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    bytes[0] = static_cast<std::byte>(random() % 10);
    bytes[1] = std::byte{0};
    Header out;
    if (decode_header(bytes, out)) expect_limits(out);
  }
}

TEST(TcpFrames, ExtentsAddUpOrAreRefused) {
  std::vector<Extent> out;
  const Header h = header(FrameType::put, 3, 30, 8, 99, 0);
  Bytes list(3 * extent_bytes);
  for (std::size_t i = 0; i < 3; ++i) encode_extent(list.data() + i * extent_bytes, {i * 100, 10});
  ASSERT_TRUE(decode_extents(h, list, out));
  ASSERT_EQ(out.size(), 3U);
  EXPECT_EQ(out[2].offset, 200U);
  EXPECT_TRUE(inside(out, 210));
  EXPECT_FALSE(inside(out, 209));
  EXPECT_FALSE(decode_extents(h, ByteSpan(list).first(list.size() - 1), out));
  encode_extent(list.data(), {0, 11});
  EXPECT_FALSE(decode_extents(h, list, out)) << "31 bytes for 30";
  encode_extent(list.data(), {0, 0});
  EXPECT_FALSE(decode_extents(h, list, out)) << "an empty extent";
  const Extent wraps{~std::uint64_t{0}, 2};
  EXPECT_FALSE(inside({&wraps, 1}, ~std::uint64_t{0}));
}

Address an_address() {
  Address address;
  address.link = 5;
  address.order[0] = 1;
  address.order[1] = 2;
  address.tickets.resize(3);
  for (std::size_t i = 0; i < 3; ++i) address.tickets[i].fill(static_cast<std::byte>(i + 1));
  address.listens = {"tcp://10.0.0.1:7000", "tcp://[::1]:7000"};
  return address;
}

TEST(TcpFrames, BlobsComeBackAndCutOnesDoNot) {
  const Bytes address = encode_address(an_address());
  const auto again = decode_address(address);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->listens, an_address().listens);
  EXPECT_EQ(again->tickets, an_address().tickets);
  const Bytes region = encode_served({77, 1ULL << 33, Access::read});
  ASSERT_TRUE(decode_served(region).ok());
  EXPECT_EQ(decode_served(region)->bytes, 1ULL << 33);
  const Bytes domain = encode_domain({true});
  ASSERT_TRUE(decode_domain(domain).ok());
  for (std::size_t size = 0; size < address.size(); ++size)
    EXPECT_FALSE(decode_address(ByteSpan(address).first(size)).ok()) << size;
  for (std::size_t size = 0; size < region.size(); ++size) EXPECT_FALSE(decode_served(ByteSpan(region).first(size)).ok()) << size;
  for (std::size_t size = 0; size < domain.size(); ++size) EXPECT_FALSE(decode_domain(ByteSpan(domain).first(size)).ok()) << size;
  for (Bytes bytes : {address, region, domain}) {
    for (std::size_t at = 0; at < bytes.size(); ++at) {
      const std::byte kept = bytes[at];
      for (int value = 0; value < 256; ++value) {
        bytes[at] = static_cast<std::byte>(value);
        if (const auto decoded = decode_address(bytes); decoded.ok()) {
          EXPECT_LE(decoded->tickets.size(), max_streams);
          EXPECT_LE(decoded->listens.size(), max_addresses);
        }
        static_cast<void>(decode_served(bytes));
        static_cast<void>(decode_domain(bytes));
      }
      bytes[at] = kept;
    }
  }
}

TEST(TcpFrames, HellosComeBack) {
  Hello hello;
  hello.link = 123456789;
  hello.stream = 3;
  hello.ticket.fill(std::byte{9});
  std::byte bytes[hello_bytes];
  encode_hello(bytes, hello);
  Hello out;
  ASSERT_TRUE(decode_hello(bytes, out));
  EXPECT_EQ(out.link, hello.link);
  EXPECT_TRUE(equal_tickets(out.ticket, hello.ticket));
  out.ticket[15] = std::byte{8};
  EXPECT_FALSE(equal_tickets(out.ticket, hello.ticket));
  bytes[8] = static_cast<std::byte>(max_streams);
  EXPECT_FALSE(decode_hello(bytes, out));
}

}  // namespace
}  // namespace hmc::tcp
