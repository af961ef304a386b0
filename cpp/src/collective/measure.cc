// Communicator::measure: latency and bandwidth of the links of a group, by messages, one pair of ranks at a time.
//
// Every step is a collective of the whole group, whose Schedule is empty on ranks outside the pair. So its messages take the paths
// of all collectives, and a rank that dies, stops or aborts ends it on all ranks. All ranks take the figures from one exchange, so
// their plans are the same.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/wire.h"
#include "collective/communicator_state.h"
#include "collective/execute.h"
#include "collective/figure_cache.h"
#include "collective/launch.h"
#include "collective/link_figures.h"
#include "collective/measure_plan.h"
#include "collective/member_calls.h"
#include "collective/places.h"
#include "collective/planning.h"
#include "comm/routing/local_transports.h"
#include "comm/topology/discover.h"
#include "device/runtime.h"
#include "hmc/version.h"

namespace hmc {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t probes = 3;          // before it is known how much to send
constexpr std::uint64_t small_message = 8;   // bytes
constexpr std::size_t longest_place = 1024;  // bytes of what a process says of a rank

// Settings that change the rate of links. Those of one process alone (its rank, its key) are none of them.
constexpr auto settings = std::to_array<std::string_view>(
    {"HMC_NICS", "HMC_SHM_PTRACE", "HMC_SHM_RING_BYTES", "HMC_SIM_DELAY_US", "HMC_SIM_PEERS", "HMC_STAGING_CHUNK_BYTES",
     "HMC_STAGING_SHARED", "HMC_TCP_BUFFER", "HMC_TCP_STREAMS", "HMC_TRANSPORTS", "HMC_VERBS_PEER_MEMORY", "HMC_VERBS_QUEUE_PAIRS",
     "HMC_VERBS_RAILS", "HMC_VERBS_TRAFFIC_CLASS"});

// What the links of a rank depend on, as its process sees it.
std::string place_of(const Group& group, std::uint32_t rank) {
  const Device device = group.rank(rank).device;
  std::string text = "host=" + host_name() + " device=" + device.str();
  if (const auto runtime = runtime_for(device); runtime.ok() && !device.is_cpu()) {
    for (const DeviceInfo& info : (*runtime)->enumerate().devices) {
      if (info.device == device) text += " (" + info.name + " " + info.pci + " " + info.provenance + ")";
    }
  }
  text += " transports=" + available_transports(group.context());
  if (!group.context().options().key.empty()) text += " key";  // what goes to other hosts may be encrypted
  for (const std::string_view name : settings) {
    if (const auto value = env_text(name)) text += " " + std::string(name) + "=" + *value;
  }
  if (text.size() <= longest_place) return text;
  const std::string rest = " and " + std::to_string(job_hash(text));  // settings that are cut off count as well
  return text.substr(0, longest_place - rest.size()) + rest;
}

// What a rank says before anything is measured.
struct Wish {
  bool refresh = false;
  std::string place;
};

Bytes encode(const Wish& wish) {
  Bytes bytes;
  WireWriter(bytes).u8(wish.refresh ? 1 : 0).text(wish.place);
  return bytes;
}

std::optional<Wish> decode_wish(ByteSpan bytes) {
  WireReader reader(bytes);
  Wish wish;
  wish.refresh = reader.u8() != 0;
  wish.place = reader.text(longest_place);
  if (!reader.finish()) return std::nullopt;
  for (char& c : wish.place) {  // of a peer: it stays one line of printable text
    if (c < ' ' || c > '~') c = '?';
  }
  return wish;
}

class Measuring {
 public:
  Measuring(std::shared_ptr<Group> group, Deadline deadline)
      : group_(std::move(group)), deadline_(deadline), pairs_(pairs_to_measure(islands_of(*group_))) {}

  // The figures that all ranks have from now on. Errors: as Communicator::measure.
  Result<Measurement> run(bool refresh) {
    HMC_TRY(meet(refresh));
    auto found = find();
    if (!found.ok()) return error_of_call(*group_, found.status());  // to the caller it is one call that failed
    return found;
  }

 private:
  // A rank's own data in a step.
  struct Buffers {
    Memory in, out;
  };

  [[nodiscard]] bool has_cache() const { return group_->local().front() == 0 && !pairs_.empty(); }
  [[nodiscard]] bool is_local(std::uint32_t rank) const { return std::ranges::binary_search(group_->local(), rank); }

  // The same bytes for all of this process's ranks.
  Result<std::vector<Bytes>> gather(const Bytes& mine) const {
    const std::vector<Bytes> all(group_->local().size(), mine);
    return gather_bytes(group_, group_->local(), all, CallKind::measure, deadline_);
  }
  [[nodiscard]] Status malformed(std::uint32_t rank) const {
    return {Code::protocol, "measure: " + group_->describe(rank) + " sent malformed data"};
  }

