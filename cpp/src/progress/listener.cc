// Listener: accepts, reads eight bytes, hands over.
#include "progress/listener.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <map>
#include <utility>

#include "base/log.h"
#include "base/path_lock.h"
#include "progress/address.h"
#include "progress/private_directory.h"

namespace hmc {
namespace {

constexpr auto magic_time = std::chrono::seconds(5);
constexpr std::size_t max_pending = 256;
constexpr int accepts_per_event = 64;  // others get their turn
constexpr auto exhausted_pause = std::chrono::milliseconds(100);

class ListenerImpl;

// One listening socket.
struct Acceptor final : FdHandler {
  Acceptor(ListenerImpl& owner, UniqueFd socket) : listener(owner), fd(std::move(socket)) {}
  void on_ready(std::uint32_t events) override;
  ListenerImpl& listener;
  UniqueFd fd;
  std::string address;
  std::string path;  // of a Unix socket
  dev_t device = 0;  // of the file at `path`, so that only our own is ever removed
  ino_t inode = 0;
  Engine::TimerId resume = 0;  // descriptors ran out: accepting again when it fires
};

// One client that has not said yet what it wants.
struct Pending final : FdHandler {
  Pending(ListenerImpl& owner, AcceptedSocket accepted) : listener(owner), socket(std::move(accepted)) {}
  void on_ready(std::uint32_t events) override;
  ListenerImpl& listener;
  AcceptedSocket socket;
  Deadline deadline = Deadline::after(magic_time);
  Magic bytes{};
  std::size_t got = 0;
  std::list<Pending>::iterator self;
};

class ListenerImpl final : public Listener {
 public:
  explicit ListenerImpl(std::shared_ptr<Engine> engine) noexcept : engine_(std::move(engine)) {}
  ~ListenerImpl() override;
  Result<std::string> listen(std::string_view address) override;
  void route(const Magic& magic, std::function<void(AcceptedSocket)> handler) override { routes_[magic] = std::move(handler); }
  void unroute(const Magic& magic) override { routes_.erase(magic); }
  [[nodiscard]] std::vector<std::string> addresses() const override;

  void accept_some(Acceptor& acceptor);
  void read_magic(Pending& pending);

 private:
  Result<std::string> listen_unix(const std::string& path);
  Result<std::string> listen_tcp(std::string_view address);
  Status start(Acceptor& acceptor);
  void admit(AcceptedSocket socket);
  void drop(Pending& pending);
  void sweep();
  [[nodiscard]] bool may_become_route(const Pending& pending) const;

