// PeerImpl: one remote Context. From its first channel to its end: handshake, endpoints, routes, what is pending, imports.
// Everything with the engine lock held unless said otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "comm/buffers.h"
#include "comm/codec.h"
#include "comm/endpoint_slot.h"
#include "comm/notify.h"
#include "comm/outbox.h"
#include "comm/peer_state.h"
#include "comm/pending.h"
#include "comm/signals.h"

namespace hmc {

class ContextImpl;
class TransferWork;
class FlushCount;

struct PeerRoute : Route {
  EndpointSlot* slot = nullptr;
  TransportSet without = 0;  // what was left out when it was chosen
  bool staged = false;
  // Adds a posted operation to the counters that path() and counters() show.
  void count(bool is_put, std::size_t bytes);
};

// One import or lookup on its way to the owner and back.
struct Request {
  std::shared_ptr<RemoteImport> record;  // import: where the region goes
  EndpointSlot* slot = nullptr;
  Status status;
  Bytes bytes;                                      // lookup: the descriptor
  std::atomic<std::uint32_t>* remaining = nullptr;  // counted down when answered; `all_done` set at zero
  std::atomic<std::uint32_t>* all_done = nullptr;
};

class PeerImpl final : public PeerState, private ChannelSink {
 public:
  PeerImpl(const std::shared_ptr<ContextImpl>& context, std::uint64_t session, bool self);
  ~PeerImpl() override;

  // ---- PeerState ----
  [[nodiscard]] ContextState& context() noexcept override;
  [[nodiscard]] PeerPhase phase() const noexcept override { return phase_; }
  [[nodiscard]] const Status& failure() const noexcept override { return failure_; }
  [[nodiscard]] const PeerIdentity& identity() const noexcept override { return identity_; }
  [[nodiscard]] bool is_self() const noexcept override { return self_; }
  void when_ready(std::function<void(const Status&)> action) override;
  Status signal(ByteSpan head, ByteSpan body) override {
    const bool plain = message_slot_ != nullptr && !message_slot_->transport().capabilities.breaks && outbox_.at_end();
    if (!plain) return signal_kept(head, body);
    return message_slot_->endpoint->signal(head, body);
  }
  [[nodiscard]] const Capabilities& message_capabilities() const noexcept override {
    return last_message_slot_->transport().capabilities;
  }
  Result<Route*> route(const Device& local, const Device& remote, TransportSet refused) override;
  TransportSet buffers_only(const Device& local, const Device& remote) override;
  Result<Route*> route_by(const Device& local, const Device& remote, std::string_view transport_name) override;
  Result<Route*> next_route(const Route& failed, TransportSet refused, const Status& reason) override;
  Endpoint* endpoint(std::string_view transport_name) noexcept override;
  void count_message(Route& route, bool sent, std::size_t bytes) override { static_cast<PeerRoute&>(route).count(sent, bytes); }
  Status send_control(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds = {}) override;
  void fail(const Status& reason) override { end(reason, PeerPhase::lost); }

  // ---- constants and snapshots, any thread ----
  [[nodiscard]] ContextImpl& impl() noexcept { return context_; }
  [[nodiscard]] const std::shared_ptr<NotifySlot>& notify_slot() const noexcept { return notify_slot_; }
  [[nodiscard]] std::uint64_t session() const noexcept { return session_; }
  [[nodiscard]] std::string describe() const;  // "peer host:42 (unix:pid 42)"

  // ---- joining (handshake.cc) ----
  void expect(const ContextId& id, std::vector<std::string> addresses, std::string name);
  void start_connecting();
  void attach_outgoing(std::unique_ptr<Channel> channel);
  void attach_incoming(std::unique_ptr<Channel> channel, const wire::Hello& hello);
  // The other Context prefers the connection that it made; ours goes away.
  void drop_outgoing();
  void become_self();
  [[nodiscard]] bool has_channel() const noexcept { return channel_ != nullptr; }
  [[nodiscard]] bool expected() const noexcept { return expected_; }
  [[nodiscard]] bool joined() const noexcept { return joined_; }
  [[nodiscard]] bool attached() const noexcept { return channel_ != nullptr && greeted_; }
  [[nodiscard]] std::uint64_t remote_session() const noexcept { return remote_session_; }