  // Learns what the figures depend on, and whether they are to be measured in any case.
  Status meet(bool refresh) {
    std::vector<Bytes> mine;
    for (const std::uint32_t rank : group_->local()) mine.push_back(encode(Wish{refresh, place_of(*group_, rank)}));
    HMC_ASSIGN(const auto said, gather_bytes(group_, group_->local(), std::move(mine), CallKind::measure, deadline_));
    const auto hosts = hosts_of(*group_);
    key_ = "hmc " + std::string(version()) + "\n";
    std::vector<std::uint32_t> processes;  // in the order of their first ranks: links within one are others
    for (std::uint32_t r = 0; r < group_->size(); ++r) {
      const auto wish = decode_wish(said[r]);
      if (!wish) return malformed(r);
      refresh_ = refresh_ || wish->refresh;
      auto process = std::ranges::find(processes, group_->rank(r).process);
      if (process == processes.end()) process = processes.insert(process, group_->rank(r).process);
      key_ += "rank " + std::to_string(r) + " on host " + std::to_string(hosts[r]) + " in process " +
              std::to_string(process - processes.begin()) + ": " + wish->place + "\n";
    }
    return {};
  }

  Result<Measurement> find() {
    std::optional<LinkFigures> figures;
    if (!refresh_) {
      HMC_ASSIGN(figures, ask_rank_0());
    }
    const bool cached = figures.has_value();
    if (!cached) {
      HMC_ASSIGN(figures, measure_all());
    }
    Measurement measurement = measurement_of(pairs_, *figures, cached);
    group_->schedules().adopt(measurement);
    if (!cached && has_cache()) write_cached_figures(key_, pairs_, *figures);
    return measurement;
  }

  // What rank 0 has in its cache file, if anything.
  Result<std::optional<LinkFigures>> ask_rank_0() const {
    std::optional<LinkFigures> known;
    if (has_cache()) known = read_cached_figures(key_, pairs_);
    HMC_ASSIGN(const auto said, gather(known ? encode(*known) : Bytes()));
    if (said[0].empty()) return std::optional<LinkFigures>();
    auto figures = decode_link_figures(said[0], pairs_.size());
    if (!figures) return malformed(0);
    return figures;
  }

  Result<std::optional<LinkFigures>> measure_all() {
    HMC_TRY(take_memory());
    // By rank of this process: the figures of the pairs whose first rank it is.
    LinkFigures own{
        .time = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count(),
        .pairs = {}};
    std::vector<LinkFigures> mine(group_->local().size(), own);
    for (const RankPair& pair : pairs_) {
      HMC_ASSIGN(const PairFigures figures, measure_pair(pair));
      if (is_local(pair.first)) mine[index_of(pair.first)].pairs.push_back(figures);
      HMC_TRY(step([this](std::uint32_t rank) { return plan_barrier(rank, group_->size()); }));
    }
    std::vector<Bytes> encoded;
    for (const LinkFigures& figures : mine) encoded.push_back(encode(figures));
    HMC_ASSIGN(const auto said, gather_bytes(group_, group_->local(), std::move(encoded), CallKind::measure, deadline_));
    std::vector<LinkFigures> by_rank;
    for (std::uint32_t r = 0; r < group_->size(); ++r) {
      auto figures = decode_link_figures(said[r], static_cast<std::size_t>(std::ranges::count(pairs_, r, &RankPair::first)));
      if (!figures) return malformed(r);
      by_rank.push_back(std::move(*figures));
    }
    LinkFigures all{.time = by_rank[0].time, .pairs = {}};
    std::vector<std::size_t> taken(group_->size());
    for (const RankPair& pair : pairs_) all.pairs.push_back(by_rank[pair.first].pairs[taken[pair.first]++]);
    return std::optional(std::move(all));
  }

  // All ranks have memory, or none goes on.
  Status take_memory() {
    Status taken;
    for (const std::uint32_t rank : group_->local()) {
      const Device device = group_->rank(rank).device;
      auto in = Memory::allocate(measured_buffer, device), out = Memory::allocate(measured_buffer, device);
      if (taken.ok() && !in.ok()) taken = in.status();
      if (taken.ok() && !out.ok()) taken = out.status();
      if (!taken.ok()) break;
      buffers_.push_back({std::move(in).value(), std::move(out).value()});
    }
    Bytes answer;
    WireWriter(answer).u8(taken.ok() ? 0 : 1);
    HMC_ASSIGN(const auto said, gather(answer));
    if (!taken.ok()) return taken.with_context("measure");
    for (std::uint32_t r = 0; r < group_->size(); ++r) {
      if (said[r] != Bytes{std::byte{0}})
        return Status(Code::out_of_memory, "measure: " + group_->describe(r) + " has no memory left to measure with");
    }
    return {};
  }