  const std::shared_ptr<Engine> engine_;
  std::map<Magic, std::function<void(AcceptedSocket)>> routes_;
  std::list<Acceptor> acceptors_;
  std::list<Pending> pending_;  // oldest first, and so in the order of their deadlines
  Engine::TimerId sweep_timer_ = 0;
};

void Acceptor::on_ready(std::uint32_t) { listener.accept_some(*this); }
void Pending::on_ready(std::uint32_t) { listener.read_magic(*this); }

ListenerImpl::~ListenerImpl() {
  if (engine_->forked()) return;  // the sockets, their files and the engine are the parent's
  if (sweep_timer_ != 0) engine_->cancel_timer(sweep_timer_);
  for (Pending& pending : pending_) engine_->unwatch(pending.socket.fd.get());
  for (Acceptor& acceptor : acceptors_) {
    if (acceptor.resume != 0) engine_->cancel_timer(acceptor.resume);
    engine_->unwatch(acceptor.fd.get());
    struct stat info{};
    if (!acceptor.path.empty() && lstat(acceptor.path.c_str(), &info) == 0 && info.st_dev == acceptor.device &&
        info.st_ino == acceptor.inode) {
      unlink(acceptor.path.c_str());
    }
  }
}

std::vector<std::string> ListenerImpl::addresses() const {
  std::vector<std::string> all;
  for (const Acceptor& acceptor : acceptors_) all.push_back(acceptor.address);
  return all;
}

Result<std::string> ListenerImpl::listen(std::string_view address) {
  if (engine_->forked()) return forked_status();
  if (address == "unix") {
    HMC_ASSIGN(const std::string directory, private_directory());
    remove_stale_sockets(directory);
    return listen_unix(fresh_socket_path(directory));
  }
  if (const std::string path(unix_path(address)); !path.empty()) {
    HMC_TRY(unix_socket_address(path).status());
    // Others would take a socket that is bound and does not listen yet for a dead one, and one that this process takes for dead may
    // have been replaced by another's when it is removed.
    const auto lock = PathLock::take(path);
    if (!lock) return lock.status().with_context("bind a socket to " + path);
    return listen_unix(path);
  }
  return listen_tcp(address);
}

Result<std::string> ListenerImpl::listen_unix(const std::string& path) {
  HMC_ASSIGN(const SocketAddress name, unix_socket_address(path));
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno_status("make a listening socket", errno);
  fchmod(fd.get(), 0600);  // the mode that bind() gives the file
  int bound = bind(fd.get(), name.get(), name.size);
  struct stat info{};
  if (bound != 0 && errno == EADDRINUSE && lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode) && !unix_socket_alive(name)) {
    // Left over by a process that died.
    unlink(path.c_str());
    bound = bind(fd.get(), name.get(), name.size);
  }
  if (bound != 0) {
    const int error = errno;
    if (error == EADDRINUSE) {
      return Status(Code::invalid_argument, path + " exists and is in use (or is no socket); listen on another path", error);
    }
    return errno_status("bind a socket to " + path, error);
  }
  if (lstat(path.c_str(), &info) != 0) return errno_status("look up " + path, errno);
  Acceptor& acceptor = acceptors_.emplace_back(*this, std::move(fd));
  acceptor.path = path;
  acceptor.device = info.st_dev;
  acceptor.inode = info.st_ino;
  acceptor.address = "unix:" + path;
  if (Status status = start(acceptor); !status.ok()) {
    unlink(path.c_str());
    acceptors_.pop_back();
    return status;
  }
  return acceptor.address;
}

Result<std::string> ListenerImpl::listen_tcp(std::string_view address) {
  HMC_ASSIGN(std::vector<SocketAddress> candidates, resolve_tcp(address, true));
  if (const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&candidates.front().storage);
      v6->sin6_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr)) {
    // "[::]" means every address; without IPv6 that is every IPv4 address.
    SocketAddress every;
    auto* v4 = reinterpret_cast<sockaddr_in*>(&every.storage);
    v4->sin_family = AF_INET;
    v4->sin_port = v6->sin6_port;
    every.size = sizeof *v4;
    candidates.push_back(every);
  }
  Status last;
  for (SocketAddress& candidate : candidates) {
    UniqueFd fd(socket(candidate.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) {
      last = errno_status("make a listening socket for " + std::string(address), errno);
      continue;
    }
    const int on = 1;
    const int off = 0;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (candidate.family() == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd.get(), candidate.get(), candidate.size) != 0) {
      const int error = errno;
      last = errno_status("listen on " + std::string(address), error);
      if (error == EADDRINUSE || error == EADDRNOTAVAIL || error == EACCES) {
        last = Status(Code::invalid_argument, std::string(last.message()), error);
      }
      if (error == EADDRINUSE) break;  // "[::]" is taken: falling back to IPv4 alone would hide it
      continue;
    }
    candidate.size = sizeof candidate.storage;
    if (getsockname(fd.get(), candidate.get(), &candidate.size) != 0) return errno_status("getsockname", errno);
    Acceptor& acceptor = acceptors_.emplace_back(*this, std::move(fd));
    acceptor.address = tcp_text(candidate);
    if (last = start(acceptor); last.ok()) return acceptor.address;
    acceptors_.pop_back();
    if (last.native() == EADDRINUSE) break;
  }
  return last;
}

