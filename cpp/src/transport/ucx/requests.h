// Requests: what one endpoint has handed over to UCX and has not got back, and how much that may be.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/ucx/api.h"
#include "transport/ucx/wire.h"

namespace hmc::ucx {

class Worker;

// One request that UCX has in flight.
struct Request {
  enum class Kind : std::uint8_t { data, flush, signal, answer } kind = Kind::data;
  Worker* worker = nullptr;
  std::uint64_t op = 0;     // data
  std::uint64_t stamp = 0;  // flush: the last put that it covers
  std::size_t bytes = 0;    // data
  bool on_device = false;   // data: a device copies
  ucs_status_t status = UCS_OK;
  std::array<std::byte, head_bytes> head{};  // of a message
  std::unique_ptr<std::byte[]> body;         // signal, answer
  std::size_t room = 0;                      // of the body

  // The parameters of a call of UCX's that reports to it.
  [[nodiscard]] ucp_request_param_t reporting() noexcept;
  // What such a call returned. True: it is over, with `status`.
  [[nodiscard]] bool over(ucs_status_ptr_t result) noexcept;
  // A device did not do it, and the connection goes on.
  [[nodiscard]] bool refused() const noexcept;
};

// What is in flight is bounded, so that signals do not wait behind a large put. The endpoint owns it. Engine lock held.
class Requests {
 public:
  explicit Requests(Worker& worker) noexcept : worker_(worker) {}

  Request& take(Request::Kind kind, std::size_t bytes = 0);  // `bytes`: of data
  void release(Request& request);
  // Bytes that the peer is asked for take the room of data without a request.
  void add_asked(std::size_t bytes) noexcept {
    ++in_flight_[index(Request::Kind::data)];
    data_bytes_ += bytes;
  }
  void remove_asked(std::size_t bytes) noexcept {
    --in_flight_[index(Request::Kind::data)];
    data_bytes_ -= bytes;
  }

  [[nodiscard]] bool room_for(Request::Kind kind) const noexcept {
    return in_flight_[index(kind)] < most_in_flight[index(kind)] && (kind != Request::Kind::data || data_bytes_ < window_bytes);
  }
  [[nodiscard]] bool any_message() const noexcept {
    return in_flight_[index(Request::Kind::signal)] != 0 || in_flight_[index(Request::Kind::answer)] != 0;
  }

  std::size_t piece = max_body;  // bytes in one message

 private:
  using Counts = std::array<unsigned, 4>;  // by kind
  static constexpr Counts most_in_flight = {512, 2, 64, 64};
  static constexpr std::size_t window_bytes = 4 << 20;
  static constexpr std::size_t index(Request::Kind kind) noexcept { return static_cast<std::size_t>(kind); }

  Worker& worker_;
  std::vector<std::unique_ptr<Request>> all_;
  std::vector<Request*> free_;
  std::vector<Request*> free_messages_;  // with room for a body
  Counts in_flight_{};
  std::size_t data_bytes_ = 0;
};

}  // namespace hmc::ucx
