// CarriedEndpoint: an endpoint whose signals go by another transport's connection, its carrier, as do messages of its own.
#pragma once

#include <memory>
#include <optional>

#include "transport/kit/carrier.h"
#include "transport/kit/endpoint_base.h"

namespace hmc::kit {

// Engine lock held.
class CarriedEndpoint : public EndpointBase, private CarrierLink::Owner, private Completion {
 public:
  Result<Blob> address();
  Status connect(const Blob& peer_address, Completion* done);
  Status signal(ByteSpan head, ByteSpan body);
  void receive_rest() {
    if (!stopped() && carrier_) carrier_->endpoint().receive_rest();
  }
  [[nodiscard]] bool has_unsent() const { return carrier_ && carrier_->endpoint().has_unsent(); }

 protected:
  using EndpointBase::EndpointBase;
  // Before anything else. Errors: no carrier reaches the peer.
  Status create_carrier(const Carriers& carriers, const PeerDomain& peer);

  // ---- what a transport writes, beside what EndpointBase asks for ----
  virtual Result<Blob> own_address() = 0;           // for the peer's accept()
  virtual Status accept(Blob peer_address) = 0;     // the peer's own_address()
  virtual void on_carrier_ready() {}                // before the endpoint is connected
  virtual Status on_message(ByteSpan message) = 0;  // of the peer's end. Errors: the connection fails

  [[nodiscard]] CarrierLink& carrier() const noexcept { return *carrier_; }
  bool send(ByteSpan signal, std::uint64_t put) override;
  // For stop(), once the endpoint is closed: ends what the carrier moves, and the peer learns of it.
  void close_carrier() { carrier_.reset(); }

 private:
  void complete(Status status) noexcept override;  // the carrier is connected
  void on_user_signal(ByteSpan signal) override {
    if (!stopped()) sink_->on_signal(signal);
  }
  void on_own_signal(ByteSpan signal) override;
  void on_carrier_failed(const Status& reason) override { fail(reason); }

  std::unique_ptr<CarrierLink> carrier_;
  bool accepted_ = false;
  std::optional<Status> carrier_outcome_;  // of its connecting, until the peer's address is accepted
};

}  // namespace hmc::kit
