// What Members tell each other: bytes, ConnBuffers, and who goes to which group.
#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "base/wire.h"
#include "collective/batch.h"
#include "collective/communicator_state.h"
#include "collective/execute.h"
#include "collective/group_numbers.h"
#include "collective/member_calls.h"
#include "collective/records.h"
#include "comm/buffers/importing.h"
#include "hmc/communicator.h"

namespace hmc {
namespace {

// What one rank's all-gather reads and writes. Shared with the collective, which may outlive the call when its deadline passes.
struct Gathered {
  Bytes in, out;
};

// One all-gather of each of this process's `ranks`; entry i of the result belongs to ranks[i].
Result<std::vector<std::shared_ptr<Gathered>>> gather_once(const std::shared_ptr<Group>& group,
                                                           std::span<const std::uint32_t> ranks, std::vector<Bytes> mine,
                                                           std::span<const std::uint64_t> counts, CallKind what,
                                                           Deadline deadline) {
  std::uint64_t total = 0;
  for (const std::uint64_t count : counts) total += count;
  std::vector<std::shared_ptr<Gathered>> data;
  std::vector<CollectiveCall> calls;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    auto schedule = std::make_shared<const Schedule>(plan_all_gather(ranks[i], group->size(), counts));
    data.push_back(std::make_shared<Gathered>(Gathered{std::move(mine[i]), Bytes(total)}));
    CollectiveBuffers buffers{MemoryView(data.back()->in.data(), data.back()->in.size()),
                              MemoryView(data.back()->out.data(), data.back()->out.size()),
                              {}};
    buffers.in.owner = data.back();
    buffers.out.owner = data.back();
    calls.push_back({group, ranks[i], encode_call(what), std::move(schedule), std::move(buffers)});
  }
  HMC_TRY(run_collectives(std::move(calls), deadline));
  return data;
}

Bytes little_endian(std::uint64_t value) {
  Bytes bytes;
  WireWriter(bytes).u64(value);
  return bytes;
}

std::vector<Bytes> split_up(const Bytes& packed, std::span<const std::uint64_t> counts) {
  std::vector<Bytes> values;
  auto at = packed.begin();
  for (const std::uint64_t count : counts) {
    values.emplace_back(at, at + static_cast<std::ptrdiff_t>(count));
    at += static_cast<std::ptrdiff_t>(count);
  }
  return values;
}

}  // namespace

// Sizes first, then the bytes: with the sizes known the second all-gather is a fixed plan, and nobody allocates for what a peer
// claims beyond the limit.
Result<std::vector<Bytes>> gather_bytes(const std::shared_ptr<Group>& group, std::span<const std::uint32_t> ranks,
                                        std::vector<Bytes> mine, CallKind what, Deadline deadline) {
  HMC_TRY(BatchState::refuse(*group, name_of(what), "end the batch before"));
  std::vector<Bytes> sizes;
  for (const auto& bytes : mine) sizes.push_back(little_endian(bytes.size()));
  const std::vector<std::uint64_t> eight(group->size(), 8);
  HMC_ASSIGN(const auto gathered, gather_once(group, ranks, std::move(sizes), eight, what, deadline));
  std::vector<std::uint64_t> counts;
  WireReader reader(gathered.front()->out);
  for (std::uint32_t r = 0; r < group->size(); ++r) {
    counts.push_back(reader.u64());
    if (counts.back() > max_exchange_bytes) {
      return Status(Code::protocol, std::string(name_of(what)) + ": " + group->describe(r) + " announced " +
                                        std::to_string(counts.back()) + " bytes");
    }
  }
  const auto values = gather_once(group, ranks, std::move(mine), counts, what, deadline);
  if (!values.ok()) return error_of_call(*group, values.status());
  return split_up(values->front()->out, counts);
}

namespace {

job::Offer offer_of(const ConnBuffer& buffer) {
  const auto descriptor =
      buffer.valid() ? buffer.descriptor() : Result<Descriptor>(Status(Code::invalid_argument, "the ConnBuffer is empty"));
  if (!descriptor) return {descriptor.status(), {}, 0, 0};
  return {{}, *descriptor, buffer.offset(), buffer.size()};
}

}  // namespace

namespace {

Status check_size(std::span<const std::byte> bytes) {
  if (bytes.size() <= max_exchange_bytes) return {};
  return Status(Code::invalid_argument, "exchange_bytes takes at most " + std::to_string(max_exchange_bytes) +
                                            " bytes per rank, not " + std::to_string(bytes.size()));
}

}  // namespace

