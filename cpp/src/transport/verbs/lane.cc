#include "transport/verbs/lane.h"

#include <algorithm>
#include <utility>

#include "base/random.h"

namespace hmc::verbs {
namespace {

constexpr unsigned wanted_inline = 220;  // what fits into a few cache lines of a work request on common cards
constexpr std::uint32_t generation_stride = 0x3A5F1D;
constexpr double usual_rate = 1e9;  // where the port does not say
constexpr std::size_t measured_piece = 32 << 10;
constexpr std::size_t sample_bytes = 1 << 20;

// Of the first packet after a queue pair has started over `generation` times. Far from where the last one can have been.
std::uint32_t sequence_of(std::uint32_t first, std::uint32_t generation) noexcept {
  return (first + generation * generation_stride) & number_mask;
}

}  // namespace

Result<std::unique_ptr<Lane>> Lane::create(Nic& nic, std::size_t index, std::uint64_t id, unsigned receives) {
  auto lane = std::unique_ptr<Lane>(new Lane(nic, index, id));
  // A receive and a send at the least: some devices know no queue of none.
  HMC_ASSIGN(lane->outbound, QueuePair::create(nic, QueuePair::Role::requester, depth, 1, wanted_inline));
  HMC_ASSIGN(lane->inbound, QueuePair::create(nic, QueuePair::Role::target, 1, receives, 0));
  lane->own.port = nic.info();
  lane->own.outbound = lane->outbound->number();
  lane->own.inbound = lane->inbound->number();
  lane->own.sequence = static_cast<std::uint32_t>(random_u64()) & number_mask;
  lane->rate_ = nic.info().rate != 0 ? static_cast<double>(nic.info().rate) : usual_rate;
  return lane;
}

std::size_t Lane::piece_bytes() const noexcept {
  constexpr std::size_t least = 64 << 10;
  return std::min(std::max(window_of(rate_) / 4, least), nic.max_message());
}

LaneLoad Lane::load(int numa_node) const noexcept {
  return {rate_, bytes_posted_, numa_node < 0 || nic.numa_node() < 0 || nic.numa_node() == numa_node};
}

Record Lane::pop() {
  const Record one = record(oldest);
  oldest = (oldest + 1) & sequence_mask;
  return one;
}

void Lane::note_posted(const Record& one) {
  record(next) = one;
  next = (next + 1) & sequence_mask;
  if (one.kind == Record::Kind::message) return;
  ++data_posted_;
  bytes_posted_ += one.bytes;
}

void Lane::forget(const Record& one) {
  if (one.kind == Record::Kind::message) return;
  --data_posted_;
  bytes_posted_ -= one.bytes;
  if (one.bytes >= measured_piece) measure(one.bytes);
  if (bytes_posted_ == 0) since_ = {};
}

// Between completions while there is more to do, so that neither a pause nor the way there counts.
void Lane::measure(std::size_t bytes) {
  const auto now = std::chrono::steady_clock::now();
  if (since_ == std::chrono::steady_clock::time_point{}) {
    since_ = now;
    measured_ = 0;
    return;
  }
  measured_ += bytes;
  if (measured_ < sample_bytes) return;
  const double seconds = std::chrono::duration<double>(now - std::exchange(since_, now)).count();
  if (seconds > 0) rate_ += (static_cast<double>(std::exchange(measured_, 0)) / seconds - rate_) / 4;
}

Status Lane::connect_outbound(const Patience& patience) {
  return outbound->connect(peer.port, peer.inbound, sequence_of(own.sequence, generation), patience);
}

Status Lane::connect_inbound(const Patience& patience) {
  return inbound->connect(peer.port, peer.outbound, sequence_of(peer.sequence, inbound_generation), patience);
}

}  // namespace hmc::verbs