Status ListenerImpl::start(Acceptor& acceptor) {
  if (::listen(acceptor.fd.get(), SOMAXCONN) != 0) return errno_status("listen on " + acceptor.address, errno);
  return engine_->watch(acceptor.fd.get(), EPOLLIN, acceptor);
}

void ListenerImpl::accept_some(Acceptor& acceptor) {
  for (int i = 0; i < accepts_per_event; ++i) {
    SocketAddress remote;
    remote.size = sizeof remote.storage;
    UniqueFd fd(accept4(acceptor.fd.get(), remote.get(), &remote.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      const bool local = !acceptor.path.empty();
      if (!local) set_no_delay(fd.get());
      const Source source = local ? source_of_process(fd.get()) : source_of_address(remote);
      admit(AcceptedSocket{std::move(fd), local, local ? "unix" : tcp_text(remote), source});
      continue;
    }
    if (errno == EAGAIN) return;
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      // The connection stays in the queue and the socket readable: looking again at once would burn the CPU.
      warn_once("accept-exhausted", errno_status("accept a connection on " + acceptor.address, errno).str());
      engine_->modify(acceptor.fd.get(), 0);
      acceptor.resume = engine_->at(Deadline::after(exhausted_pause), [this, &acceptor] {
        acceptor.resume = 0;
        engine_->modify(acceptor.fd.get(), EPOLLIN);
      });
      return;
    }
    // Anything else is about that one connection (ECONNABORTED, EPROTO, EPERM by a firewall, ...).
  }
}

void ListenerImpl::admit(AcceptedSocket socket) {
  if (pending_.size() >= max_pending) {
    std::vector<Source> sources;
    for (const Pending& each : pending_) sources.push_back(each.socket.source);
    drop(*std::next(pending_.begin(), static_cast<std::ptrdiff_t>(choose_discarded(sources))));
  }
  Pending& pending = pending_.emplace_back(*this, std::move(socket));
  pending.self = std::prev(pending_.end());
  if (!engine_->watch(pending.socket.fd.get(), EPOLLIN, pending).ok()) {
    pending_.pop_back();
    return;
  }
  if (sweep_timer_ == 0) sweep_timer_ = engine_->at(pending_.front().deadline, [this] { sweep(); });
  read_magic(pending);  // most have sent it by now, and need no place
}

void ListenerImpl::drop(Pending& pending) {
  engine_->unwatch(pending.socket.fd.get());
  pending_.erase(pending.self);
}

void ListenerImpl::sweep() {
  sweep_timer_ = 0;
  while (!pending_.empty() && pending_.front().deadline.passed()) drop(pending_.front());
  if (!pending_.empty()) sweep_timer_ = engine_->at(pending_.front().deadline, [this] { sweep(); });
}

bool ListenerImpl::may_become_route(const Pending& pending) const {
  return std::any_of(routes_.begin(), routes_.end(), [&](const auto& route) {
    return std::equal(pending.bytes.begin(), pending.bytes.begin() + static_cast<std::ptrdiff_t>(pending.got), route.first.begin());
  });
}

void ListenerImpl::read_magic(Pending& pending) {
  // Never more than the eight bytes: what follows, and descriptors that travel with it, belong to the handler.
  const ssize_t n =
      recv(pending.socket.fd.get(), pending.bytes.data() + pending.got, pending.bytes.size() - pending.got, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    drop(pending);
    return;
  }
  pending.got += static_cast<std::size_t>(n);
  if (!may_become_route(pending)) {
    drop(pending);
    return;
  }
  if (pending.got < pending.bytes.size()) return;
  engine_->unwatch(pending.socket.fd.get());
  AcceptedSocket socket = std::move(pending.socket);
  const auto handler = routes_.at(pending.bytes);  // a copy: the handler may unroute
  pending_.erase(pending.self);
  handler(std::move(socket));
}

}  // namespace

Result<std::unique_ptr<Listener>> Listener::create(std::shared_ptr<Engine> engine) {
  return std::unique_ptr<Listener>(std::make_unique<ListenerImpl>(std::move(engine)));
}

}  // namespace hmc
