#include "transport/kit/carrier.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/wire.h"

namespace hmc {
namespace {

constexpr std::size_t max_carriers = 64;
constexpr std::size_t max_name = 32;
constexpr std::size_t max_domain = 1024;
constexpr std::size_t max_address = 64 << 10;

}  // namespace

Bytes Carriers::domain() const {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.u8(static_cast<std::uint8_t>(transports_.size()));
  for (const Transport* transport : transports_) writer.text(transport->name()).bytes(transport->domain());
  return bytes;
}

Carriers::Choice Carriers::choose(const PeerDomain& peer) const {
  Choice best;
  best.reach.reason = "no transport of CPU memory is common to both sides";
  WireReader reader(peer.domain);
  const std::size_t count = reader.u8();
  for (std::size_t i = 0; i < std::min(count, max_carriers) && reader.ok(); ++i) {
    const std::string name = reader.text(max_name);
    PeerDomain theirs = peer;
    theirs.domain = reader.bytes(max_domain);
    if (!reader.ok()) break;
    const auto own = std::ranges::find_if(transports_, [&](const Transport* transport) { return transport->name() == name; });
    if (own == transports_.end()) continue;
    Reach reach = (*own)->reach(theirs, Device::cpu(), Device::cpu());
    if (!reach.ok) {
      if (best.transport == nullptr) best.reach.reason = name + ": " + reach.reason;
    } else if (best.transport == nullptr || reach.bandwidth > best.reach.bandwidth) {
      best = {*own, theirs, std::move(reach)};
    }
  }
  return best;
}

Capabilities Carriers::capabilities() const {
  Capabilities least;
  bool first = true;
  for (const Transport* transport : transports_) {
    const Capabilities each = transport->capabilities();
    least.max_signal = first ? each.max_signal : std::min(least.max_signal, each.max_signal);
    least.eager_limit = first ? each.eager_limit : std::min(least.eager_limit, each.eager_limit);
    first = false;
  }
  least.max_signal -= std::min(least.max_signal, CarrierLink::signal_overhead);
  least.eager_limit = std::min(least.eager_limit, least.max_signal);
  return least;
}

Result<std::unique_ptr<CarrierLink>> CarrierLink::create(const Carriers& carriers, const PeerDomain& peer, Owner& owner) {
  const Carriers::Choice choice = carriers.choose(peer);
  if (choice.transport == nullptr) return Status(Code::unsupported, choice.reach.reason);
  auto link = std::unique_ptr<CarrierLink>(new CarrierLink(*choice.transport, owner));
  HMC_ASSIGN(link->endpoint_, choice.transport->create_endpoint(choice.peer, *link));
  return link;
}

// wire{text carrier, blob its address, u8 its descriptors, blob extra}; the carrier's descriptors come first.
Result<Blob> CarrierLink::address(Blob extra) {
  HMC_ASSIGN(Blob blob, endpoint_->address());
  Bytes bytes;
  WireWriter(bytes).text(transport_->name()).bytes(blob.bytes).u8(static_cast<std::uint8_t>(blob.fds.size())).bytes(extra.bytes);
  blob.bytes = std::move(bytes);
  for (UniqueFd& fd : extra.fds) blob.fds.push_back(std::move(fd));
  return blob;
}

Result<Blob> CarrierLink::connect(const Blob& address, Completion* done) {
  WireReader reader(address.bytes);
  const std::string name = reader.text(max_name);
  const ByteSpan inner = reader.bytes(max_address);
  const std::size_t inner_fds = reader.u8();
  const ByteSpan own = reader.bytes(max_address);
  if (!reader.finish() || inner_fds > address.fds.size()) return Status(Code::protocol, "malformed address");
  if (name != transport_->name()) {
    return Status(Code::transport, "this side would use " + std::string(transport_->name()) + " underneath, the peer " + name);
  }
  Blob theirs, extra;
  theirs.bytes.assign(inner.begin(), inner.end());
  extra.bytes.assign(own.begin(), own.end());
  for (std::size_t i = 0; i < address.fds.size(); ++i) {
    UniqueFd copy = address.fds[i].duplicate();
    if (!copy) return errno_status("duplicating a descriptor", errno);
    (i < inner_fds ? theirs : extra).fds.push_back(std::move(copy));
  }
  HMC_TRY(endpoint_->connect(theirs, done));
  return extra;
}

Status CarrierLink::signal(Kind kind, ByteSpan head, ByteSpan body) {
  std::array<std::byte, 256> small;
  if (head.size() < small.size()) {
    small[0] = static_cast<std::byte>(kind);
    std::ranges::copy(head, small.begin() + 1);
    return endpoint_->signal(ByteSpan(small.data(), head.size() + 1), body);
  }
  Bytes large;
  large.reserve(head.size() + 1);
  large.push_back(static_cast<std::byte>(kind));
  large.insert(large.end(), head.begin(), head.end());
  return endpoint_->signal(large, body);
}

Bytes CarrierLink::own_signal(ByteSpan bytes) {
  Bytes framed;
  framed.reserve(bytes.size() + 1);
  framed.push_back(static_cast<std::byte>(Kind::own));
  framed.insert(framed.end(), bytes.begin(), bytes.end());
  return framed;
}

void CarrierLink::on_signal(ByteSpan signal) {
  if (!signal.empty() && signal[0] == static_cast<std::byte>(Kind::user)) return owner_.on_user_signal(signal.subspan(1));
  if (!signal.empty() && signal[0] == static_cast<std::byte>(Kind::own)) return owner_.on_own_signal(signal.subspan(1));
  owner_.on_carrier_failed(Status(Code::protocol, "the peer sent a signal of an unknown kind"));
}

}  // namespace hmc
