#include "collective/batch_pack.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>

#include "base/blob.h"
#include "collective/plan_reduce.h"
#include "collective/plan_spread.h"
#include "collective/tuning.h"

namespace hmc {
namespace {

// Of the call's largest buffer, alike on every rank.
std::uint64_t bytes_of(const CollectiveCall& call) {
  const CallKind kind = kind_of(call.call);
  return kind == CallKind::broadcast || kind == CallKind::all_gather ? call.buffers.out.bytes : call.buffers.in.bytes;
}

bool is_small(const CollectiveCall& call) {
  return call.packable && algorithm_of(call.call) == Algorithm::chosen && bytes_of(call) <= packed_call_bytes;
}

bool go_together(const CollectiveCall& a, const CollectiveCall& b) {
  const ReduceStep &x = a.buffers.reduction, &y = b.buffers.reduction;
  const bool same_scale = std::bit_cast<std::uint64_t>(x.scale) == std::bit_cast<std::uint64_t>(y.scale);  // 0 and -0 differ
  return a.rank == b.rank && without_digest(a.call) == without_digest(b.call) && a.root == b.root && same_scale;
}

// Calls of one kind, by their numbers, and what they have together.
struct Pack {
  std::vector<std::size_t> calls;
  std::uint64_t bytes = 0;
  bool open = false;
};

std::vector<Pack> packs_of(const std::vector<CollectiveCall>& calls, bool packs) {
  std::vector<Pack> all;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const bool small = packs && is_small(calls[i]);
    const std::uint64_t bytes = bytes_of(calls[i]);
    const auto joins = [&](const Pack& pack) {
      return pack.open && pack.bytes + bytes <= pack_bytes && go_together(calls[pack.calls.front()], calls[i]);
    };
    const auto found = small ? std::ranges::find_if(all, joins) : all.end();
    if (found == all.end()) {
      all.push_back({{i}, bytes, small});
    } else {
      found->calls.push_back(i);
      found->bytes += bytes;
    }
  }
  return all;
}

struct PackedArrays {
  Bytes in, out;
};

// The buffers of several calls as those of one: block by block, and within a block call by call.
class Packer {
 public:
  explicit Packer(std::vector<CollectiveCall> calls) : calls_(std::move(calls)) {}

  Result<Launch> launch() {
    const CollectiveCall& first = calls_.front();
    const CallKind kind = kind_of(first.call);
    const std::uint32_t size = first.group->size();
    const bool sends_output = kind == CallKind::broadcast && first.rank == first.root;
    for (const CollectiveCall& call : calls_) {
      arrays_->in.resize(arrays_->in.size() + call.buffers.in.bytes);
      arrays_->out.resize(arrays_->out.size() + call.buffers.out.bytes);
    }
    for (const PackedPiece& piece : pieces(arrays_->in, &CollectiveBuffers::in, kind == CallKind::reduce_scatter ? size : 1))
      HMC_TRY(pack(piece));
    auto results = pieces(arrays_->out, &CollectiveBuffers::out, kind == CallKind::all_gather ? size : 1);
    if (sends_output) {
      for (const PackedPiece& piece : results) HMC_TRY(pack(piece));
      results.clear();
    }
    Launch launch{planned(first, kind, size), std::move(results), {}};
    launch.views.push_back(launch.call.buffers.out);
    for (CollectiveCall& call : calls_) {
      launch.views.push_back(std::move(call.buffers.in));
      launch.views.push_back(std::move(call.buffers.out));
    }
    return launch;
  }

 private:
  // Of the callers' buffers, in the order in which they are in `packed`.
  std::vector<PackedPiece> pieces(Bytes& packed, MemoryView CollectiveBuffers::* buffer, std::uint32_t blocks) {
    std::vector<PackedPiece> all;
    std::byte* to = packed.data();
    for (std::uint32_t block = 0; block < blocks; ++block) {
      for (const CollectiveCall& call : calls_) {
        const MemoryView& view = call.buffers.*buffer;
        const std::uint64_t each = view.bytes / blocks;
        if (each == 0) continue;
        all.push_back({{static_cast<std::byte*>(view.data) + block * each, each, view.device}, to});
        to += each;
      }
    }
    return all;
  }

