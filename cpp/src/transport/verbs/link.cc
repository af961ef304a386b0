// Link: its life.
#include "transport/verbs/link.h"

#include <utility>

namespace hmc::verbs {

Result<std::shared_ptr<Link>> Link::create(const std::shared_ptr<Shared>& shared, const std::vector<Nic*>& nics,
                                           EndpointSink& sink) {
  const auto link = std::shared_ptr<Link>(new Link(shared, sink));
  do {
    link->number_ = ++shared->last_number;
  } while (!shared->links.try_emplace(link->number_, link).second);
  HMC_TRY(link->keeper_.open(nics, link->number_));
  return link;
}

Link::~Link() { close(); }

Result<Blob> Link::address() {
  if (stopped()) return not_ready();
  Address address;
  address.sink = outbox_.memory.sink();
  for (const auto& rail : rails_) address.rails.push_back(rail->own);
  Blob blob;
  blob.bytes = encode_address(address);
  return blob;
}

// The queue pairs are connected at once; the peer's may not be yet, which comm waits for.
Status Link::connect(const Blob& peer_address, Completion* done) {
  HMC_ASSIGN(const Address peer, decode_address(peer_address.bytes));
  if (!peer_address.fds.empty()) return Status(Code::protocol, "malformed verbs address");
  HMC_TRY(begin_connect(done));
  if (Status connected = keeper_.connect(peer); !connected.ok()) {
    abandon_connect();
    return connected;
  }
  const auto keep = shared_from_this();
  engine_->kick();  // a waiter that sleeps already has not armed this completion queue
  connected({});
  advance();
  return {};
}

Result<std::unique_ptr<RemoteRegion>> Link::import_region(const Blob& exported) {
  HMC_ASSIGN(RegionKeys keys, decode_region(exported.bytes));
  if (!exported.fds.empty()) return Status(Code::protocol, "malformed verbs region");
  auto region = std::make_unique<VerbsRemoteRegion>(std::move(keys));
  for (const auto& rail : rails_) {
    if (region->bytes() == 0 || region->known_to(rail->peer.port)) continue;
    return region->on_device()
               ? Status(Code::unsupported, "the peer's card that this connection goes to does not reach its device")
               : Status(Code::protocol, "the peer's region is not registered with a port that this connection goes to");
  }
  return std::unique_ptr<RemoteRegion>(std::move(region));
}

Status Link::check(const Run& run, bool is_put) const {
  if (is_put && !remote_of(run).writable()) {
    return Status(Code::invalid_argument, "put into a region that its owner exported for reading only");
  }
  if (!local_of(run).on_device()) return {};
  for (const auto& rail : rails_) {
    if (!local_of(run).known_to(rail->nic))
      return Status(Code::unsupported, rail->nic.name() + " does not reach memory of " + run.local->view().span.device.str());
  }
  return {};
}

Status Link::withdraw(kit::Operation& operation) {
  HMC_TRY(EndpointBase::withdraw(operation));  // the card carries out what it has been given
  transfers_.withdraw(operation.number);
  shared_->held -= std::erase(held_, operation.number);
  return {};
}

void Link::stop() {
  keeper_.stop();  // first of all
  transfers_.stop();
  outbox_.resend.clear();
  shared_->held -= held_.size();
  held_.clear();
  if (!closed()) return;
  shared_->links.erase(number_);
  outbox_.memory.deregister();
}

}  // namespace hmc::verbs
