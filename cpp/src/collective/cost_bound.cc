#include "collective/cost_bound.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <vector>

namespace hmc {
namespace {

// Bytes, as doubles: their sums may exceed 64 bits.
struct Volume {
  double sent = 0, received = 0;            // by each rank but the root
  double root_sent = 0, root_received = 0;  // by the root
  double all = 0;                           // by all ranks together
};

Volume alike(double sent, double received, double all) { return {sent, received, sent, received, all}; }

Volume volume_of(CallKind kind, double bytes, double ranks) {
  const double others = bytes * (ranks - 1), block = bytes / ranks, other_blocks = others / ranks;
  switch (kind) {
    case CallKind::all_reduce:
      return alike(bytes, bytes, 2 * others);
    case CallKind::reduce_scatter:
      return alike(other_blocks, block, others);
    case CallKind::all_gather:
      return alike(block, other_blocks, others);
    case CallKind::all_to_all:
    case CallKind::all_to_all_relayed:
      return alike(other_blocks, other_blocks, others);
    case CallKind::broadcast:
      return {0, bytes, bytes, 0, others};
    case CallKind::reduce:
      return {bytes, 0, 0, bytes, others};
    case CallKind::scatter:
      return {0, block, other_blocks, 0, other_blocks};
    case CallKind::gather:
      return {block, 0, 0, other_blocks, other_blocks};
    case CallKind::barrier:
    case CallKind::all_to_all_v:
    case CallKind::exchange:
    case CallKind::exchange_bytes:
    case CallKind::split:
    case CallKind::topology:
    case CallKind::measure:
    case CallKind::share_memory:
      break;
  }
  return {};
}

struct Least {
  double latency, overhead;
};

Least least(const CostModel& model) {
  Least found{model.link(0, 1).latency, model.rank(0).overhead};
  for (std::uint32_t from = 0; from < model.size(); ++from) {
    found.overhead = std::min(found.overhead, model.rank(from).overhead);
    for (std::uint32_t to = 0; to < model.size(); ++to) {
      if (from != to) found.latency = std::min(found.latency, model.link(from, to).latency);
    }
  }
  return found;
}

double volume_seconds(const Volume& volume, std::uint32_t root, const CostModel& model) {
  double seconds = 0, all_out = 0, all_in = 0;
  for (std::uint32_t r = 0; r < model.size(); ++r) {
    double out = 0, in = 0;
    for (std::uint32_t other = 0; other < model.size(); ++other) {
      if (other == r) continue;
      out += model.link(r, other).bandwidth;
      in += model.link(other, r).bandwidth;
    }
    out = std::min(out, model.rank(r).injection);
    in = std::min(in, model.rank(r).injection);
    seconds = std::max(
        {seconds, (r == root ? volume.root_sent : volume.sent) / out, (r == root ? volume.root_received : volume.received) / in});
    all_out += out;
    all_in += in;
  }
  return std::max({seconds, volume.all / all_out, volume.all / all_in});
}

// A rank that has the message sends it on every `overhead`; a message takes an overhead at each end and its latency.
double broadcast_seconds(std::uint32_t ranks, const Least& message) {
  std::priority_queue<double, std::vector<double>, std::greater<>> next_send;
  next_send.push(0);
  double informed = 0;
  for (std::uint32_t rank = 1; rank < ranks; ++rank) {
    const double begin = next_send.top();
    next_send.pop();
    informed = begin + message.latency + 2 * message.overhead;
    next_send.push(begin + message.overhead);
    next_send.push(informed);
  }
  return informed;
}

}  // namespace

double lower_bound(CallKind kind, std::uint64_t bytes, std::uint32_t root, const CostModel& model) {
  const auto size = static_cast<double>(model.size());
  double seconds = 0;
  if (reduces(kind)) {
    double rate = 0;
    for (std::uint32_t r = 0; r < model.size(); ++r) rate += model.rank(r).reduction;
    seconds = static_cast<double>(bytes) * size / rate;
  }
  if (model.size() < 2) return seconds;
  const Least message = least(model);
  const double volume = volume_seconds(volume_of(kind, static_cast<double>(bytes), size), root, model);
  return std::max({seconds, message.latency + volume, broadcast_seconds(model.size(), message)});
}

}  // namespace hmc
