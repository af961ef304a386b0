#include "collective/member_calls.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "collective/batch.h"
#include "collective/mapped/calls.h"

namespace hmc {

Status check(const std::shared_ptr<CommunicatorState>& state) {
  if (!state) return {Code::invalid_argument, "the Member or Communicator is empty; init() and Communicator::local() give them"};
  return state->group->open();
}

Status check(const Communicator& communicator) {
  if (!communicator.valid()) return {Code::invalid_argument, "the Communicator is empty"};
  return communicator.state()->group->open();
}

Status check_root(const Group& group, std::string_view call, int root) {
  if (root >= 0 && static_cast<std::uint32_t>(root) < group.size()) return {};
  return {Code::invalid_argument, std::string(call) + ": root " + std::to_string(root) + " is no rank; the Communicator has " +
                                      std::to_string(group.size()) + " ranks"};
}

bool in_place(const MemoryView& out, const MemoryView& in, std::uint64_t in_at) noexcept {
  return out.device == in.device && in.bytes != 0 && out.data != nullptr &&
         static_cast<std::byte*>(out.data) + in_at == static_cast<std::byte*>(in.data);
}

Status check_memory(std::string_view call, const MemoryView& out, const MemoryView& in, std::optional<std::uint64_t> in_at) {
  if ((out.bytes > 0 && out.data == nullptr) || (in.bytes > 0 && in.data == nullptr)) {
    return {Code::invalid_argument, std::string(call) + ": a buffer of more than 0 bytes has no address"};
  }
  if (in_at && in_place(out, in, *in_at)) return {};
  const auto a = reinterpret_cast<std::uintptr_t>(out.data), b = reinterpret_cast<std::uintptr_t>(in.data);
  if (out.device == in.device && out.bytes > 0 && in.bytes > 0 && a < b + in.bytes && b < a + out.bytes) {
    return {Code::invalid_argument, std::string(call) + ": the input and the output overlap; use separate buffers"};
  }
  return {};
}

Result<Algorithm> spread_algorithm(Group& group, const EqualCall& call, std::string_view name) {
  if (name.empty()) return Algorithm::chosen;
  EqualCall asked = call;
  if (call.kind == CallKind::all_gather || call.kind == CallKind::broadcast) asked.islands = group.schedules().islands(group);
  const bool possible = group.fused().possible();
  return named_algorithm(asked, name,
                         {.cpu = possible,
                          .devices = possible && group.fused().devices().may_be_named(),
                          .library = group.fused().natives().may_be_named()});
}

namespace {

// Up to that size a broadcast among CPU Members is best by messages: see fused::spreads_shared().
constexpr std::uint64_t few_bytes = 8 << 10;

}  // namespace

bool goes_shared(Group& group, CallKind kind, std::uint64_t bytes, Algorithm named) noexcept {
  if (!group.fused().possible()) return false;
  if (named != Algorithm::chosen) return is_shared(named);
  if (fused::spreads_shared(kind, group.size(), bytes)) return true;
  // CPU Members may pass device memory; of what is small they rarely do.
  const bool by_kernel = group.fused().devices().may_be_named() && mapped::carries(kind, group.size(), bytes);
  return by_kernel && (!all_on_host(group) || bytes > few_bytes);
}

void plan_shared(Group& group, std::uint32_t rank, CallKind kind, Algorithm named, const Device& output, fused::Way way,
                 PlannedCall& call) {
  way.through_slots = named != Algorithm::chosen || way.spread->in_one_shot || fused::spreads_shared(kind, group.size(), way.bytes);
  const bool by_kernel =
      named == Algorithm::mapped || (named == Algorithm::chosen && mapped::carries(kind, group.size(), way.bytes));
  if (by_kernel && !output.is_cpu()) call.exchange = mapped::spread(rank, group.size(), *way.spread);
  call.way = std::move(way);
}

void share_spread(Share& share, const std::shared_ptr<const PlannedCall>& call) {
  share.fused = call->way;
  const MemoryView &in = share.buffers.in, &out = share.buffers.out;
  const bool given_here = in.bytes == 0 || in.device == out.device;
  if (!call->exchange || !given_here) return;
  const DataType type = mapped::moved_type(*call->exchange, in.data != nullptr ? in.data : out.data, out.data);
  share.buffers.reduction = {.type = type};
  if (share.group->fused().devices().prepare(share.rank, out.device, type)) share.fused->on_device = {call, &*call->exchange};
}

std::optional<native::Call> by_library(Group& group, std::uint32_t rank, const Device& device, std::optional<native::Call> call) {
  if (!call || !group.fused().natives().prepare(rank, device)) return std::nullopt;
  if (group.fused().possible()) group.fused().natives().boards().offer(rank);
  return call;
}

void set_library(Share& share, Algorithm named, const std::optional<native::Call>& call) {
  if (share.fused) {
    share.fused->by_library = call;
  } else if (named == Algorithm::native) {
    share.library = native::Request{call};
  }
}

Status check_layout(std::string_view call, std::string_view which, const Member::Layout& layout, const MemoryView& view,
                    std::size_t size) {
  if (layout.counts.size() != size || layout.displacements.size() != size) {
    return {Code::invalid_argument, std::string(call) + ": the " + std::string(which) + " layout has " +
                                        std::to_string(layout.counts.size()) + " counts and " +
                                        std::to_string(layout.displacements.size()) + " displacements; the Communicator has " +
                                        std::to_string(size) + " ranks"};
  }
  for (std::size_t r = 0; r < size; ++r) {
    if (layout.displacements[r] <= view.bytes && layout.counts[r] <= view.bytes - layout.displacements[r]) continue;
    return {Code::invalid_argument, std::string(call) + ": the " + std::string(which) + " block of rank " + std::to_string(r) +
                                        " (" + std::to_string(layout.counts[r]) + " bytes at " +
                                        std::to_string(layout.displacements[r]) + ") does not lie in its buffer of " +
                                        std::to_string(view.bytes) + " bytes"};
  }
  return {};
}

bool are_packed(const Member::Layout& layout, std::uint64_t bytes) noexcept {
  for (std::size_t r = 0; r < layout.counts.size(); ++r) {
    if (layout.counts[r] != bytes || layout.displacements[r] != r * bytes) return false;
  }
  return true;
}

Status check_disjoint(std::string_view call, const Member::Layout& layout) {
  std::vector<std::uint32_t> order(layout.counts.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto before = [&](std::uint32_t a, std::uint32_t b) { return layout.displacements[a] < layout.displacements[b]; };
  if (!std::is_sorted(order.begin(), order.end(), before)) std::sort(order.begin(), order.end(), before);
  std::uint64_t end = 0;
  std::uint32_t last = 0;
  for (const std::uint32_t r : order) {
    if (layout.counts[r] == 0) continue;
    if (layout.displacements[r] < end) {
      return {Code::invalid_argument, std::string(call) + ": the output blocks of ranks " + std::to_string(last) + " and " +
                                          std::to_string(r) + " overlap"};
    }
    end = layout.displacements[r] + layout.counts[r];
    last = r;
  }
  return {};
}

Started start(Result<Share>&& share) {
  if (!share.ok()) return share.status();
  if (BatchState::on(*share->group)) [[unlikely]] {
    const std::string call(name_of(kind_of(share->call)));
    return BatchState::refuse(*share->group, "i" + call, "call " + call);
  }
  return start_collective(std::move(share).value());
}

Status run(Result<Share>&& share, Deadline deadline) {
  if (!share.ok()) return share.status();
  if (const auto batch = BatchState::on(*share->group)) [[unlikely]]
    return batch->add({&share.value(), 1});
  return run_collective(std::move(share).value(), deadline);
}

Status run_shares(std::vector<Share> shares, Deadline deadline) {
  if (const auto batch = BatchState::on(*shares.front().group)) return batch->add(shares);
  return run_collectives(std::move(shares), deadline);
}

Result<Work> as_work(Started started) {
  if (!started) return started.status();
  return Work(std::move(started).value());
}

}  // namespace hmc
