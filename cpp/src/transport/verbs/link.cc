// Link: its life.
#include "transport/verbs/link.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

namespace hmc::verbs {
namespace {

constexpr std::size_t page_bytes = 4096;

bool same_network(const PortInfo& left, const PortInfo& right) noexcept {
  return left.ethernet == right.ethernet && (!left.ethernet || is_ipv4(left.gid) == is_ipv4(right.gid));
}

}  // namespace

void Link::FreePages::operator()(std::byte* pages) const noexcept { std::free(pages); }

Result<std::shared_ptr<Link>> Link::create(const std::shared_ptr<Shared>& shared, const std::vector<Nic*>& nics,
                                           EndpointSink& sink) {
  const auto link = std::shared_ptr<Link>(new Link(shared, sink));
  HMC_TRY(link->open(nics));
  return link;
}

Link::~Link() { close(); }

// Beside the slots for signals and credit: every lane can be told by every other that one has been left, and made anew.
Status Link::open(const std::vector<Nic*>& nics) {
  const auto count = static_cast<unsigned>(nics.size());
  notes_ = count > 1 ? 2 * count : 0;  // that may wait on a lane
  receive_slots_ = slots + count * notes_;
  reserved_slots_ = spare_slots + count * notes_ / 2;
  const unsigned send_slots = credits + reserved_slots_;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(page_bytes, (receive_slots_ + send_slots) * slot_bytes)));
  sink_page_.reset(static_cast<std::byte*>(std::aligned_alloc(page_bytes, page_bytes)));
  if (!memory_ || !sink_page_) return Status(Code::out_of_memory, "no memory for the messages of a peer");
  for (unsigned slot = send_slots; slot-- > 0;) free_sends_.push_back(slot);
  for (unsigned slot = receive_slots_; slot-- > 0;) free_receives_.push_back(slot);
  do {
    number_ = ++shared_->last_number;
  } while (!shared_->links.try_emplace(number_, weak_from_this()).second);
  for (Nic* nic : nics) {
    const std::uint64_t id = std::uint64_t{number_} << 32 | std::uint64_t{lanes_.size()} << lane_shift;
    auto lane = Lane::create(*nic, lanes_.size(), id, slots + notes_);
    if (!lane.ok() && lanes_.empty()) return lane.status();
    if (!lane.ok()) break;  // as many as the card has room for
    (*lane)->rank = last_rank_ = static_cast<std::uint32_t>(lanes_.size());
    lanes_.push_back(std::move(*lane));
  }
  return register_messages();
}

Status Link::register_messages() {
  const std::size_t bytes = (receive_slots_ + credits + reserved_slots_) * slot_bytes;
  for (const auto& lane : lanes_) {
    const auto known = std::ranges::find(lanes_, &lane->nic, [](const auto& other) { return &other->nic; });
    if (known->get() != lane.get()) {
      lane->memory_key = (*known)->memory_key;
      lane->sink_key = (*known)->sink_key;
      lane->own.sink = (*known)->own.sink;
      continue;
    }
    HMC_ASSIGN(ibv_mr * memory, lane->nic.register_memory(memory_.get(), bytes, IBV_ACCESS_LOCAL_WRITE));
    handles_.push_back({&lane->nic, memory});
    HMC_ASSIGN(ibv_mr * sink,
               lane->nic.register_memory(sink_page_.get(), page_bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
    handles_.push_back({&lane->nic, sink});
    lane->memory_key = memory->lkey;
    lane->sink_key = sink->lkey;
    lane->own.sink = sink->rkey;
  }
  return {};
}

Result<Blob> Link::address() {
  if (closed_) return Status(Code::closed, "the verbs endpoint is closed");
  Address address;
  address.sink = reinterpret_cast<std::uintptr_t>(sink_page_.get());
  for (const auto& lane : lanes_) address.lanes.push_back(lane->own);
  Blob blob;
  blob.bytes = encode_address(address);
  return blob;
}

Status Link::connect(const Blob& peer_address) {
  if (closed_) return Status(Code::closed, "the verbs endpoint is closed");
  if (ready_ || !failure_.ok()) return Status(Code::invalid_argument, "the verbs endpoint was connected before");
  HMC_ASSIGN(const Address peer, decode_address(peer_address.bytes));
  if (!peer_address.fds.empty()) return Status(Code::protocol, "malformed verbs address");
  peer_sink_ = peer.sink;
  if (lanes_.size() > peer.lanes.size()) lanes_.resize(peer.lanes.size());
  std::vector<Status> failures(lanes_.size());
  for (const auto& lane : lanes_) {
    lane->peer = peer.lanes[lane->index];
    Status& failure = failures[lane->index];
    if (!same_network(lane->peer.port, lane->own.port)) {
      failure = Status(Code::transport,
                       lane->nic.name() + " and the peer's port speak different networks (InfiniBand, RoCE over IPv4 or IPv6)");
    }
    if (failure.ok() && lanes_.size() > 1) failure = post_receives(*lane, notes_);
    if (failure.ok() && lane->index == 0) failure = ready_for_messages();
    if (failure.ok()) failure = lane->connect_inbound(shared_->patience);
    if (failure.ok()) failure = lane->connect_outbound(shared_->patience);
    if (lane->index == 0) HMC_TRY(Status(failure));
  }
  const auto order = [](const LaneAddress& end) { return std::tie(end.sequence, end.outbound, end.port.gid); };
  leads_ = order(lanes_.front()->own) > order(lanes_.front()->peer);
  ready_ = true;
  for (std::size_t i = 1; i < failures.size(); ++i) {
    if (!failures[i].ok()) lose(*lanes_[i], failures[i]);
  }
  advance();
  shared_->engine->kick();  // who sleeps already has not asked this completion queue for an event
  return {};
}

Result<std::unique_ptr<RemoteRegion>> Link::import_region(const Blob& exported) {
  HMC_ASSIGN(RegionKeys keys, decode_region(exported.bytes));
  if (!exported.fds.empty()) return Status(Code::protocol, "malformed verbs region");
  auto region = std::make_unique<VerbsRemoteRegion>(std::move(keys));
  for (const auto& lane : lanes_) {
    if (region->bytes() == 0 || region->known_to(lane->peer.port)) continue;
    return region->on_device()
               ? Status(Code::unsupported, "the peer's card that this connection goes to does not reach its device")
               : Status(Code::protocol, "the peer's region is not registered with a port that this connection goes to");
  }
  return std::unique_ptr<RemoteRegion>(std::move(region));
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
  shared_->held -= std::erase(held_, op->number);
  op->done->complete(Status(Code::cancelled, "cancelled; nothing was written to the target"));
  end_flushes();
  return {};
}

void Link::end_all(const Status& reason) {
  ready_ = false;
  for (Engine::TimerId* timer : {&return_timer_, &watch_timer_}) {
    const Engine::TimerId set = std::exchange(*timer, 0);
    if (set != 0 && !shared_->engine->forked()) shared_->engine->cancel_timer(set);
  }
  // First of all: afterwards no card touches the memory of any operation.
  for (const auto& lane : lanes_) {
    lane->outbound.reset();
    lane->inbound.reset();
    lane->again.clear();
    lane->settles.clear();
  }
  const auto ops = std::exchange(ops_, {});
  const auto flushes = std::exchange(flushes_, {});
  turns_.clear();
  shared_->held -= held_.size();
  held_.clear();
  redo_.clear();
  resend_.clear();
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
  for (const Registered& each : std::exchange(handles_, {})) {
    if (!each.nic->forked()) each.nic->api().dereg_mr(each.handle);
  }
}

}  // namespace hmc::verbs
