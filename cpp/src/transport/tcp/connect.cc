#include "transport/tcp/connect.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <vector>

#include "progress/address.h"
#include "transport/tcp/meeting.h"
#include "transport/tcp/shared.h"

namespace hmc::tcp {
namespace {

constexpr double attempt_seconds = 2;  // per address
constexpr double pause_seconds = 0.1;  // before all addresses are tried again
constexpr double hello_seconds = 5;
constexpr std::size_t max_arrivals = 64;

// "tcp://[::1]:7000" into "::1" and ":7000".
bool split(const std::string& address, std::string& host, std::string& port) {
  constexpr std::string_view scheme = "tcp://";
  if (!address.starts_with(scheme)) return false;
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon < scheme.size()) return false;
  host = address.substr(scheme.size(), colon - scheme.size());
  port = address.substr(colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return !host.empty();
}

bool is_loopback_text(const std::string& host) { return host == "::1" || host.starts_with("127."); }

}  // namespace

bool is_numeric_address(const std::string& address) {
  std::string host, port;
  if (!split(address, host, port)) return false;
  const std::string bare = host.substr(0, host.find('%'));
  in6_addr scratch{};
  return inet_pton(AF_INET, bare.c_str(), &scratch) == 1 || inet_pton(AF_INET6, bare.c_str(), &scratch) == 1;
}

std::vector<std::string> dialable(const std::vector<std::string>& listens, bool same_host) {
  std::vector<std::string> near, far;
  const auto add = [&](const std::string& host, const std::string& port) {
    const bool v6 = host.find(':') != std::string::npos;
    (is_loopback_text(host) ? near : far).push_back("tcp://" + (v6 ? "[" + host + "]" : host) + port);
  };
  for (const std::string& address : listens) {
    std::string host, port;
    if (!split(address, host, port)) continue;
    if (host != "0.0.0.0" && host != "::") {
      add(host, port);
      continue;
    }
    ifaddrs* interfaces = nullptr;
    if (getifaddrs(&interfaces) != 0) continue;
    for (const ifaddrs* one = interfaces; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
      char text[INET6_ADDRSTRLEN] = "";
      if (one->ifa_addr->sa_family == AF_INET) {
        inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text, sizeof text);
      } else if (one->ifa_addr->sa_family == AF_INET6 && host == "::") {
        const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
        if (IN6_IS_ADDR_LINKLOCAL(&v6)) continue;  // of use only with the peer's own interface name
        inet_ntop(AF_INET6, &v6, text, sizeof text);
      } else {
        continue;
      }
      add(text, port);
    }
    freeifaddrs(interfaces);
  }
  std::vector<std::string> all;
  if (same_host) all = std::move(near);
  all.insert(all.end(), far.begin(), far.end());
  if (all.size() > max_addresses) all.resize(max_addresses);
  return all;
}

Dial::Dial(Meeting& meeting, std::shared_ptr<Shared> shared, std::size_t index, const Address& peer)
    : meeting_(meeting), shared_(std::move(shared)), index_(index), peer_(peer) {}

void Dial::start() { next(""); }

void Dial::start_again() {
  at_ = 0;
  failures_.clear();
  timer_ = shared_->engine->at(Deadline::after_seconds(pause_seconds), [this] {
    timer_ = 0;
    start();
  });
}

void Dial::next(const std::string& why) {
  stop();
  if (!why.empty()) failures_ += (failures_.empty() ? "" : "; ") + peer_.listens[at_ - 1] + ": " + why;
  while (at_ < peer_.listens.size()) {
    const std::string& address = peer_.listens[at_++];
    auto socket = is_numeric_address(address) ? start_connect(address) : Status(Code::invalid_argument, "not a numeric address");
    if (socket.ok()) {
      socket_ = std::move(*socket);
      shared_->tune(socket_.get());
      const Status watched = shared_->engine->watch(socket_.get(), EPOLLOUT, *this);
      if (watched.ok()) {
        timer_ = shared_->engine->at(Deadline::after_seconds(attempt_seconds), [this] {
          timer_ = 0;
          next("no answer within " + std::to_string(static_cast<int>(attempt_seconds)) + " s");
        });
        return;
      }
      socket_.reset();
      failures_ += (failures_.empty() ? "" : "; ") + address + ": " + std::string(watched.message());
    } else {
      failures_ += (failures_.empty() ? "" : "; ") + address + ": " + std::string(socket.status().message());
    }
  }
  end(Status(Code::transport, "no data connection to the peer: " + (failures_.empty() ? "it gave no address" : failures_)));
}

