// Control messages, signals and descriptors: round trips, and bytes that no honest peer sends (tests/fuzz has the mutations).
#include "comm/connection/signals.h"
#include "comm/wire/codec.h"
#include "testing.h"

namespace hmc {
namespace {

using testing::pattern;

std::vector<Bytes> samples() {
  wire::Hello hello;
  hello.version = 1;
  hello.session = 77;
  hello.choice = "shm";
  hello.transports = {{"local", pattern(5, 1)}, {"shm", pattern(1024, 2)}, {"tcp", {}}};
  hello.devices = {"cpu", "cuda:0"};
  wire::Import import;
  import.request = 9;
  import.buffer_id = 3;
  import.generation = 2;
  import.nonce[0] = 0x1122334455667788;
  import.nonce[1] = ~0ULL;
  import.size = 1ULL << 40;
  import.access = Access::read_write;
  import.transport = "tcp";
  Descriptor descriptor;
  descriptor.context_id[0] = 5;
  descriptor.device = "cpu";
  descriptor.size = 4097;
  const auto signal = number_signal(NotifyKind::counted, {1, 2, 3}, 4);
  return {encode(hello),
          encode(wire::Address{"shm", 1, pattern(300, 4)}),
          encode(wire::EndpointNote{"tcp", 2, Code::transport, "no route"}),
          encode(import),
          encode(wire::Answer{12, Code::stale, "gone", pattern(99, 5)}),
          encode(wire::Lookup{13, "kv"}),
          wire::encode_request(14),
          encode(wire::BufferName{15, 16}),
          descriptor.serialise(),
          Bytes(signal.begin(), signal.end()),
          encode(wire::Stopped{{"verbs", 3, Code::peer_lost, "silence"}, 1ULL << 40, 77})};
}

TEST(CommCodec, RoundTrips) {
  const auto all = samples();
  const auto hello = wire::decode_hello(all[0]);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->session, 77U);
  EXPECT_EQ(hello->choice, "shm");
  ASSERT_EQ(hello->transports.size(), 3U);
  EXPECT_EQ(hello->transports[1].domain, pattern(1024, 2));
  EXPECT_EQ(hello->devices[1], "cuda:0");
  const auto address = wire::decode_address(all[1]);
  ASSERT_TRUE(address);
  EXPECT_EQ(address->bytes, pattern(300, 4));
  const auto note = wire::decode_endpoint_note(all[2]);
  ASSERT_TRUE(note);
  EXPECT_EQ(note->code, Code::transport);
  EXPECT_EQ(note->message, "no route");
  const auto import = wire::decode_import(all[3]);
  ASSERT_TRUE(import);
  EXPECT_EQ(import->nonce[1], ~0ULL);
  EXPECT_EQ(import->size, 1ULL << 40);
  EXPECT_EQ(import->access, Access::read_write);
  const auto answer = wire::decode_answer(all[4]);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->code, Code::stale);
  EXPECT_EQ(answer->bytes, pattern(99, 5));
  EXPECT_EQ(wire::decode_lookup(all[5])->name, "kv");
  EXPECT_EQ(wire::decode_request(all[6]), 14U);
  EXPECT_EQ(wire::decode_buffer_name(all[7])->generation, 16U);
  const auto descriptor = Descriptor::parse(all[8]);
  ASSERT_TRUE(descriptor.ok());
  EXPECT_EQ(descriptor->size, 4097U);
  const auto signal = decode_notify_signal(all[9]);
  ASSERT_TRUE(signal);
  EXPECT_EQ(signal->envelope, (Envelope{1, 2, 3}));
  EXPECT_EQ(signal->number, 4U);
  const auto stopped = wire::decode_stopped(all[10]);
  ASSERT_TRUE(stopped);
  EXPECT_EQ(stopped->endpoint.transport, "verbs");
  EXPECT_EQ(stopped->endpoint.attempt, 3U);
  EXPECT_EQ(stopped->endpoint.code, Code::peer_lost);
  EXPECT_EQ(stopped->endpoint.message, "silence");
  EXPECT_EQ(stopped->signals, 1ULL << 40);
  EXPECT_EQ(stopped->credit, 77U);
}

