// Link: its life.
#include "transport/verbs/link.h"

#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include "base/random.h"

namespace hmc::verbs {
namespace {

constexpr std::size_t page_bytes = 4096;
constexpr unsigned wanted_inline = 220;  // what fits into a few cache lines of a work request on common cards
constexpr std::uint32_t generation_stride = 0x3A5F1D;

}  // namespace

void Link::FreePages::operator()(std::byte* pages) const noexcept { std::free(pages); }

Result<std::shared_ptr<Link>> Link::create(const std::shared_ptr<Shared>& shared, Nic& nic, EndpointSink& sink) {
  const auto link = std::shared_ptr<Link>(new Link(shared, nic, sink));
  HMC_TRY(link->open());
  return link;
}

Link::~Link() { close(); }

Status Link::open() {
  constexpr std::size_t bytes = 2 * slots * slot_bytes;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(page_bytes, bytes)));
  if (!memory_) return Status(Code::out_of_memory, "no memory for the messages of a peer");
  HMC_ASSIGN(memory_handle_, nic_.register_memory(memory_.get(), bytes, IBV_ACCESS_LOCAL_WRITE));
  // A receive and a send at the least: some devices know no queue of none.
  HMC_ASSIGN(outbound_, QueuePair::create(nic_, QueuePair::Role::requester, depth, 1, wanted_inline));
  HMC_ASSIGN(inbound_, QueuePair::create(nic_, QueuePair::Role::target, 1, slots, 0));
  for (unsigned slot = slots; slot-- > 0;) free_slots_.push_back(slot);
  do {
    number_ = ++shared_->last_number;
  } while (!shared_->links.try_emplace(number_, weak_from_this()).second);
  own_.port = nic_.info();
  own_.outbound = outbound_->number();
  own_.inbound = inbound_->number();
  own_.sequence = static_cast<std::uint32_t>(random_u64()) & number_mask;
  return {};
}

Result<Blob> Link::address() {
  if (closed_) return Status(Code::closed, "the verbs endpoint is closed");
  Blob blob;
  blob.bytes = encode_address(own_);
  return blob;
}

Status Link::connect(const Blob& peer_address) {
  if (closed_) return Status(Code::closed, "the verbs endpoint is closed");
  if (ready_ || !failure_.ok()) return Status(Code::invalid_argument, "the verbs endpoint was connected before");
  HMC_ASSIGN(peer_, decode_address(peer_address.bytes));
  if (!peer_address.fds.empty()) return Status(Code::protocol, "malformed verbs address");
  if (peer_.port.ethernet != own_.port.ethernet || (own_.port.ethernet && is_ipv4(peer_.port.gid) != is_ipv4(own_.port.gid))) {
    return Status(Code::transport,
                  nic_.name() + " and the peer's port speak different networks (InfiniBand, RoCE over IPv4 or IPv6)");
  }
  HMC_TRY(restart_inbound());
  HMC_TRY(outbound_->connect(peer_.port, peer_.inbound, own_.sequence, shared_->patience));
  ready_ = true;
  shared_->engine->kick();  // who sleeps already has not asked this completion queue for an event
  return {};
}

// Of the first packet after the queue pair has started over `generation` times. Far from where the last one can have been.
std::uint32_t Link::sequence_of(std::uint32_t first, std::uint32_t generation) const noexcept {
  return (first + generation * generation_stride) & number_mask;
}

Result<std::unique_ptr<RemoteRegion>> Link::import_region(const Blob& exported) {
  HMC_ASSIGN(const RegionKeys keys, decode_region(exported.bytes));
  if (!exported.fds.empty()) return Status(Code::protocol, "malformed verbs region");
  if (keys.bytes != 0 && peer_.port.nic >= keys.keys.size()) {
    return Status(Code::protocol, "the peer's region is not registered with the port that this connection goes to");
  }
  return std::unique_ptr<RemoteRegion>(std::make_unique<VerbsRemoteRegion>(keys, keys.bytes == 0 ? 0 : keys.keys[peer_.port.nic]));
}

Status Link::not_ready() const {
  if (!failure_.ok()) return failure_;
  if (closed_) return Status(Code::closed, "the verbs endpoint is closed");
  return Status(Code::invalid_argument, "the verbs endpoint is not connected yet");
}

Status Link::flush(Completion* done) {
  if (!ready_) [[unlikely]]
    return not_ready();
  flushes_.push_back({last_number_ + 1, done});
  end_flushes();
  return {};
}

void Link::end_flushes() {
  if (flushes_.empty()) return;
  std::uint64_t oldest_put = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [number, op] : ops_) {
    if (!op->is_put) continue;
    oldest_put = number;
    break;
  }
  while (!flushes_.empty() && flushes_.front().before <= oldest_put) {
    Completion* done = flushes_.front().done;
    flushes_.pop_front();
    done->complete({});
  }
}

Status Link::cancel(Completion* done) {
  auto place = ops_.begin();
  while (place != ops_.end() && place->second->done != done) ++place;
  if (place == ops_.end()) return Status(Code::unsupported, "the operation completes by itself");
  // What the card has been given it carries out; nobody can take it back.
  if (place->second->begun) return Status(Code::unsupported, "part of the operation is with the network card already; it goes on");
  const std::unique_ptr<Op> op = std::move(place->second);
  ops_.erase(place);
  std::erase(turns_, op->number);
  op->done->complete(Status(Code::cancelled, "cancelled; nothing was written to the target"));
  end_flushes();
  return {};
}

void Link::end_all(const Status& reason) {
  ready_ = false;
  // First of all: afterwards no card touches the memory of any operation.
  outbound_.reset();
  inbound_.reset();
  const auto ops = std::exchange(ops_, {});
  const auto flushes = std::exchange(flushes_, {});
  turns_.clear();
  again_.clear();
  condemned_.clear();
  waiting_signals_.clear();
  for (const auto& [number, op] : ops) {
    op->done->complete(reason.with_context(std::to_string(op->moved) + " of " + std::to_string(op->bytes) + " bytes were moved"));
  }
  for (const Flush& flush : flushes) flush.done->complete(reason);
}

void Link::fail(const Status& reason) {
  if (!ready_) return;
  const auto keep = shared_from_this();
  failure_ = reason;
  end_all(reason);
  if (!closed_) sink_->on_failed(reason);
}

void Link::close() {
  if (closed_) return;
  closed_ = true;
  shared_->links.erase(number_);
  end_all(Status(Code::closed, "the verbs endpoint was closed"));
  if (memory_handle_ != nullptr && !nic_.forked()) nic_.api().dereg_mr(std::exchange(memory_handle_, nullptr));
}

}  // namespace hmc::verbs
