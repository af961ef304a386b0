// TcpEndpoint: from two addresses to `n` streams.
//
// Both sides know both addresses. One side, the first, dials at once; the other only waits, unless it sees nothing for a while (the
// first may not be able to reach it), and from then on refuses what the first dials. So every stream has one maker.
#include <sys/epoll.h>

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

Result<Blob> TcpEndpoint::address() {
  if (tickets_.empty()) {
    tickets_.resize(shared_->streams);
    for (Ticket& ticket : tickets_) random_bytes(ticket);
    order_[0] = random_u64();
    order_[1] = random_u64();
    while (id_ == 0 || !shared_->links.try_emplace(id_, self()).second) id_ = random_u64();
    streams_.resize(shared_->streams);
  }
  Address own;
  own.link = id_;
  own.order[0] = order_[0];
  own.order[1] = order_[1];
  own.tickets = tickets_;
  own.listens = dialable(shared_->addresses, same_host_);
  Blob blob;
  blob.bytes = encode_address(own);
  return blob;
}

Status TcpEndpoint::connect(const Blob& peer_address, Completion* done) {
  HMC_ASSIGN(const Blob own, address());
  HMC_ASSIGN(peer_, decode_address(peer_address.bytes));
  if (peer_.link == id_) return Status(Code::unsupported, "tcp does not connect an endpoint to itself");
  const bool listens = !dialable(shared_->addresses, same_host_).empty();
  if (!listens && peer_.listens.empty()) {
    return Status(Code::unsupported, "neither side listens on TCP where the other could reach it");
  }
  HMC_TRY(begin_connect(done));
  count_ = std::min(tickets_.size(), peer_.tickets.size());
  const bool first =
      peer_.listens.empty() ? false : !listens || std::lexicographical_compare(order_, order_ + 2, peer_.order, peer_.order + 2);
  deadline_ = engine_->at(Deadline::after_seconds(connect_seconds), [this] {
    deadline_ = 0;
    connect_failed(
        Status(Code::timeout, "no data connection to the peer within " + std::to_string(static_cast<int>(connect_seconds)) + " s"));
  });
  if (first) {
    start_dialling();
  } else if (!peer_.listens.empty()) {
    timer_ = engine_->at(Deadline::after_seconds(second_side_seconds), [this] {
      timer_ = 0;
      const bool seen = std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) { return stream != nullptr; });
      if (!seen) start_dialling();
    });
  }
  maybe_ready();  // the peer may have dialled before it was known here
  return {};
}

void TcpEndpoint::start_dialling() {
  dialling_ = true;
  dials_.resize(count_);
  for (std::size_t i = 0; i < count_; ++i) {
    dials_[i] = std::make_unique<Dial>(*this, i, peer_);
    dials_[i]->start();
  }
}

void TcpEndpoint::give_up_dialling() {
  dialling_ = false;
  for (const auto& dial : dials_) {
    if (dial) dial->stop();
  }
}

bool TcpEndpoint::wants(const Hello& hello) const noexcept {
  if (ready() || closed() || hello.stream >= tickets_.size() || streams_[hello.stream] != nullptr) return false;
  if (count_ != 0 && hello.stream >= count_) return false;
  if (!equal_tickets(hello.ticket, tickets_[hello.stream])) return false;
  if (!dialling_) return true;
  // Both dial. The first side gives way as long as none of its own connections has been welcomed; the second holds on to its own.
  const bool second = !std::lexicographical_compare(order_, order_ + 2, peer_.order, peer_.order + 2);
  return !second && std::none_of(streams_.begin(), streams_.end(), [](const auto& stream) { return stream != nullptr; });
}

void TcpEndpoint::accepted(std::size_t index, UniqueFd socket) {
  if (dialling_) give_up_dialling();
  add_stream(index, std::move(socket));
}

void TcpEndpoint::dialled(std::size_t index, Result<UniqueFd> socket) {
  if (!connecting() || !dialling_) return;
  if (socket.ok()) return add_stream(index, std::move(*socket));
  // Perhaps the peer reaches us: it begins by itself after a while. If not, the deadline ends it.
  last_try_ = socket.status();
  const bool first = std::lexicographical_compare(order_, order_ + 2, peer_.order, peer_.order + 2);
  if (!first || dialable(shared_->addresses, same_host_).empty()) connect_failed(last_try_);
}

void TcpEndpoint::add_stream(std::size_t index, UniqueFd socket) {
  if (streams_[index] != nullptr) return;
  streams_[index] = std::make_unique<Stream>(*this, std::move(socket));
  maybe_ready();
}

void TcpEndpoint::maybe_ready() {
  if (!connecting()) return;
  for (std::size_t i = 0; i < count_; ++i) {
    if (streams_[i] == nullptr) return;
  }
  streams_.resize(count_);
  for (const auto& stream : streams_) {
    if (const Status watched = engine_->watch(stream->fd.get(), EPOLLIN, *stream); !watched.ok()) return connect_failed(watched);
    stream->watch = Stream::Watch::input;
  }
  if (timer_ != 0) engine_->cancel_timer(std::exchange(timer_, 0));
  if (deadline_ != 0) engine_->cancel_timer(std::exchange(deadline_, 0));
  shared_->links.erase(id_);
  // We may be inside one of the dials. They look at this link to the last, which may be closed and dropped meanwhile.
  struct Ended {
    std::shared_ptr<TcpEndpoint> link;
    std::vector<std::unique_ptr<Dial>> dials;  // gone first
  };
  engine_->defer([ended = std::make_shared<Ended>(Ended{self(), std::exchange(dials_, {})})] {});
  connected({});
}

void TcpEndpoint::connect_failed(const Status& reason) {
  if (!connecting()) return;
  const Status why = last_try_.ok() || reason.code() != Code::timeout ? reason : reason.with_context(last_try_.message());
  give_up_dialling();
  if (timer_ != 0) engine_->cancel_timer(std::exchange(timer_, 0));
  if (deadline_ != 0) engine_->cancel_timer(std::exchange(deadline_, 0));
  connected(why);
}

}  // namespace hmc::tcp