// The mark of a signal that travels with a put is no part of what it says.
TEST(CommCodec, AttachedSignalsReadAsOthers) {
  auto signal = number_signal(NotifyKind::counted, {1, 2, 3}, 4);
  signal[0] |= std::byte{attached_bit};
  const auto read = decode_notify_signal(signal);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->kind, NotifyKind::counted);
  EXPECT_EQ(read->number, 4U);
}

TEST(CommCodec, EveryTruncationAndExtensionIsRefused) {
  const auto all = samples();
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t size = 0; size <= all[i].size() + 1; ++size) {
      if (size == all[i].size()) continue;
      Bytes cut = all[i];
      cut.resize(size);
      bool accepted = false;
      switch (i) {
        case 0:
          accepted = wire::decode_hello(cut).has_value();
          break;
        case 1:
          accepted = wire::decode_address(cut).has_value();
          break;
        case 2:
          accepted = wire::decode_endpoint_note(cut).has_value();
          break;
        case 3:
          accepted = wire::decode_import(cut).has_value();
          break;
        case 4:
          accepted = wire::decode_answer(cut).has_value();
          break;
        case 5:
          accepted = wire::decode_lookup(cut).has_value();
          break;
        case 6:
          accepted = wire::decode_request(cut).has_value();
          break;
        case 7:
          accepted = wire::decode_buffer_name(cut).has_value();
          break;
        case 8:
          accepted = Descriptor::parse(cut).ok();
          break;
        default:
          accepted = decode_notify_signal(cut).has_value();
          break;
      }
      EXPECT_FALSE(accepted) << "message " << i << " of " << size << " bytes";
    }
  }
}

TEST(CommCodec, BoundsHold) {
  wire::Hello hello;
  for (std::size_t i = 0; i <= wire::max_transports; ++i) hello.transports.push_back({"t", {}});
  EXPECT_FALSE(wire::decode_hello(encode(hello)));
  hello.transports = {{"t", Bytes(wire::max_domain + 1)}};
  EXPECT_FALSE(wire::decode_hello(encode(hello)));
  EXPECT_FALSE(wire::decode_address(encode(wire::Address{"t", 0, Bytes(wire::max_address + 1)})));
  EXPECT_FALSE(wire::decode_lookup(encode(wire::Lookup{1, std::string(256, 'x')})));
  EXPECT_TRUE(wire::decode_lookup(encode(wire::Lookup{1, std::string(255, 'x')})));
  EXPECT_FALSE(wire::decode_answer(encode(wire::Answer{1, Code::ok, "", Bytes(wire::max_exported + 1)})));
  // A text that is too long is cut by its sender, not refused by its reader.
  EXPECT_EQ(wire::decode_answer(encode(wire::Answer{1, Code::stale, std::string(5000, 'y'), {}}))->message.size(),
            wire::max_message);
  Bytes import = encode(wire::Import{});
  import[48] = std::byte{2};  // access
  EXPECT_FALSE(wire::decode_import(import));
  Bytes note = encode(wire::EndpointNote{"", 0, Code::ok, ""});
  note[8] = std::byte{14};  // code
  EXPECT_FALSE(wire::decode_endpoint_note(note));
}

TEST(CommCodec, SignalsOfOtherKindsAreRefused) {
  for (unsigned kind = 0; kind < 256; ++kind) {
    Bytes signal(21);
    signal[0] = static_cast<std::byte>(kind);
    const unsigned plain = kind & ~unsigned{attached_bit};
    const bool known = plain >= 16 && plain <= 21;
    EXPECT_EQ(decode_notify_signal(signal).has_value(), known) << kind;
  }
  EXPECT_FALSE(decode_notify_signal(number_signal(NotifyKind::counted, {}, 1ULL << 63)));
  Bytes payload(13 + max_notify_payload + 1);
  payload[0] = std::byte{17};
  EXPECT_FALSE(decode_notify_signal(payload));
  payload.pop_back();
  EXPECT_TRUE(decode_notify_signal(payload));
  payload.resize(13);
  EXPECT_FALSE(decode_notify_signal(payload));
}

}  // namespace
}  // namespace hmc
