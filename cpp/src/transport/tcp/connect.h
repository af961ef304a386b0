// How data connections come to be: one side dials the other's listener, and shows the ticket that it was given over control.
#pragma once

#include <array>
#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "progress/engine.h"
#include "progress/listener.h"
#include "transport/tcp/frames.h"

namespace hmc::tcp {

class Meeting;
struct Shared;

// What a data connection starts with.
inline constexpr Magic data_magic{'H', 'M', 'C', '-', 'D', 'A', 'T', '\n'};

// One connection on its way out. Engine lock held.
class Dial final : public FdHandler {
 public:
  Dial(Meeting& meeting, std::shared_ptr<Shared> shared, std::size_t index, const Address& peer);
  ~Dial() { stop(); }
  // Tries the peer's addresses in turn; ends with Meeting::dialled, never inside this call.
  void start();
  // Once more, after a pause; once it has ended.
  void start_again();
  void stop();
  void on_ready(std::uint32_t events) override;

 private:
  void next(const std::string& why);
  void end(Result<UniqueFd> result);

  Meeting& meeting_;  // may be destroyed once stopped
  std::shared_ptr<Shared> shared_;
  std::size_t index_;
  const Address& peer_;
  std::size_t at_ = 0;  // address to try next
  UniqueFd socket_;
  bool said_hello_ = false;
  Engine::TimerId timer_ = 0;
  std::string failures_;
};

// Connections that arrived and have not shown their ticket yet. Engine lock held.
class Arrivals {
 public:
  explicit Arrivals(std::shared_ptr<Shared> shared);
  ~Arrivals();
  // Takes every connection of `listener` that starts with the data magic.
  void serve(Listener& listener);
  void stop(Listener& listener) { listener.unroute(data_magic); }

 private:
  class Arrival;
  void add(AcceptedSocket socket);
  void drop(Arrival& arrival);

  std::shared_ptr<Shared> shared_;
  std::list<std::unique_ptr<Arrival>> waiting_;
};

// Only numbers: what a peer sends is never looked up. False for anything else.
bool is_numeric_address(const std::string& address);
// `listens` with wildcards replaced by this host's addresses; loopback ones only for peers on this host, which prefer them.
std::vector<std::string> dialable(const std::vector<std::string>& listens, bool same_host);

}  // namespace hmc::tcp
