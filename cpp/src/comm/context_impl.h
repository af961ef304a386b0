// ContextImpl: the owner of everything below one Context. Engine lock held unless said otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/pollable.h"
#include "comm/buffers.h"
#include "comm/context_state.h"
#include "comm/filter.h"
#include "comm/notify.h"
#include "comm/peer_impl.h"
#include "comm/registration.h"
#include "progress/worker.h"

namespace hmc {

class EncodedNotify;
class TransferWork;
class PendingChannel;
struct ConnectAttempt;

// ContextId as text, 32 hex digits.
std::string context_id_text(const ContextId& id);
// Every transport compiled in, made for `environment`. Engine lock held.
std::vector<std::unique_ptr<TransportSlot>> make_transports(TransportEnvironment environment, const TransportFilter& filter);
std::vector<std::string> known_transports();

class ContextImpl final : public ContextState, private Pollable {
 public:
  // Lock not held.
  static Result<std::shared_ptr<ContextImpl>> create(const ContextOptions& options);
  explicit ContextImpl(ContextOptions options);
  ~ContextImpl() override;

  // ---- ContextState ----
  [[nodiscard]] const std::shared_ptr<Engine>& engine() const noexcept override { return engine_; }
  [[nodiscard]] const ContextId& id() const noexcept override { return id_; }
  [[nodiscard]] const ContextOptions& options() const noexcept override { return options_; }
  [[nodiscard]] Status usable() const override;
  [[nodiscard]] Messenger& messenger() noexcept override { return *messenger_; }
  [[nodiscard]] NotifyTable& notify_table() noexcept override { return notify_; }
  [[nodiscard]] const std::shared_ptr<PeerState>& self() noexcept override { return self_; }
  std::shared_ptr<PeerState> expect_peer(const ContextId& id, std::vector<std::string> addresses, std::string name) override;
  void add_scope(std::uint32_t scope, std::vector<std::shared_ptr<PeerState>> owner_by_rank) override;
  void remove_scope(std::uint32_t scope) override;
  [[nodiscard]] bool scope_has(std::uint32_t scope, std::uint32_t rank, const PeerState& peer) const noexcept override;
  void set_control_handler(ControlHandler handler) override;
  void on_peer_gone(std::function<void(PeerState& peer, const Status& reason)> watcher) override;
  void count(std::string_view counter, std::uint64_t n) override;
  Result<std::shared_ptr<LocalRegion>> transient_region(Route& route, const MemoryView& view) override;

  Result<std::shared_ptr<WorkState>> put(const ConnBuffer& source, const RemoteBuffer& target, const PutOptions& options,
                                         const Envelope& envelope) override;
  Result<std::shared_ptr<WorkState>> get(const ConnBuffer& target, const RemoteBuffer& source, StreamHandle stream) override;
  Result<std::shared_ptr<WorkState>> put_blocks(const BlockBatch& batch, const PutOptions& options,
                                                const Envelope& envelope) override;
  Result<std::shared_ptr<WorkState>> get_blocks(const BlockBatch& batch, StreamHandle stream) override;
  Result<BlockBatch> prepare_blocks(std::span<const BlockPair> pairs, std::size_t block) override;
  Status notify(const std::shared_ptr<PeerState>& peer, const Notify& notify, const Envelope& envelope) override;
  Status fence(const std::shared_ptr<PeerState>& peer) override;
  Status wait_notify(const std::shared_ptr<PeerState>& peer, const Envelope& envelope, std::uint64_t id, std::uint64_t count,
                     Deadline deadline) override;
  Result<std::vector<Notification>> notifications(const std::shared_ptr<PeerState>& peer, const Envelope& envelope,
                                                  Deadline deadline) override;
  Result<RemoteBuffer> import(const std::shared_ptr<PeerState>& peer, const Descriptor& descriptor, Deadline deadline) override;
  Result<std::vector<RemoteBuffer>> import_all(std::span<const std::shared_ptr<PeerState>> peers,
                                               std::span<const Descriptor> descriptors, Deadline deadline) override;

