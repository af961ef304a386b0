// ControlPlane: the handshakes of one Context, its tickets, and what it lets in.
#include <openssl/crypto.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <list>
#include <vector>

#include "base/log.h"
#include "base/random.h"
#include "control/core.h"
#include "control/handshake.h"
#include "progress/address.h"

namespace hmc {
namespace control {
namespace {

constexpr std::size_t max_ungreeted = 128;
constexpr std::size_t max_unauthenticated = 256;
constexpr std::size_t max_handshakes = 1024;  // those of this user's own processes included
constexpr auto ticket_life = std::chrono::seconds(10);

class Plane final : public ControlPlane, public HandshakeHost {
 public:
  Plane(std::shared_ptr<Engine> engine, Listener& listener, std::shared_ptr<const LocalSide> local)
      : engine_(std::move(engine)), listener_(listener), local_(std::move(local)) {
    listener_.route(control_magic, [this](AcceptedSocket socket) { serve(std::move(socket)); });
  }

  ~Plane() override {
    listener_.unroute(control_magic);
    on_accept_ = nullptr;
    while (!handshakes_.empty()) {
      const auto handshake = handshakes_.front();
      handshake->abandon(Status(Code::closed, "the context was closed during the handshake with " + handshake->remote()));
    }
    const Lingering rest = std::move(*lingering_);
    for (const auto& core : rest) core->plane_gone();
  }

  void on_accept(std::function<void(std::unique_ptr<Channel>)> handler) override { on_accept_ = std::move(handler); }

  std::function<void()> connect(std::string_view address, Deadline deadline, Ready ready) override {
    // Touches nothing of the plane's: it may be gone by the time that `ready` returns.
    auto done = [engine = engine_, local = local_, lingering = std::weak_ptr(lingering_), ready = std::move(ready)](
                    Result<Established> outcome, const std::string&) {
      if (!outcome.ok()) return ready(outcome.status());
      ready(make_channel(engine, std::move(outcome).value(), local->options.heartbeat_seconds, lingering));
    };
    const auto handshake = std::make_shared<Handshake>(engine_, local_, *this, std::move(done));
    handshakes_.push_back(handshake);
    handshake->start_client(address, deadline);
    return [weak = std::weak_ptr(handshake)] {
      if (const auto pending = weak.lock()) pending->abandon(Status(Code::closed, "the attempt to connect was given up"));
    };
  }

  Result<std::string> listen(std::string_view address) override {
    const bool tcp = !address.starts_with("unix");
    if (tcp) HMC_TRY(resolve_tcp(address, true).status());  // what is no address is no security problem
    if (tcp && !local_->key && !local_->options.insecure && !is_local_address(address)) {
      return Status(Code::authentication,
                    "listening at " + std::string(address) +
                        " would let anybody on the network in: pass key= or set HMC_JOB_KEY to a key "
                        "made by `hmc keygen`, or listen at tcp://127.0.0.1:0, or pass insecure=True on a network that you trust");
    }
    HMC_ASSIGN(std::string bound, listener_.listen(address));
    // Same-host clients that come by TCP move over to a Unix socket, so there must be one.
    if (tcp && local_->options.same_host_upgrade && unix_address().empty()) {
      if (const auto extra = listener_.listen("unix"); !extra.ok()) {
        log(LogLevel::info, "no Unix socket, so clients of this host stay on TCP: " + extra.status().str());
      }
    }
    return bound;
  }

  // ---- HandshakeHost ----

  std::optional<Offer> make_offer(const std::shared_ptr<Handshake>& parent, const ContextId& peer) override {
    const std::string address = local_->options.same_host_upgrade ? unix_address() : std::string();
    drop_stale_tickets();
    // Most of a flood's are of handshakes that have given way.
    if (tickets_.size() >= max_handshakes) std::erase_if(tickets_, [](const Ticket& each) { return each.claim.parent.expired(); });
    if (address.empty() || tickets_.size() >= max_handshakes) return std::nullopt;
    Offer offer{address, {}};
    random_bytes(offer.ticket);
    tickets_.push_back({offer.ticket, Deadline::after(ticket_life), {peer, parent->remote(), parent}});
    return offer;
  }