Result<std::vector<std::vector<std::byte>>> Member::exchange_bytes(std::span<const std::byte> bytes, Deadline deadline) const {
  HMC_TRY(check(state_));
  HMC_TRY(check_size(bytes));
  const auto rank = static_cast<std::uint32_t>(rank_);
  return gather_bytes(state_->group, std::span(&rank, 1), {Bytes(bytes.begin(), bytes.end())}, CallKind::exchange_bytes, deadline);
}

Result<std::vector<std::vector<std::byte>>> Communicator::exchange_bytes(std::span<const MemberBytes> members,
                                                                         Deadline deadline) const {
  HMC_TRY(check(state_));
  HMC_ASSIGN(const auto order, each_local_once(*this, "exchange_bytes", members));
  std::vector<Bytes> mine;
  for (const std::size_t at : order) {
    const auto bytes = members[at].bytes;
    HMC_TRY(check_size(bytes));
    mine.emplace_back(bytes.begin(), bytes.end());
  }
  return gather_bytes(state_->group, state_->group->local(), std::move(mine), CallKind::exchange_bytes, deadline);
}

namespace {

// One RemoteBuffer per rank; mine[i] is what ranks[i] gives.
Result<std::vector<RemoteBuffer>> exchange_of(const std::shared_ptr<Group>& group, std::span<const std::uint32_t> ranks,
                                              std::vector<Bytes> mine, Deadline deadline) {
  HMC_ASSIGN(const auto offers, gather_bytes(group, ranks, std::move(mine), CallKind::exchange, deadline));
  std::vector<std::shared_ptr<PeerState>> peers;
  std::vector<Descriptor> descriptors;
  std::vector<job::Offer> parsed;
  for (std::uint32_t r = 0; r < group->size(); ++r) {
    auto offer = job::decode_offer(offers[r]);
    if (!offer) return Status(Code::protocol, "exchange: " + group->describe(r) + " sent a malformed descriptor");
    if (!offer->error.ok()) return offer->error.with_context("exchange: " + group->describe(r) + " gave no buffer");
    peers.push_back(group->rank(r).peer);
    descriptors.push_back(offer->descriptor);
    parsed.push_back(std::move(*offer));
  }
  HMC_ASSIGN(const auto imported, import_buffers(peers, descriptors, deadline));
  std::vector<RemoteBuffer> remotes;
  for (std::uint32_t r = 0; r < group->size(); ++r) {
    auto slice = imported[r].slice(parsed[r].offset, parsed[r].size);
    if (!slice) return slice.status().with_context("exchange: " + group->describe(r));
    group->owners().note(*slice, group->rank(r).peer.get(), r);
    remotes.push_back(std::move(*slice));
  }
  return remotes;
}

}  // namespace

Result<std::vector<RemoteBuffer>> Member::exchange(const ConnBuffer& buffer, Deadline deadline) const {
  HMC_TRY(check(state_));
  const auto rank = static_cast<std::uint32_t>(rank_);
  return exchange_of(state_->group, std::span(&rank, 1), {encode(offer_of(buffer))}, deadline);
}

Result<std::vector<RemoteBuffer>> Communicator::exchange(std::span<const MemberBuffer> members, Deadline deadline) const {
  HMC_TRY(check(state_));
  HMC_ASSIGN(const auto order, each_local_once(*this, "exchange", members));
  std::vector<Bytes> mine;
  for (const std::size_t at : order) mine.push_back(encode(offer_of(members[at].buffer)));
  return exchange_of(state_->group, state_->group->local(), std::move(mine), deadline);
}

namespace {

// What a process answers once it has seen which groups there will be.
constexpr std::byte said_free{1};    // the number of its new group is free here
constexpr std::byte said_mapped{2};  // it has mapped the segment of its new group

// The group of `color` under `wishes`, or null when this process is in none. Every rank computes the same ranks.
std::shared_ptr<Group> group_of(const std::shared_ptr<Group>& parent, std::span<const job::Wish> wishes, int color,
                                std::uint32_t scope) {
  std::vector<std::uint32_t> members;
  for (std::uint32_t r = 0; r < wishes.size(); ++r) {
    if (wishes[r].color == color) members.push_back(r);
  }
  std::stable_sort(members.begin(), members.end(), [&](std::uint32_t a, std::uint32_t b) { return wishes[a].key < wishes[b].key; });
  std::vector<RankInfo> ranks;
  std::vector<std::uint32_t> local;
  for (const std::uint32_t old : members) {
    const auto& mine = parent->local();
    if (std::binary_search(mine.begin(), mine.end(), old)) local.push_back(static_cast<std::uint32_t>(ranks.size()));
    ranks.push_back(parent->rank(old));
    ranks.back().origin = old;
  }
  return std::make_shared<Group>(parent->world(), child_id(parent->id(), scope, color), scope, std::move(ranks), std::move(local),
                                 false);
}

// Each rank says the same byte strings for all of this process's ranks.
Result<std::vector<Bytes>> gather_all(const std::shared_ptr<Group>& group, std::vector<Bytes> mine, Deadline deadline) {
  return gather_bytes(group, group->local(), std::move(mine), CallKind::split, deadline);
}

}  // namespace

