// The endpoint of the ucx transport. Bytes are moved by Transfers, signals are active messages of its Channel.
#pragma once

#include <memory>
#include <string>

#include "transport/kit/endpoint_base.h"
#include "transport/ucx/channel.h"
#include "transport/ucx/server.h"
#include "transport/ucx/transfers.h"
#include "transport/ucx/worker.h"

namespace hmc::ucx {

// Engine lock held. None of it is called from within UCX but place() and pass().
class UcxEndpoint final : public kit::EndpointBase {
 public:
  static Result<std::shared_ptr<UcxEndpoint>> create(std::shared_ptr<const LibraryContext> context,
                                                     std::shared_ptr<Regions> regions, EndpointSink& sink);
  ~UcxEndpoint() override;

  // ---- of Endpoint ----
  Result<Blob> address();
  Status connect(const Blob& peer_address, Completion* done);
  Result<std::unique_ptr<RemoteRegion>> import_region(const Blob& exported);
  Status signal(ByteSpan head, ByteSpan body);
  void receive_rest();
  // Or something else was begun here, or is being served, that has not ended: UCX does not say which of it is on its way.
  [[nodiscard]] bool has_unsent() const noexcept {
    return worker_->is_open() &&
           (!operations_.empty() || !waiting_.empty() || !server_.empty() || requests_.any_message() || worker_->has_news());
  }

  // ---- of the transport ----
  // UCX's progress wants to be called.
  [[nodiscard]] bool busy() const noexcept { return worker_->is_open(); }
  bool poll();
  // Copies of devices, and their streams, wake nobody.
  bool arm() { return !worker_->is_open() || (!due() && !transfers_.uses_devices() && worker_->arm()); }
  std::string lanes;  // UCX's transports that carry it; once connected

  // ---- of the worker ----
  [[nodiscard]] std::uint64_t token() const noexcept { return channel_.token; }
  void on_ended(Request& request);
  // Bytes of a put or get: copied to where they belong, if the peer may have that. False: it cannot have sent them.
  bool place(MessageHead& head, ByteSpan body);
  // Such a message, in its turn, that nothing else is to be done for; no other waits to be delivered.
  bool pass(const MessageHead& head) noexcept { return head.kind == MessageKind::put && ready() && channel_.pass(head); }
  void on_message(const MessageHead& head, ByteSpan body, bool sound);
  void lost(ucs_status_t status);

  // ---- of Transfers ----
  using EndpointBase::attach, EndpointBase::fail, EndpointBase::finish, EndpointBase::ready;

 private:
  UcxEndpoint(std::shared_ptr<Worker> worker, std::shared_ptr<Regions> regions, EndpointSink& sink);

  Status check(const Run& run, bool is_put) const override;
  Status start(kit::Operation& operation) override;
  Status withdraw(kit::Operation& operation) override;
  bool send(ByteSpan signal, std::uint64_t put) override;
  void stop() override;
  void maybe_connected();
  void take(const MessageHead& head, ByteSpan body);
  // Whether something waits that UCX has room for.
  [[nodiscard]] bool due() const noexcept {
    return ready() && (transfers_.due() || (!waiting_.empty() && requests_.room_for(Request::Kind::signal)) ||
                       (!server_.empty() && requests_.room_for(Request::Kind::answer)));
  }
  // Hands over some of what waits; true if anything was.
  bool advance();

  const std::shared_ptr<Worker> worker_;
  Requests requests_{*worker_};
  Channel channel_{*this, *worker_, requests_};
  Transfers transfers_{*this, operations_, *worker_, channel_, requests_};
  Server server_;
  bool advancing_ = false;
  Engine::TimerId patience_ = 0;
};

}  // namespace hmc::ucx