  // ---- public handles' side, lock not held ----
  Result<std::shared_ptr<PeerImpl>> connect(std::string_view address, Deadline deadline);
  Result<std::shared_ptr<PeerImpl>> accept(Deadline deadline);
  std::vector<std::shared_ptr<PeerImpl>> connected_peers();
  std::vector<std::string> addresses();
  Result<std::shared_ptr<BufferState>> expose(const Memory& memory, Access access);
  Status close_buffer(const std::shared_ptr<Exposure>& exposure, Deadline deadline);
  Status publish(std::string_view name, const ConnBuffer& buffer);
  Status unpublish(std::string_view name);
  Result<RemoteBuffer> lookup(const std::shared_ptr<PeerImpl>& peer, std::string_view name, Deadline deadline);
  Result<Path> path(const std::shared_ptr<PeerImpl>& peer, const Device& source, const Device& target, Deadline deadline);
  Status wait_ready(const std::shared_ptr<PeerImpl>& peer, Deadline deadline);
  void leave(const std::shared_ptr<PeerImpl>& peer);
  Result<std::vector<NativeFields>> native(const ConnBuffer& buffer, std::string_view transport);
  Result<std::shared_ptr<NativeState>> connect_native(std::string_view transport, const NativeFields& peer);
  // As Messenger's, in scope 0, behind the peer's fences.
  Result<std::shared_ptr<WorkState>> isend(const std::shared_ptr<PeerState>& peer, std::int64_t tag, const MemoryView& view);
  Status send(const std::shared_ptr<PeerState>& peer, std::int64_t tag, const MemoryView& view, Deadline deadline);
  std::map<std::string, std::uint64_t> counters();
  bool progress();
  Status close(Deadline deadline);
  [[nodiscard]] bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }
  Descriptor descriptor_of(const Exposure& exposure) const;
  // Runs `task` soon under the engine lock; from destructors: any thread, lock held or not. Once the Context is shut down the task
  // is destroyed instead.
  void toss(std::function<void()> task);

  // ---- for PeerImpl and its kind ----
  [[nodiscard]] std::vector<std::unique_ptr<TransportSlot>>& transports() noexcept { return transports_; }
  [[nodiscard]] TransportSlot* find_transport(std::string_view name) noexcept;
  [[nodiscard]] ControlPlane& control() noexcept { return *control_; }
  // self() for users: keeps the Context's object alive, as other peers do.
  std::shared_ptr<PeerImpl> self_handle();
  [[nodiscard]] Worker& worker() noexcept { return worker_; }
  void peer_ready(PeerImpl& peer, bool connected_to_us);
  void peer_ended(PeerImpl& peer);  // at once: it is no longer found
  void peer_torn_down(PeerImpl& peer, const Status& reason);
  void forget(PeerImpl& peer);  // gone for good
  void deliver_control(PeerImpl& peer, MessageType type, ByteSpan payload);
  // The open buffer that `m` names. Errors: stale, authentication, invalid_argument.
  Result<std::shared_ptr<Exposure>> resolve(const wire::Import& m);
  [[nodiscard]] std::shared_ptr<Exposure> find_exposure(std::uint64_t id, std::uint64_t generation);
  // Closed and quiet? Then its registration goes and its closers learn.
  void settle(const std::shared_ptr<Exposure>& exposure);
  // Ends the buffer without waiting: importers are told. Idempotent.
  void begin_close(const std::shared_ptr<Exposure>& exposure);
  // Registers, lock not held, and makes room where a vendor's budget is used up (eviction.cc). Errors: as the transport's;
  // would_block: there is no room for now.
  Result<std::shared_ptr<LocalRegion>> register_region(const Registration& registration, Transport& transport, Deadline deadline);
  void needs_pump(PeerImpl& peer);
  // Prepares the way of `work`, whose connection failed before it was posted, over another: between the two buffers, or of the
  // batch.
  void find_another_way(const std::shared_ptr<TransferWork>& work, const std::shared_ptr<BufferState>& local,
                        const std::shared_ptr<RemoteBufferState>& remote, const std::shared_ptr<BlockBatchState>& batch);
  void end_native(std::uint64_t id) { native_links_.erase(id); }
  [[nodiscard]] const std::map<std::string, std::shared_ptr<BufferState>, std::less<>>& published() const noexcept {
    return published_;
  }

 private:
  friend class PendingChannel;
  bool poll() override;
  bool arm() override;
  [[nodiscard]] bool busy() const override;

  Status start();  // lock not held
  Status start_locked();
  void shut_down();
  void on_accept(std::unique_ptr<Channel> channel);
  void on_connected(const std::shared_ptr<ConnectAttempt>& attempt, Result<std::unique_ptr<Channel>> channel);
  void on_hello(PendingChannel& pending, ByteSpan payload);
  void drop_pending(PendingChannel& pending);
  std::shared_ptr<PeerImpl> new_peer(const ContextId& id, bool self);
  bool run_tossed();

  // Regions for one operation, lock not held. A missing one is made: LocalRegion by registering, RemoteRegion by asking its owner.
  Status ensure_local(Registration& registration, Transport& transport, Deadline deadline);
  // ---- eviction.cc ----
  // One region of that device's vendor, if those that may go have `least` bytes together.
  bool evict(const Transport& transport, const Device& device, std::size_t least, Deadline deadline);
  struct Victim {
    std::shared_ptr<Registration> registration;  // null: there is none
    const LocalRegion* region = nullptr;
    std::size_t together = 0;  // bytes of all that may go
  };
  Victim pick_victim(const Transport& transport, const Device& device);
  void all_routes_changed();
  // For want of room something was refused: `accept` is to take that back.
  void reconsider_soon(std::function<void()> accept);