  Result<PairFigures> measure_pair(const RankPair& pair) {
    PairFigures found;
    HMC_TRY(step(pair, std::vector<Leg>{{true, measured_chunk}, {false, measured_chunk}}));  // connects, registers memory
    HMC_ASSIGN(const double trip, best_of(probes, pair, round_trips(1)));
    HMC_ASSIGN(const double chunk, best_of(probes, pair, {{true, measured_chunk}, {false, 0}}));
    HMC_ASSIGN(const Effort effort, agree_on(pair, Effort::of_link(trip, chunk - trip)));
    HMC_ASSIGN(found.latency, best_of(effort.repetitions, pair, round_trips(effort.trips)));
    found.latency = std::min(found.latency / (2 * effort.trips), longest_latency);
    const std::uint64_t bytes = effort.chunks * measured_chunk;
    HMC_ASSIGN(const double forward, best_of(effort.repetitions, pair, {{true, bytes}, {false, 0}}));
    HMC_ASSIGN(const double backward, best_of(effort.repetitions, pair, {{true, 0}, {false, bytes}}));
    // The bytes arrive one latency after they are sent, and the empty answer takes another. At most half of the time is taken off:
    // a latency with noise would else make a rate that no link has.
    const auto rate = [&](double seconds) {
      return static_cast<double>(bytes) / std::max({seconds - 2 * found.latency, seconds / 2, 1e-9});
    };
    found.forward = std::clamp(rate(forward), lowest_rate, highest_rate);
    found.backward = std::clamp(rate(backward), lowest_rate, highest_rate);
    return found;
  }

  static std::vector<Leg> round_trips(std::uint32_t count) {
    std::vector<Leg> legs;
    for (std::uint32_t i = 0; i < count; ++i) legs.insert(legs.end(), {{true, small_message}, {false, small_message}});
    return legs;
  }

  // Other programs only ever take time away. Ranks outside the pair do not know how often it repeats, so every rank makes as many
  // collectives as for the most repetitions.
  Result<double> best_of(std::uint32_t repetitions, const RankPair& pair, const std::vector<Leg>& legs) {
    double best = std::numeric_limits<double>::infinity();
    for (std::uint32_t i = 0; i < Effort::most_repetitions; ++i) {
      HMC_ASSIGN(const double seconds, timed(pair, i < repetitions ? legs : std::vector<Leg>()));
      if (i < repetitions) best = std::min(best, seconds);
    }
    return best;
  }

  // Seconds that the legs take, of use where the pair's first rank is.
  Result<double> timed(const RankPair& pair, const std::vector<Leg>& legs) {
    HMC_TRY(step(pair, legs.empty() ? legs : std::vector<Leg>{{false, 0}}));  // the second rank is here, too
    const auto begin = Clock::now();
    HMC_TRY(step(pair, legs));
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  // That of the first rank, on both. Other ranks need none.
  Result<Effort> agree_on(const RankPair& pair, const Effort& effort) {
    const std::vector<Leg> legs{{true, sizeof(std::uint64_t)}};
    const auto told = std::make_shared<std::array<std::byte, sizeof(std::uint64_t)>>();
    const auto heard = std::make_shared<std::array<std::byte, sizeof(std::uint64_t)>>();
    Bytes number;
    WireWriter(number).u64(effort.encode());
    std::ranges::copy(number, told->begin());
    HMC_TRY(step([&](std::uint32_t rank) { return plan_legs(rank, pair, legs); },
                 [&](std::uint32_t) { return std::pair(host_view(told), host_view(heard)); }));
    return is_local(pair.first) ? effort : Effort::decode(WireReader(*heard).u64());
  }
  static MemoryView host_view(const std::shared_ptr<std::array<std::byte, sizeof(std::uint64_t)>>& bytes) {
    MemoryView view(bytes->data(), bytes->size());
    view.owner = bytes;
    return view;
  }

  Status step(const RankPair& pair, const std::vector<Leg>& legs) {
    return step([&](std::uint32_t rank) { return plan_legs(rank, pair, legs); });
  }
  template <class Plan>
  Status step(const Plan& plan) {
    return step(plan, [this](std::uint32_t rank) {
      const Buffers& own = buffers_[index_of(rank)];
      return std::pair(MemoryView(own.in), MemoryView(own.out));
    });
  }
  // One collective. `views`: what a rank sends from, and receives into.
  template <class Plan, class Views>
  Status step(const Plan& plan, const Views& views) {
    std::vector<CollectiveCall> calls;
    for (const std::uint32_t rank : group_->local()) {
      auto [in, out] = views(rank);
      CollectiveBuffers buffers{std::move(in), std::move(out)};
      calls.push_back(
          {group_, rank, encode_call(CallKind::measure), std::make_shared<const Schedule>(plan(rank)), std::move(buffers)});
    }
    return run_collectives(std::move(calls), deadline_);
  }

  [[nodiscard]] std::size_t index_of(std::uint32_t rank) const {
    return static_cast<std::size_t>(std::ranges::lower_bound(group_->local(), rank) - group_->local().begin());
  }

  const std::shared_ptr<Group> group_;
  const Deadline deadline_;
  const std::vector<RankPair> pairs_;
  std::string key_;  // of the cache file
  bool refresh_ = false;
  std::vector<Buffers> buffers_;  // by index in local()
};

}  // namespace

Result<Measurement> Communicator::measure(const MeasureOptions& options, Deadline deadline) const {
  HMC_TRY(check(*this));
  const auto& group = state_->group;
  if (group->size() > max_planned_ranks) {
    return Status(Code::unsupported, "measure among " + std::to_string(group->size()) + " ranks: it covers up to " +
                                         std::to_string(max_planned_ranks) + " ranks");
  }
  return Measuring(group, deadline).run(options.refresh);
}

}  // namespace hmc
