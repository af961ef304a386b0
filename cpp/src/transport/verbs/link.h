// Link: the working half of a verbs endpoint: its rails to one peer, and the operations in flight.
//
// A put is RDMA writes, a get RDMA reads. A signal is a send into buffers that the peer has posted, as many as it has given credit
// for, or the immediate of a put's last write, which takes such a buffer, too. Small operations and all signals go by the first
// rail, so that a signal behind a put's writes lands after them; the pieces of large operations go by whichever rail has room, and
// what must come after them is sent when they have been acknowledged. What is in flight is bounded, so that signals do not wait
// behind a large put. With the last of its rails the link ends.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "transport/kit/endpoint_base.h"
#include "transport/verbs/outbox.h"
#include "transport/verbs/rail_keeper.h"
#include "transport/verbs/shared.h"
#include "transport/verbs/transfers.h"

namespace hmc::verbs {

// All calls with the engine lock held.
class Link final : public kit::EndpointBase, private RailOwner {
 public:
  // A rail for each card named, at most max_rails.
  static Result<std::shared_ptr<Link>> create(const std::shared_ptr<Shared>& shared, const std::vector<Nic*>& nics,
                                              EndpointSink& sink);
  ~Link() override;

  // ---- of Endpoint ----
  Result<Blob> address();
  Status connect(const Blob& peer_address, Completion* done);
  Result<std::unique_ptr<RemoteRegion>> import_region(const Blob& exported);
  Status signal(ByteSpan head, ByteSpan body);
  void receive_rest();
  // Also what the peer's card has not acknowledged: with its queue pair's end it is sent no more.
  [[nodiscard]] bool has_unsent() const;

  // ---- of the transport ----
  void on_completion(const ibv_wc& completion);
  // Posts what there is room for.
  void advance() override;
  // Something was begun here that has not ended.
  [[nodiscard]] bool busy() const noexcept { return !operations_.empty() || !waiting_.empty() || !outbox_.resend.empty(); }
  // Begins what has waited for a stream of a device that has got there.
  bool release_held();
  bool waiting_turn = false;  // the transport's: it has been noted for advance()

 private:
  Link(std::shared_ptr<Shared> shared, EndpointSink& sink)
      : EndpointBase({"verbs", max_signal, kit::operation_type<Op>()}, shared->engine, sink), shared_(std::move(shared)) {}

  // link.cc
  Status check(const Run& run, bool is_put) const override;
  Status withdraw(kit::Operation& operation) override;
  void stop() override;
  std::shared_ptr<void> hold() override { return shared_from_this(); }
  void on_over(const Status& reason) override { fail(reason); }

  // link_send.cc
  Status start(kit::Operation& operation) override;
  bool send(ByteSpan signal, std::uint64_t put) override;
  bool post_signal(ByteSpan head, ByteSpan body);

  // link_complete.cc
  void on_sent(Rail& rail, const ibv_wc& completion);
  void broke(Rail& rail, const ibv_wc& completion);
  void restart_outbound(Rail& rail);
  void on_gone(Rail& rail) override;
  void on_received(Rail& rail, const ibv_wc& completion);
  bool take(unsigned slot, const ibv_wc& completion);

  std::shared_ptr<Shared> shared_;
  std::uint32_t number_ = 0;
  bool advancing_ = false;
  Rails rails_;
  Outbox outbox_{rails_, waiting_};
  Transfers transfers_{operations_, rails_, outbox_};
  RailKeeper keeper_{*shared_, *this, rails_, outbox_.memory};
  SignalHeads heads_heard_;
  std::vector<std::uint64_t> held_;  // operations that wait for a stream
};

}  // namespace hmc::verbs