  // ---- leaving (departure.cc) ----
  // Ends at once: pending operations complete with `reason`, the rest is taken down outside the current call chain.
  void end(const Status& reason, PeerPhase phase);
  // Says goodbye in band, so that the peer sees everything sent before; then ends as closed.
  void leave();
  void tear_down();      // end()'s second half, outside the current call chain
  void tear_down_now();  // the Context is going away: no goodbye is awaited
  // Nothing of it is left but the object: goodbye said, everything freed.
  [[nodiscard]] bool gone() const noexcept { return torn_down_ && !channel_; }

  // ---- endpoints (endpoints.cc) ----
  void on_signal(EndpointSlot& slot, ByteSpan signal);
  void on_connected(EndpointSlot& slot, const Status& status);
  void on_endpoint_failed(EndpointSlot& slot, const Status& reason);
  [[nodiscard]] EndpointSlot* find_slot(std::string_view transport_name) noexcept;  // of the last attempt
  [[nodiscard]] EndpointSlot* find_slot(std::string_view transport_name, std::uint32_t attempt) noexcept;
  // Changes whenever a route may have changed; never 0.
  [[nodiscard]] std::uint64_t route_epoch() const noexcept { return route_epoch_; }
  void routes_changed() noexcept { ++route_epoch_; }
  Result<PeerRoute*> find_route(const Device& local, const Device& remote, TransportSet refused);
  // Between two buffers.
  Result<PeerRoute*> find_route(const BufferState& local, const RemoteBufferState& remote) {
    return find_route(local.exposure->device, remote.record->device,
                      local.registration->refused | remote.record->refused(local.exposure->device));
  }
  [[nodiscard]] const std::vector<std::unique_ptr<PeerRoute>>& routes() const noexcept { return routes_; }

  // ---- posting (pump.cc) ----
  [[nodiscard]] bool nothing_pending() const noexcept { return pending_.empty() && credit_wait_.empty(); }
  // True: an operation that must stay behind what is pending may be posted now.
  [[nodiscard]] bool may_post() const noexcept { return pending_.empty() && phase_ == PeerPhase::ready; }
  bool when_alive(std::function<void()> action) override;
  void enqueue(std::shared_ptr<PendingOp> op);
  // Again, before what has been posted since.
  void enqueue_first(std::shared_ptr<PendingOp> op);
  bool remove_pending(const PendingOp* op);
  // Posts what can be posted. True if anything moved.
  bool pump();
  Status fence();
  // Fences, and sends behind them, that are still pending: another send must queue up too. Any thread.
  [[nodiscard]] bool fenced() const noexcept { return fences_.load(std::memory_order_relaxed) != 0; }
  void add_fence() noexcept { fences_.fetch_add(1); }
  void remove_fence() noexcept { fences_.fetch_sub(1); }
  [[nodiscard]] std::size_t pending_count() const noexcept { return pending_.size() + credit_wait_.size(); }
  void link(TransferWork& work) noexcept;
  void unlink(TransferWork& work) noexcept;
  void operation_done(EndpointSlot& slot);
  void grant_credit(std::uint64_t total);

  // ---- imports (import.cc) ----
  // Starts fetching `record`'s region for `slot`; the answer counts `request` down.
  Status start_import(const std::shared_ptr<Request>& request, std::uint64_t& id);
  Status start_lookup(const std::shared_ptr<Request>& request, std::string_view name, std::uint64_t& id);
  void forget_request(std::uint64_t id, bool lookup);
  void add_record(const std::shared_ptr<RemoteImport>& record) { records_.push_back(record); }
  std::shared_ptr<RemoteBufferState> known_remote(const Descriptor& descriptor) const;
  void remember_remote(const std::shared_ptr<RemoteBufferState>& remote);
  // No handle is left, the owner revoked it, or the peer ended: entries go once nothing is under way on them.
  void retire(const std::shared_ptr<RemoteImport>& record);
  void settle(const std::shared_ptr<RemoteImport>& record);
  // Gives up what was imported for a transport that did not reach the buffer from any device.
  void drop_unused(RemoteImport& record, const EndpointSlot* slot);
  // Of a connection that has ended.
  void drop_entries(RemoteImport& record, const EndpointSlot* slot);
  // Owner's side: the answer to an import of ours by this peer.
  void answer(std::uint64_t request, const Status& status, Bytes bytes = {}, std::vector<UniqueFd> fds = {}, bool lookup = false);
  void revoke(const std::shared_ptr<Exposure>& exposure);
  // Asks the peer to let go of a region (eviction.cc).
  void withdraw(const Registration& registration, const LocalRegion* region);
  // Importer's side: something ended that a withdrawn region may have waited for.
  void settle_withdrawn();
  [[nodiscard]] bool withdrawing() const noexcept { return withdrawing_; }
  // Self only: what was imported of the own buffer ends.
  void revoke_own(const Exposure& exposure) { end_records({exposure.id, exposure.generation}, false); }
  [[nodiscard]] std::vector<std::uint64_t> waiting_lookups(std::string_view name);