  std::optional<Claim> claim(const Secret& secret) override {
    drop_stale_tickets();
    auto found = tickets_.end();
    for (auto at = tickets_.begin(); at != tickets_.end(); ++at) {
      if (equal_secrets(at->secret, secret)) found = at;
    }
    if (found == tickets_.end()) return std::nullopt;
    Claim claim = std::move(found->claim);
    tickets_.erase(found);
    return claim;
  }

  void forget(Handshake& handshake) override {
    handshakes_.remove_if([&](const auto& held) { return held.get() == &handshake; });
  }

 private:
  struct Ticket {
    Secret secret;
    Deadline until;
    Claim claim;
  };

  void serve(AcceptedSocket socket) {
    make_room();
    auto done = [this](Result<Established> outcome, const std::string& remote) { served(remote, std::move(outcome)); };
    const auto handshake = std::make_shared<Handshake>(engine_, local_, *this, std::move(done));
    handshakes_.push_back(handshake);
    handshake->start_server(std::move(socket));
  }

  void served(const std::string& remote, Result<Established> outcome) {
    if (outcome.ok()) {
      auto channel = make_channel(engine_, std::move(outcome).value(), local_->options.heartbeat_seconds, lingering_);
      if (const auto handler = on_accept_) handler(std::move(channel));
      return;
    }
    const Status reason = outcome.status();
    if (reason.code() == Code::closed) return;
    const std::string text = "refused " + remote + ": " + reason.str();
    if (reason.code() == Code::authentication) warn_once("control.authentication", text);
    log(LogLevel::info, text);
    if (const auto handler = local_->options.on_refused) handler(reason, remote);
  }

  // Makes room for one more. Of clients without authentication those that have not said hello go first: an honest client's hello
  // comes with its first bytes.
  void make_room() {
    using Standing = Handshake::Standing;
    const auto limit = [this](Standing highest, std::size_t most) {
      std::vector<Handshake*> counted;
      for (const auto& handshake : handshakes_) {
        const Standing standing = handshake->standing();
        if (standing != Standing::client && standing <= highest) counted.push_back(handshake.get());
      }
      if (counted.size() < most) return;
      std::vector<Source> sources;
      for (const Handshake* each : counted) sources.push_back(each->source());
      counted[choose_discarded(sources)]->abandon(Status(Code::timeout, "too many handshakes at once; this one was discarded"));
    };
    limit(Standing::silent, max_ungreeted);
    limit(Standing::greeted, max_unauthenticated);
    limit(Standing::authenticated, max_handshakes);
  }

  void drop_stale_tickets() {
    std::erase_if(tickets_, [](const Ticket& ticket) { return ticket.until.passed(); });
  }

  [[nodiscard]] std::string unix_address() const {
    for (const std::string& address : listener_.addresses()) {
      if (address.starts_with("unix:") && address.size() <= max_name) return address;
    }
    return {};
  }

  std::shared_ptr<Engine> engine_;
  Listener& listener_;
  std::shared_ptr<const LocalSide> local_;
  std::function<void(std::unique_ptr<Channel>)> on_accept_;
  std::list<std::shared_ptr<Handshake>> handshakes_;
  std::vector<Ticket> tickets_;
  std::shared_ptr<Lingering> lingering_ = std::make_shared<Lingering>();
};

}  // namespace
}  // namespace control

Result<std::unique_ptr<ControlPlane>> ControlPlane::create(std::shared_ptr<Engine> engine, Listener& listener,
                                                           ControlOptions options) {
  if (options.name.size() > control::max_name) {
    return Status(Code::invalid_argument, "a context name of " + std::to_string(options.name.size()) + " bytes; the limit is 255");
  }
  if (!(options.heartbeat_seconds >= 0.1 && options.heartbeat_seconds <= 3600)) {
    return Status(Code::invalid_argument, "heartbeat_seconds must lie between 0.1 and 3600");
  }
  auto local = std::make_shared<control::LocalSide>();
  if (!options.key.empty()) {
    auto key = control::PresharedKey::from_text(options.key);
    OPENSSL_cleanse(options.key.data(), options.key.size());
    options.key.clear();
    if (!key.ok()) return key.status();
    local->key = std::move(key).value();
  }
  // Wall-clock nanoseconds: a Context that comes back has a later epoch than it had before.
  local->epoch = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count());
  local->options = std::move(options);
  return std::unique_ptr<ControlPlane>(std::make_unique<control::Plane>(std::move(engine), listener, std::move(local)));
}

}  // namespace hmc