void Dial::on_ready(std::uint32_t) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return next(std::strerror(error));
  if (!said_hello_) {
    std::array<std::byte, data_magic.size() + hello_bytes> hello;
    std::memcpy(hello.data(), data_magic.data(), data_magic.size());
    encode_hello(hello.data() + data_magic.size(), {peer_.link, static_cast<std::uint8_t>(index_), peer_.tickets[index_]});
    if (send(socket_.get(), hello.data(), hello.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(hello.size())) {
      return next("the greeting could not be sent");
    }
    said_hello_ = true;
    shared_->engine->modify(socket_.get(), EPOLLIN);
    return;
  }
  std::byte answer{};
  const ssize_t got = recv(socket_.get(), &answer, 1, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got != 1 || answer != welcome) return next("the peer refused the connection");
  shared_->engine->unwatch(socket_.get());
  end(std::move(socket_));
}

void Dial::stop() {
  Engine& engine = *shared_->engine;
  if (timer_ != 0) engine.cancel_timer(std::exchange(timer_, 0));
  if (socket_) engine.unwatch(socket_.get());
  socket_.reset();
  said_hello_ = false;
}

// Deferred: the Meeting may destroy this object then.
void Dial::end(Result<UniqueFd> result) {
  if (timer_ != 0) shared_->engine->cancel_timer(std::exchange(timer_, 0));
  auto kept = std::make_shared<Result<UniqueFd>>(std::move(result));
  shared_->engine->defer([meeting = std::weak_ptr(meeting_.self()), index = index_, kept] {
    if (const auto alive = meeting.lock()) alive->dialled(index, std::move(*kept));
  });
}

class Arrivals::Arrival final : public FdHandler {
 public:
  Arrival(Arrivals& owner, AcceptedSocket accepted)
      : owner_(owner), shared_(owner.shared_), socket_(std::move(accepted.fd)), source_(accepted.source) {}
  ~Arrival() { stop(); }
  void stop() {
    if (timer_ != 0) shared_->engine->cancel_timer(std::exchange(timer_, 0));
    if (socket_) shared_->engine->unwatch(socket_.get());
    socket_.reset();
  }
  bool start() {
    Engine& engine = *shared_->engine;
    if (!engine.watch(socket_.get(), EPOLLIN, *this).ok()) {
      socket_.reset();
      return false;
    }
    timer_ = engine.at(Deadline::after_seconds(hello_seconds), [this] {
      timer_ = 0;
      owner_.drop(*this);
    });
    return true;
  }
  [[nodiscard]] Source source() const noexcept { return source_; }
  void on_ready(std::uint32_t) override {
    const ssize_t got = recv(socket_.get(), bytes_.data() + have_, bytes_.size() - have_, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got > 0) have_ += static_cast<std::size_t>(got);
    if (got > 0 && have_ < bytes_.size()) return;
    if (got > 0) welcome_in();
    owner_.drop(*this);
  }

 private:
  void welcome_in() {
    Hello hello;
    if (!decode_hello(bytes_.data(), hello)) return;
    const auto known = shared_->meetings.find(hello.link);
    if (known == shared_->meetings.end()) return;
    const auto meeting = known->second.lock();
    if (!meeting || !meeting->wants(hello)) return;
    if (send(socket_.get(), &welcome, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) return;
    shared_->engine->unwatch(socket_.get());
    shared_->tune(socket_.get());
    meeting->accepted(hello.stream, std::move(socket_));
  }

  Arrivals& owner_;  // gone only after stop()
  std::shared_ptr<Shared> shared_;
  UniqueFd socket_;
  const Source source_;
  Engine::TimerId timer_ = 0;
  std::array<std::byte, hello_bytes> bytes_{};
  std::size_t have_ = 0;
};

Arrivals::Arrivals(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

Arrivals::~Arrivals() = default;

void Arrivals::serve(Listener& listener) {
  listener.route(data_magic, [this](AcceptedSocket socket) { add(std::move(socket)); });
}

void Arrivals::add(AcceptedSocket socket) {
  waiting_.push_back(std::make_unique<Arrival>(*this, std::move(socket)));
  if (!waiting_.back()->start()) return waiting_.pop_back();
  waiting_.back()->on_ready(EPOLLIN);  // most have said their hello by now, and need no place
  if (waiting_.size() <= max_arrivals) return;
  std::vector<Source> sources;
  for (const auto& each : waiting_) sources.push_back(each->source());
  drop(**std::next(waiting_.begin(), static_cast<std::ptrdiff_t>(choose_discarded(sources))));
}

void Arrivals::drop(Arrival& arrival) {
  const auto place = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& one) { return one.get() == &arrival; });
  if (place == waiting_.end()) return;
  arrival.stop();
  // We may be inside its on_ready.
  shared_->engine->defer([gone = std::shared_ptr<Arrival>(std::move(*place))] {});
  waiting_.erase(place);
}

}  // namespace hmc::tcp