  void prepare_local(Registration& registration, const Transport& transport, const Device& remote);
  struct Wanted {
    std::shared_ptr<PeerImpl> peer;
    std::shared_ptr<RemoteImport> record;
    EndpointSlot* slot = nullptr;
    Device local;  // that operations with it will use here
  };
  Status fetch(std::span<const Wanted> wanted, Deadline deadline);
  Status fetch_own(const Wanted& wanted, Deadline deadline);
  Status prepare(const Wanted& wanted, Deadline deadline);
  Status once_alive(PeerImpl& peer, Status status, Deadline deadline);  // lock not held
  // All that operations between the buffers need, by the best transport that reaches both. `registration` null: of the remote only.
  Status obtain(Wanted wanted, Registration* registration, Deadline deadline);
  Result<Transport*> usable_transport(std::string_view name);
  Status check_descriptor(PeerImpl& peer, const Descriptor& descriptor);
  // Waits until the route between two devices is there (lock not held).
  Result<PeerRoute*> wait_route(PeerImpl& peer, const Device& local, const Device& remote, TransportSet refused, Deadline deadline);

  Result<std::shared_ptr<WorkState>> transfer(bool is_put, const ConnBuffer& local, const RemoteBuffer& remote,
                                              const PutOptions& options, const Envelope& envelope);
  Result<std::shared_ptr<WorkState>> transfer_blocks(bool is_put, const BlockBatch& batch, const PutOptions& options,
                                                     const Envelope& envelope);
  bool put_short(PeerRoute& route, const ConnBuffer& local, const RemoteBuffer& remote, const EncodedNotify& notify);
  Result<std::shared_ptr<WorkState>> post_work(const std::shared_ptr<TransferWork>& work, bool pays_credit);
  Status check_open(const Exposure& exposure, bool is_put) const;
  Status check_remote(PeerImpl& peer, const RemoteImport& record, bool is_put) const;
  // The route for one pair of buffers with the regions it needs. Lock held on entry and on return, released in between when
  // something is missing; then `looked_again` is set and the caller starts over.
  Result<PeerRoute*> usable_route(Engine::Lock& lock, BufferState& local, RemoteBufferState& remote, bool& look_again);
  Status resolve_batch(Engine::Lock& lock, BlockBatchState& batch, bool is_put);

  ContextOptions options_;
  ContextId id_{};
  const std::uint32_t fork_epoch_;
  std::shared_ptr<Engine> engine_;
  std::atomic<bool> closed_{false};
  std::atomic<bool> shut_down_{false};
  bool polled_ = false;       // added to the engine
  std::mutex closing_mutex_;  // one thread closes, others wait for it

  std::unique_ptr<Listener> listener_;
  std::unique_ptr<ControlPlane> control_;
  std::vector<std::unique_ptr<TransportSlot>> transports_;
  TransportFilter filter_;
  std::unique_ptr<Messenger> messenger_;
  NotifyTable notify_;
  std::shared_ptr<PeerState> self_;
  std::map<ContextId, std::shared_ptr<PeerImpl>> peers_;
  std::vector<std::shared_ptr<PeerImpl>> ending_;  // ended, not torn down
  std::uint64_t next_session_ = 1;
  std::vector<std::unique_ptr<PendingChannel>> pending_channels_;
  std::deque<std::shared_ptr<PeerImpl>> accept_queue_;
  std::vector<std::atomic<std::uint32_t>*> accept_waiters_;

  struct BufferSlot {
    std::uint64_t generation = 0;
    std::shared_ptr<Exposure> open;
  };
  std::vector<BufferSlot> buffer_slots_;
  std::vector<std::size_t> free_slots_;
  std::vector<std::shared_ptr<Exposure>> closing_buffers_;
  RegistrationCache registrations_;
  std::map<std::string, std::shared_ptr<BufferState>, std::less<>> published_;

  std::unordered_map<std::uint64_t, std::unique_ptr<NativeLink>> native_links_;
  std::uint64_t last_native_ = 0;

  std::unordered_map<std::uint32_t, std::vector<std::shared_ptr<PeerState>>> scopes_;
  ControlHandler control_handler_;
  struct HeldControl {
    std::weak_ptr<PeerState> peer;
    MessageType type;
    Bytes payload;
  };
  std::deque<HeldControl> held_control_;  // came before the collective layer set its handler
  std::vector<std::function<void(PeerState&, const Status&)>> gone_watchers_;
  std::map<std::string, std::uint64_t, std::less<>> counters_;

  std::vector<PeerImpl*> to_pump_;
  std::mutex toss_mutex_;
  std::vector<std::function<void()>> tossed_;
  std::atomic<bool> has_tossed_{false};
  Worker worker_;
  Worker mover_;  // waits for answers of peers, which worker_ must not: peers wait for it
};

// Lock guard for public calls: refuses closed and forked Contexts first.
inline ContextImpl& impl_of(ContextState& context) noexcept { return static_cast<ContextImpl&>(context); }

}  // namespace hmc