 private:
  friend class EndpointSlot;
  void on_message(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) override;
  void on_closed(const Status& reason) override;

  void handle(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds);
  void broken(std::string_view what);  // the peer broke the protocol

  void try_next_address(const Status& last);
  wire::Hello own_hello(std::string choice) const;
  bool take_hello(const wire::Hello& hello);
  void on_hello_reply(const wire::Hello& hello);
  void start_timer(double seconds, std::function<void()> action);
  void stop_timer();
  void choose_message_transport();
  [[nodiscard]] Status no_transport() const;  // with every reason met
  void become_ready();
  void run_ready_actions(const Status& status);

  struct Candidate {
    TransportSlot* transport;
    Reach reach;
  };
  // `resting`: those that would do, but failed in use and are left alone for now.
  std::vector<Candidate> rank(const Device& local, const Device& remote, TransportSet refused, std::vector<std::string>& rejected,
                              std::vector<Candidate>* resting = nullptr);
  [[nodiscard]] const Bytes* domain_of(std::string_view transport_name) const noexcept;
  [[nodiscard]] PeerDomain peer_domain(const Bytes& domain) const noexcept;
  EndpointSlot* open_endpoint(TransportSlot& transport, std::uint32_t attempt);
  void connect_self(EndpointSlot& slot);
  void maybe_ready(EndpointSlot& slot);
  void on_address(const wire::Address& address, std::vector<UniqueFd> fds);
  void on_endpoint_note(const wire::EndpointNote& note, bool ready);
  void send_note(const EndpointSlot& slot, const Status& status);

  // ---- connections that end while the peer lives (failover.cc) ----
  EndpointSlot& next_slot(TransportSlot& transport, std::uint32_t attempt);
  EndpointSlot* reopen(EndpointSlot& failed);
  void stop_retry(EndpointSlot& slot);
  void quarantine(EndpointSlot& slot);
  void schedule_retry(EndpointSlot& slot, Deadline when);
  void restored(EndpointSlot& slot);
  void slot_failed(EndpointSlot& slot, const Status& reason, bool tell_peer);
  void slot_closed(EndpointSlot& slot);
  [[nodiscard]] Status fatal_for_peer(const EndpointSlot& slot) const;
  Status signal_kept(ByteSpan head, ByteSpan body);
  void count_signal(std::size_t bytes);
  bool pump_signals();
  void stop_messages();
  void choose_messages_anew();
  void choose_messages_if_none();
  EndpointSlot* wake_resting(const std::vector<Candidate>& resting);
  void carry_messages(EndpointSlot& slot);
  void on_messages_by(const wire::EndpointNote& note);
  void on_stopped(const wire::Stopped& m);
  void on_alive(std::uint64_t question);
  void answered(std::uint64_t question);
  void drop_questions();
  void resume_messages();

  bool release_fence();
  void on_import(const wire::Import& m);
  void on_imported(const wire::Answer& m, std::vector<UniqueFd> fds);
  void on_found(const wire::Answer& m);
  void on_release(std::uint64_t request);
  void on_withdraw(std::uint64_t request);
  [[nodiscard]] bool in_use(const RemoteRegion* region) const noexcept;
  void drop_withdrawn(RemoteImport& record, const RemoteRegion* region);
  void on_revoke(const wire::BufferName& name);
  bool end_records(const wire::BufferName& name, bool acknowledge);
  void on_revoked(const wire::BufferName& name);
  void finish_import(const wire::Import& m, const std::shared_ptr<Exposure>& exposure, LocalRegion& region);
  void answered(const std::shared_ptr<Request>& request, Status status);
  void end_requests(const Status& reason);
  void drop_grants();
  void drop_channel();
  void forget_flush();

