// The codecs: exact round trips, every truncation refused (tests/fuzz has the mutations).
#include "control/records.h"

#include <limits>

#include "control/node.h"

namespace hmc::test {
namespace {

control::Identity sample() {
  control::Identity identity;
  identity.context_id = {0x0123456789abcdefU, 0xfedcba9876543210U};
  identity.epoch = 1'700'000'000'000'000'123U;
  identity.heartbeat_seconds = 2.5;
  identity.name = "host-7:1234 \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80";
  random_bytes(identity.proof.emplace());
  random_bytes(identity.ticket.emplace());
  identity.move_address = "unix:/run/user/1000/hmc/1234-abc.sock";
  return identity;
}

TEST(Records, IdentityComesBack) {
  const control::Identity identity = sample();
  const Bytes bytes = encode_identity(identity);
  ASSERT_LE(bytes.size(), control::max_handshake_payload);
  const auto back = control::decode_identity(bytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->context_id, identity.context_id);
  EXPECT_EQ(back->epoch, identity.epoch);
  EXPECT_EQ(back->heartbeat_seconds, 2.5);
  EXPECT_EQ(back->name, identity.name);
  EXPECT_EQ(back->proof, identity.proof);
  EXPECT_EQ(back->ticket, identity.ticket);
  EXPECT_EQ(back->move_address, identity.move_address);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(control::decode_identity(ByteSpan(bytes).first(length)).ok()) << length;
  }
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(control::decode_identity(longer).ok());
}

TEST(Records, NamesAreCleaned) {
  const auto cleaned = [](std::string name) {
    control::Identity identity;
    identity.name = std::move(name);
    const auto back = control::decode_identity(encode_identity(identity));
    return back.ok() ? back->name : "refused";
  };
  EXPECT_EQ(cleaned("plain"), "plain");
  EXPECT_EQ(cleaned("\xc3\xa9t\xc3\xa9"), "\xc3\xa9t\xc3\xa9");
  EXPECT_EQ(cleaned("a\nb\x1b[31m"), "a?b?[31m");
  EXPECT_EQ(cleaned("\xff\xfe"), "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(cleaned("\xc0\xaf"), "\xef\xbf\xbd\xef\xbf\xbd");                                  // overlong
  EXPECT_EQ(cleaned("\xe0\x80\xaf"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");                  // overlong
  EXPECT_EQ(cleaned("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");                  // surrogate
  EXPECT_EQ(cleaned("\xf4\x90\x80\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // beyond Unicode
  EXPECT_EQ(cleaned("cut \xe2\x82"), "cut \xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(cleaned(std::string("nul\0x", 5)), "nul?x");
}

TEST(Records, HeartbeatsAreClamped) {
  for (const auto& [sent, kept] : {std::pair(0.0, 0.1), std::pair(-5.0, 0.1), std::pair(1e300, 3600.0), std::pair(7.5, 7.5)}) {
    control::Identity identity = sample();
    identity.heartbeat_seconds = sent;
    EXPECT_EQ(control::decode_identity(encode_identity(identity))->heartbeat_seconds, kept);
  }
  control::Identity identity = sample();
  identity.heartbeat_seconds = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(control::decode_identity(encode_identity(identity)).ok());
}

TEST(Records, HelloOfALaterVersionIsStillRead) {
  Bytes bytes = control::encode_hello({77, control::HelloKind::connect, 3, "9.9.9"});
  const Bytes more = pattern(40, 2);
  bytes.insert(bytes.end(), more.begin(), more.end());
  bytes[0] = static_cast<std::byte>(std::to_integer<unsigned>(bytes[0]) + 40);
  std::size_t used = 0;
  const auto hello = control::decode_hello(bytes, used);
  ASSERT_TRUE(hello.ok() && hello.value());
  EXPECT_EQ(used, bytes.size());
  EXPECT_EQ(hello.value()->version, 77);
  EXPECT_EQ(hello.value()->text, "9.9.9");
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const auto partial = control::decode_hello(ByteSpan(bytes).first(length), used);
    ASSERT_TRUE(partial.ok());
    EXPECT_FALSE(partial.value().has_value());
  }
}

TEST(Records, RefusalsCarryNoSuccess) {
  for (int code = 0; code < 256; ++code) {
    Bytes bytes = control::encode_refusal(Status(Code::authentication, "why"));
    bytes[0] = static_cast<std::byte>(code);
    EXPECT_FALSE(control::decode_refusal(bytes).ok());
  }
  EXPECT_EQ(control::decode_refusal(control::encode_refusal(Status(Code::authentication, "why\n"))).message(), "why?");
  EXPECT_EQ(control::decode_refusal({}).code(), Code::protocol);
}

TEST(Records, SecretsCompareByEveryByte) {
  control::Secret a;
  random_bytes(a);
  EXPECT_TRUE(control::equal_secrets(a, a));
  for (std::size_t i = 0; i < a.size(); ++i) {
    control::Secret b = a;
    b[i] ^= std::byte{0x80};
    EXPECT_FALSE(control::equal_secrets(a, b));
  }
}

}  // namespace
}  // namespace hmc::test
