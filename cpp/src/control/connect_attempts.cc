#include "control/connect_attempts.h"

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/random.h"

namespace hmc::control {
namespace {

// Of a client whose connection is closed without an answer: about four seconds together, for what is no HMC server closes
// connections, too. Once a server has said hello, as many as there is time for.
constexpr unsigned max_retries = 12;
constexpr std::chrono::milliseconds first_retry_pause{5};
constexpr std::chrono::milliseconds longest_retry_pause{640};

Status connect_status(std::string_view address, const Status& reason) {
  const int error = static_cast<int>(reason.native());
  if (error <= 0 || reason.code() == Code::invalid_argument) return reason;  // the address itself is wrong
  const std::string what = "cannot connect to " + std::string(address);
  switch (error) {
    case EACCES:
    case EPERM:
      return Status(Code::authentication, what + ": permission denied (a Unix socket serves only the user who made it)", error);
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
      return errno_status(what, error);
    case ECONNREFUSED:
    case ENOENT:
      return Status(Code::peer_lost, what + ": nobody listens there", error);
    default:
      return Status(Code::peer_lost, std::string(errno_status(what, error).message()), error);
  }
}

}  // namespace

ConnectAttempts::ConnectAttempts(Engine& engine, std::string_view address, Deadline deadline, Outcome outcome)
    : address_(address), deadline_(deadline), outcome_(std::move(outcome)), watch_(engine), timer_(engine) {}

void ConnectAttempts::start() {
  auto connecting = Connecting::start(address_);
  if (connecting.ok()) {
    connecting_ = std::move(connecting).value();
    watch();
  } else if (unix_socket() && connecting.status().native() == EAGAIN) {
    // The server's backlog is full: a Unix socket says so at once instead of waiting.
    timer_.start(Deadline::after(full_backlog_pause_), [this] { start(); });
    full_backlog_pause_ = std::min(2 * full_backlog_pause_, longest_retry_pause);
  } else {
    end_soon(connect_status(address_, connecting.status()));
  }
}

bool ConnectAttempts::retry(bool answered) {
  answered_ = answered_ || answered;
  if (!answered_ && retries_ == max_retries) return false;
  // Random, so that clients that were discarded together do not return together.
  const auto longest = std::min(longest_retry_pause, first_retry_pause * (1U << std::min(retries_, 10U)));
  const auto pause = longest / 2 + std::chrono::milliseconds(random_u64() % static_cast<std::uint64_t>(longest.count() / 2 + 1));
  const Deadline again = Deadline::after(pause);
  if (deadline_.when() <= again.when()) return false;
  ++retries_;
  timer_.start(again, [this] { start(); });
  return true;
}

void ConnectAttempts::stop() {
  timer_.stop();
  watch_.stop();
  connecting_.reset();
}

void ConnectAttempts::on_ready(std::uint32_t) {
  watch_.stop();  // the next step may close the descriptor
  const auto connected = connecting_->advance();
  if (!connected.ok()) return end(connect_status(address_, connected.status()));
  if (!*connected) return watch();
  UniqueFd socket = connecting_->take();
  end(std::move(socket));
}

void ConnectAttempts::watch() {
  if (const Status status = watch_.start(connecting_->fd(), connecting_->events(), *this); !status.ok()) end_soon(status);
}

void ConnectAttempts::end_soon(const Status& reason) {
  timer_.start(Deadline::after(std::chrono::seconds(0)), [this, reason] { end(reason); });
}

void ConnectAttempts::end(Result<UniqueFd> outcome) {
  stop();
  const Outcome told = outcome_;  // it may destroy this object
  told(std::move(outcome));
}

const char* ConnectAttempts::waiting_for() const noexcept {
  if (connecting_ && connecting_->looking_up()) return "the name server does not answer; use a numeric address";
  return retries_ == 0 ? "no answer to the connection request"
                       : "the server closed every connection before it had answered (is it overloaded?)";
}

}  // namespace hmc::control