  const std::shared_ptr<ContextImpl>
      owner_;  // a cycle until the Context is closed, which forgets its peers; null for self, which it keeps
  ContextImpl& context_;
  const std::uint64_t session_;
  const bool self_;
  PeerPhase phase_ = PeerPhase::idle;
  Status failure_;
  PeerIdentity identity_;
  bool joined_ = false;  // on_joined was told
  bool torn_down_ = false;
  bool leaving_ = false;  // bye was said, its acknowledgement is awaited

  bool expected_ = false;               // a rank that we know of: nobody accepts it
  std::vector<std::string> addresses_;  // of an expected peer
  std::size_t next_address_ = 0;
  std::vector<std::function<void(const Status&)>> ready_actions_;
  std::unique_ptr<Channel> channel_;
  bool channel_over_ = false;
  bool outgoing_ = false;   // this side made channel_
  bool greeted_ = false;    // hello went both ways
  bool accepting_ = false;  // this side chooses the message transport
  std::uint64_t remote_session_ = 0;
  std::uint64_t timer_ = 0;
  std::vector<wire::Hello::TransportDomain> domains_;
  std::vector<std::string> tried_;  // message transports that failed, with reasons

  std::vector<std::unique_ptr<EndpointSlot>> slots_;
  std::vector<std::unique_ptr<EndpointSlot>> old_slots_;  // of earlier attempts
  EndpointSlot* message_slot_ = nullptr;                  // null while none carries messages
  EndpointSlot* next_message_slot_ = nullptr;             // will carry them once it is ready and the peer has stopped the last
  EndpointSlot* last_message_slot_ = nullptr;
  Outbox outbox_;                                    // of signals, where the connection may break
  std::uint64_t signals_in_ = 0, acknowledged_ = 0;  // received over such
  std::uint64_t bytes_in_ = 0;                       // since the last acknowledgement
  bool acknowledge_ = false;
  std::vector<std::unique_ptr<PeerRoute>> routes_;
  std::vector<std::unique_ptr<PeerRoute>> old_routes_;  // of failed endpoints; others may hold the pointer until the peer ends
  std::uint64_t route_epoch_ = 1;
  std::vector<std::tuple<Device, Device, TransportSet>> buffers_only_;  // answers given

  std::list<std::shared_ptr<PendingOp>> pending_;      // no room, or behind a fence
  std::list<std::shared_ptr<PendingOp>> credit_wait_;  // out of payload credit
  bool pumping_ = false;
  std::atomic<std::uint32_t> fences_{0};
  TransferWork* works_ = nullptr;  // every unfinished one
  struct Question {
    std::function<void()> action;
    Engine::TimerId timer;
  };
  std::uint64_t asked_ = 0, answered_ = 0;       // questions whether the peer lives
  std::map<std::uint64_t, Question> questions_;  // that wait for their answer
  std::shared_ptr<FlushCount> flush_;            // of the fence at the head of pending_
  std::uint64_t credit_to_send_ = 0;
  std::shared_ptr<NotifySlot> notify_slot_;

  std::uint64_t next_request_ = 1;
  std::unordered_map<std::uint64_t, std::shared_ptr<Request>> imports_, lookups_;
  std::vector<std::shared_ptr<RemoteImport>> records_;
  std::vector<std::weak_ptr<RemoteBufferState>> remotes_;
  struct Grant {
    std::shared_ptr<Exposure> exposure;
    const LocalRegion* region;
  };
  static void end_grant(const Grant& grant) { grant.exposure->registration->end_grant(grant.region); }
  std::unordered_map<std::uint64_t, Grant> granted_;               // by the peer's request
  bool withdrawing_ = false;                                       // something withdrawn may still be in use
  std::unordered_map<std::uint64_t, std::string> lookup_waiters_;  // by the peer's request
};

}  // namespace hmc
