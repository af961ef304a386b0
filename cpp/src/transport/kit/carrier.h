// Carriers: transports of CPU memory that a transport of device memory builds on. A carrier takes its signals, and across hosts its
// bytes; which one is agreed per peer.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace hmc {

// The carriers that one transport may use, and what its domain() says of them.
class Carriers {
 public:
  explicit Carriers(std::vector<Transport*> transports) noexcept : transports_(std::move(transports)) {}

  [[nodiscard]] bool empty() const noexcept { return transports_.empty(); }
  [[nodiscard]] Bytes domain() const;
  struct Choice {
    Transport* transport = nullptr;  // null: none reaches the peer, `reach.reason` says why
    PeerDomain peer;                 // as that transport sees it; points into the domain given to choose()
    Reach reach;
  };
  // The fastest between the CPU memories of both sides: both compute the same.
  [[nodiscard]] Choice choose(const PeerDomain& peer) const;
  // The least of all, so that it holds whichever is chosen.
  [[nodiscard]] Capabilities capabilities() const;

 private:
  std::vector<Transport*> transports_;
};

// The connection underneath one endpoint. Every signal starts with a byte that tells whom it is for. Engine lock held.
class CarrierLink final : public EndpointSink {
 public:
  static constexpr std::size_t signal_overhead = 1;

  class Owner {
   public:
    virtual void on_user_signal(ByteSpan signal) = 0;
    virtual void on_own_signal(ByteSpan signal) = 0;
    virtual void on_carrier_failed(const Status& reason) = 0;

   protected:
    ~Owner() = default;
  };

  static Result<std::unique_ptr<CarrierLink>> create(const Carriers& carriers, const PeerDomain& peer, Owner& owner);

  [[nodiscard]] Endpoint& endpoint() noexcept { return *endpoint_; }
  [[nodiscard]] Transport& transport() noexcept { return *transport_; }
  // The carrier's address with `extra` of the owner's.
  Result<Blob> address(Blob extra);
  // Takes such an address apart: connects, and gives the peer's extra back.
  Result<Blob> connect(const Blob& address, Completion* done);
  Status signal_user(ByteSpan head, ByteSpan body) { return signal(Kind::user, head, body); }
  Status signal_own(ByteSpan bytes) { return signal(Kind::own, bytes, {}); }
  // The attached signal of a carrier's put, for the peer's owner.
  static Bytes own_signal(ByteSpan bytes);

  void on_signal(ByteSpan signal) override;
  void on_failed(const Status& reason) override { owner_.on_carrier_failed(reason); }

 private:
  enum class Kind : std::uint8_t { user = 1, own = 2 };
  CarrierLink(Transport& transport, Owner& owner) noexcept : transport_(&transport), owner_(owner) {}
  Status signal(Kind kind, ByteSpan head, ByteSpan body);

  Transport* transport_;
  Owner& owner_;
  std::unique_ptr<Endpoint> endpoint_;
};

}  // namespace hmc