Result<Communicator> Communicator::split(std::span<const int> colors, std::span<const int> keys, Deadline deadline) const {
  if (!state_) return Status(Code::invalid_argument, "the Communicator is empty");
  const auto& group = state_->group;
  HMC_TRY(group->open());
  const auto& local = group->local();
  if (colors.size() != local.size() || keys.size() != local.size()) {
    return Status(Code::invalid_argument, "split takes one color and one key per local Member: " + std::to_string(local.size()) +
                                              ", not " + std::to_string(colors.size()) + " and " + std::to_string(keys.size()));
  }
  // Group numbers must be free in every process of a group, and several threads may split several Communicators at once: rank 0
  // picks at random, everybody looks, and in the unlikely case that somebody has it already they do it again.
  constexpr int attempts = 16;
  for (int attempt = 0; attempt < attempts; ++attempt) {
    std::vector<Bytes> mine;
    for (std::size_t i = 0; i < local.size(); ++i) mine.push_back(encode(job::Wish{colors[i], keys[i], random_scope()}));
    HMC_ASSIGN(const auto said, gather_all(group, std::move(mine), deadline));
    std::vector<job::Wish> wishes;
    std::map<int, std::uint32_t> scope_of;  // colors in order
    std::map<std::uint32_t, int> color_of_process;
    for (std::uint32_t r = 0; r < group->size(); ++r) {
      const auto decoded = job::decode_wish(said[r]);
      if (!decoded) return Status(Code::protocol, "split: malformed data of " + group->describe(r));
      const job::Wish wish = *decoded;
      wishes.push_back(wish);
      if (wish.color < 0) continue;
      scope_of.emplace(wish.color, 0);
      const auto [other, fresh] = color_of_process.emplace(group->rank(r).process, wish.color);
      if (!fresh && other->second != wish.color) {
        return Status(Code::invalid_argument, "split: the Members of one process go to one new group or to none; those of " +
                                                  group->describe(r) + " name colors " + std::to_string(other->second) + " and " +
                                                  std::to_string(wish.color));
      }
    }
    std::uint32_t next = wishes.front().scope;
    for (auto& [color, scope] : scope_of) scope = next++ & ~collective_scope_bit;
    bool free = true;
    Communicator made;
    std::shared_ptr<Group> child;
    std::shared_ptr<fused::Segment> segment;
    const auto own_color = color_of_process.find(group->rank(local.front()).process);
    if (own_color != color_of_process.end()) {
      const int color = own_color->second;
      const std::uint32_t scope = scope_of.at(color);
      {
        const auto lock = group->engine()->lock();
        free = group->world()->reserve_scope(scope);
      }
      child = group_of(group, wishes, color, scope);
      if (free) made = make_communicator(state_->context, child);
      segment = group->world()->offers().share(*child, free, deadline, group.get());
    }
    // Everybody has joined its group once all have said so: messages of the new groups may come.
    const Bytes answer{(free ? said_free : std::byte{0}) | (segment ? said_mapped : std::byte{0})};
    HMC_ASSIGN(const auto agreed, gather_all(group, std::vector<Bytes>(local.size(), answer), deadline));
    const auto say = [&](std::byte what, auto asked) {
      for (std::uint32_t r = 0; r < group->size(); ++r) {
        if (asked(r) && (agreed[r].size() != 1 || (agreed[r].front() & what) == std::byte{0})) return false;
      }
      return true;
    };
    if (!say(said_free, [](std::uint32_t) { return true; })) continue;
    if (segment && say(said_mapped, [&](std::uint32_t r) { return wishes[r].color == own_color->second; }))
      child->fused().use(std::move(segment));
    return made;
  }
  return Status(Code::transport, "split: no group number was free everywhere after " + std::to_string(attempts) + " attempts");
}

}  // namespace hmc