  CollectiveCall planned(const CollectiveCall& first, CallKind kind, std::uint32_t size) {
    const std::uint32_t rank = first.rank, root = first.root;
    const std::uint64_t bytes = arrays_->in.size(), block = arrays_->out.size() / (kind == CallKind::all_gather ? size : 1);
    const std::size_t element = size_of(first.buffers.reduction.type);
    std::vector<std::uint64_t> counts(size, kind == CallKind::reduce_scatter ? bytes / size : block), at(size);
    for (std::uint32_t r = 1; r < size; ++r) at[r] = at[r - 1] + counts[r];
    const BlockLayout blocks{counts, at};
    const bool fused = first.fused.has_value();
    CollectiveCall call{
        first.group, rank, encode_pack(calls_), nullptr, {view(arrays_->in), view(arrays_->out), first.buffers.reduction}};
    Schedule schedule;
    switch (kind) {
      case CallKind::all_reduce:
        schedule = plan_all_reduce(rank, size, bytes, element, reduce_tuning(false));
        if (fused) call.fused = fused::way_of_all_reduce(rank, size, bytes, element);
        break;
      case CallKind::reduce:
        schedule = plan_reduce(rank, size, root, bytes, element, reduce_tuning(false));
        if (fused) call.fused = fused::way_of_reduce(rank, size, root, bytes, element);
        break;
      case CallKind::reduce_scatter:
        schedule = plan_reduce_scatter(rank, size, blocks, element, reduce_tuning(false));
        if (fused) call.fused = fused::way_of_reduce_scatter(rank, blocks);
        break;
      case CallKind::all_gather:
        schedule = plan_all_gather_blocks(rank, size, blocks, spread_tuning(true, false));
        if (fused) call.fused = fused::way_of_all_gather(rank, blocks);
        break;
      default:
        schedule = plan_broadcast(rank, size, root, arrays_->out.size(), spread_tuning(true, true));
        if (fused) call.fused = fused::way_of_broadcast(rank, root, arrays_->out.size());
    }
    call.schedule = std::make_shared<const Schedule>(std::move(schedule));
    return call;
  }

  // Calls in another order, of other sizes or with another root are another pack.
  static std::uint32_t encode_pack(const std::vector<CollectiveCall>& calls) {
    std::vector<std::uint64_t> alike;
    for (const CollectiveCall& call : calls) {
      alike.push_back(call.call);
      alike.push_back(bytes_of(call));
    }
    return with_digest(calls.front().call, alike);
  }

  [[nodiscard]] MemoryView view(Bytes& bytes) const {
    MemoryView view(bytes.data(), bytes.size());
    view.owner = arrays_;
    return view;
  }

  std::vector<CollectiveCall> calls_;
  const std::shared_ptr<PackedArrays> arrays_ = std::make_shared<PackedArrays>();
};

}  // namespace

Status pack(const PackedPiece& piece) {
  const DeviceSpan& from = piece.caller;
  if (!from.device.is_cpu()) return copy_blocking({piece.packed, from.bytes, Device::cpu()}, from);
  std::memcpy(piece.packed, from.data, from.bytes);
  return {};
}

Status unpack(const PackedPiece& piece) {
  const DeviceSpan& to = piece.caller;
  if (!to.device.is_cpu()) return copy_blocking(to, {piece.packed, to.bytes, Device::cpu()});
  std::memcpy(to.data, piece.packed, to.bytes);
  return {};
}

Result<std::vector<Launch>> launches_of(std::vector<CollectiveCall> calls, bool packs) {
  std::vector<Launch> launches;
  for (const Pack& pack : packs_of(calls, packs)) {
    if (pack.calls.size() == 1) {
      launches.push_back({std::move(calls[pack.calls.front()])});
      continue;
    }
    std::vector<CollectiveCall> together;
    for (const std::size_t i : pack.calls) together.push_back(std::move(calls[i]));
    HMC_ASSIGN(Launch packed, Packer(std::move(together)).launch());
    launches.push_back(std::move(packed));
  }
  return launches;
}

}  // namespace hmc
