// Channel: the messages of one endpoint, to the peer and from it. UCX promises no order among active messages: large ones may take
// several ways.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "base/random.h"
#include "transport/ucx/requests.h"
#include "transport/ucx/wire.h"

namespace hmc::ucx {

class UcxEndpoint;

// The endpoint owns it. Engine lock held.
class Channel {
 public:
  static constexpr unsigned id = 1;  // of active messages
  struct Message {
    MessageHead head;
    Bytes body;
  };

  Channel(UcxEndpoint& endpoint, Worker& worker, Requests& requests) noexcept
      : endpoint_(endpoint), worker_(worker), requests_(requests) {}

  const std::uint64_t token = random_u64();  // of this end, in messages to it
  std::uint64_t peer_token = 0;

  // A message; its body is copied. False: the connection has failed.
  bool send(Request::Kind kind, const MessageHead& head, ByteSpan front = {}, ByteSpan back = {});
  // The same without a copy: the body stays until the request has ended.
  bool post(Request& request, MessageHead head, const void* body, std::size_t bytes, bool& over_now);

  // Has anything come?
  [[nodiscard]] bool heard() const noexcept { return next_taken_ != 0; }
  // One that came: `now` is its turn, which counts it as taken; its turn is `later`, and it is kept; it `cannot` have been sent.
  enum class Turn : std::uint8_t { now, later, cannot };
  [[nodiscard]] Turn turn_of(const MessageHead& head, ByteSpan body);
  // A kept one whose turn it is now.
  [[nodiscard]] std::optional<Message> next_kept();
  // Is it the turn of that one, none being kept? Then it counts as taken.
  [[nodiscard]] bool pass(const MessageHead& head) noexcept;
  void stop() noexcept { early_.clear(); }

 private:
  static constexpr std::size_t max_early = 4096;

  UcxEndpoint& endpoint_;
  Worker& worker_;
  Requests& requests_;
  std::uint64_t next_sent_ = 0;
  std::uint64_t next_taken_ = 0;
  std::map<std::uint64_t, Message> early_;  // came before their turn
};

}  // namespace hmc::ucx
