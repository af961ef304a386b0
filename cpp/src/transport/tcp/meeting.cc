#include "transport/tcp/meeting.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/random.h"
#include "transport/tcp/endpoint.h"

namespace hmc::tcp {
namespace {

constexpr double second_side_seconds = 2.5;
constexpr double connect_seconds = 10;

}  // namespace

std::shared_ptr<Meeting> Meeting::self() { return {endpoint_.self(), this}; }

Blob Meeting::address() {
  if (own_.tickets.empty()) {
    own_.tickets.resize(shared_->streams);
    for (Ticket& ticket : own_.tickets) random_bytes(ticket);
    own_.order[0] = random_u64();
    own_.order[1] = random_u64();
    while (own_.link == 0 || !shared_->meetings.try_emplace(own_.link, self()).second) own_.link = random_u64();
    sockets_.resize(shared_->streams);
  }
  Address own = own_;
  own.listens = dialable(shared_->addresses, same_host_);
  Blob blob;
  blob.bytes = encode_address(own);
  return blob;
}

bool Meeting::first() const noexcept {
  return std::lexicographical_compare(own_.order, own_.order + 2, peer_.order, peer_.order + 2);
}

bool Meeting::none_connected() const noexcept {
  return std::ranges::none_of(sockets_, [](const UniqueFd& socket) { return static_cast<bool>(socket); });
}

Status Meeting::connect(const Blob& peer_address) {
  address();
  HMC_ASSIGN(peer_, decode_address(peer_address.bytes));
  if (peer_.link == own_.link) return Status(Code::unsupported, "tcp does not connect an endpoint to itself");
  const bool listens = !dialable(shared_->addresses, same_host_).empty();
  if (!listens && peer_.listens.empty()) {
    return Status(Code::unsupported, "neither side listens on TCP where the other could reach it");
  }
  state_ = State::connecting;
  count_ = std::min(own_.tickets.size(), peer_.tickets.size());
  deadline_ = shared_->engine->at(Deadline::after_seconds(connect_seconds), [this] {
    deadline_ = 0;
    fail(
        Status(Code::timeout, "no data connection to the peer within " + std::to_string(static_cast<int>(connect_seconds)) + " s"));
  });
  if (!peer_.listens.empty() && (!listens || first())) {
    start_dialling();
  } else if (!peer_.listens.empty()) {
    dial_timer_ = shared_->engine->at(Deadline::after_seconds(second_side_seconds), [this] {
      dial_timer_ = 0;
      if (none_connected()) start_dialling();
    });
  }
  maybe_met();  // the peer may have dialled before it was known here
  return {};
}

void Meeting::start_dialling() {
  dialling_ = true;
  dials_.resize(count_);
  for (std::size_t i = 0; i < count_; ++i) {
    dials_[i] = std::make_unique<Dial>(*this, shared_, i, peer_);
    dials_[i]->start();
  }
}

void Meeting::stop_dialling() {
  dialling_ = false;
  for (const auto& dial : dials_) {
    if (dial) dial->stop();
  }
}

void Meeting::stop_timers() {
  if (dial_timer_ != 0) shared_->engine->cancel_timer(std::exchange(dial_timer_, 0));
  if (deadline_ != 0) shared_->engine->cancel_timer(std::exchange(deadline_, 0));
}

bool Meeting::wants(const Hello& hello) const noexcept {
  if (state_ == State::over || hello.stream >= own_.tickets.size() || sockets_[hello.stream]) return false;
  if (count_ != 0 && hello.stream >= count_) return false;
  if (!equal_tickets(hello.ticket, own_.tickets[hello.stream])) return false;
  if (!dialling_) return true;
  // Both dial. The first side gives way as long as none of its own connections has been welcomed; the second holds on to its own.
  return first() && none_connected();
}

void Meeting::accepted(std::size_t index, UniqueFd socket) {
  if (dialling_) stop_dialling();
  add(index, std::move(socket));
}

void Meeting::dialled(std::size_t index, Result<UniqueFd> socket) {
  if (state_ != State::connecting || !dialling_) return;
  if (socket.ok()) return add(index, std::move(*socket));
  last_dial_ = socket.status();
  // A process that stood still: it accepts others, and does not dial by itself since it sees those.
  if (!none_connected()) return dials_[index]->start_again();
  // Perhaps the peer reaches us: it begins by itself after a while. If not, the deadline ends it.
  if (!first() || dialable(shared_->addresses, same_host_).empty()) fail(last_dial_);
}

void Meeting::add(std::size_t index, UniqueFd socket) {
  if (sockets_[index]) return;
  sockets_[index] = std::move(socket);
  maybe_met();
}

void Meeting::maybe_met() {
  if (state_ != State::connecting) return;
  for (std::size_t i = 0; i < count_; ++i) {
    if (!sockets_[i]) return;
  }
  state_ = State::over;
  stop_timers();
  shared_->meetings.erase(own_.link);
  // This may run inside one of the dials. They use this object to the last, and the endpoint may be closed and released meanwhile.
  struct Ended {
    std::shared_ptr<Meeting> meeting;
    std::vector<std::unique_ptr<Dial>> dials;  // destroyed first
  };
  shared_->engine->defer([ended = std::make_shared<Ended>(Ended{self(), std::exchange(dials_, {})})] {});
  sockets_.resize(count_);
  endpoint_.met(std::exchange(sockets_, {}));
}

void Meeting::fail(const Status& reason) {
  if (state_ != State::connecting) return;
  state_ = State::open;
  const Status why = last_dial_.ok() || reason.code() != Code::timeout ? reason : reason.with_context(last_dial_.message());
  stop_dialling();
  stop_timers();
  endpoint_.met(why);
}

void Meeting::close() {
  state_ = State::over;
  stop_dialling();
  stop_timers();
  sockets_.clear();
  if (own_.link != 0) shared_->meetings.erase(own_.link);
}

}  // namespace hmc::tcp
