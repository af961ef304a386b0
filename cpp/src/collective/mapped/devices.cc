#include "collective/mapped/devices.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/wire.h"
#include "collective/device_reducer.h"
#include "collective/device_works.h"
#include "collective/group.h"
#include "device/links.h"

namespace hmc::mapped {
namespace {

constexpr std::size_t most_text = 32;
constexpr std::size_t most_handle = 256;

constexpr std::uint32_t bit_of(DataType type) noexcept { return 1U << static_cast<unsigned>(type); }

// What a rank offers. bytes = wire{text vendor, text PCI address of the device, bytes handle of the segment}.
struct Offered {
  std::string vendor, card;
  Blob handle;
};

Result<Offered> read_offer(const fused::MappedOffer& offer) {
  const std::size_t bytes = offer.bytes.load(std::memory_order_acquire);
  if (bytes > sizeof offer.offer) return Status(Code::protocol, "malformed offer of a segment");
  Bytes copied(offer.offer, offer.offer + bytes);  // another process may write there
  WireReader reader(copied);
  Offered found{reader.text(most_text), reader.text(most_text), {}};
  const ByteSpan handle = reader.bytes(most_handle);
  found.handle.bytes.assign(handle.begin(), handle.end());
  if (!reader.finish()) return Status(Code::protocol, "malformed offer of a segment");
  return found;
}

}  // namespace

void Devices::use(const fused::Slots& slots) {
  slots_ = slots;
  locals_ = std::vector<Local>(group_.size());
  bool usable = group_.size() <= most_exchange_ranks;
  for (std::uint32_t r = 1; r < group_.size(); ++r)
    usable = usable && group_.rank(r).device.vendor() == group_.rank(0).device.vendor();
  nameable_ = usable;
  usable_.store(usable);
}

bool Devices::prepare(std::uint32_t rank, const Device& device, DataType type) {
  if (!possible() || device.is_cpu()) return false;
  Local& local = locals_[rank];
  const std::uint32_t bit = bit_of(type);
  if ((local.ready.load(std::memory_order_acquire) & bit) != 0) return local.device == device;
  const auto runtime = runtime_for(device);
  if (!runtime.ok()) return false;
  const std::scoped_lock lock(mutex_);
  // Not yet, where a run-time compiler makes the kernel; another type's may be there.
  const Status kernel = (*runtime)->compute().prepare_exchange(device.index(), type);
  if (!kernel.ok() && !std::exchange(local.told, true)) {
    log(LogLevel::info, "a collective of " + device.str() + " goes by messages, perhaps for now: " + kernel.str());
  }
  if (!local.tried && kernel.ok()) {
    local.tried = true;
    if (const Status opened = open(rank, device); !opened.ok()) refuse(rank, opened);
  }
  const bool takes_part = kernel.ok() && local.exchange != nullptr && local.device == device && possible();
  if (takes_part) local.ready.fetch_or(bit, std::memory_order_release);
  return takes_part;
}

bool Devices::reduces(std::uint32_t rank, DataType type) {
  Local& local = locals_[rank];
  const std::uint32_t bit = bit_of(type);
  if ((local.reduces.load(std::memory_order_relaxed) & bit) != 0) return true;
  if (!device_reduces(local.device, type, group_.size())) return false;
  local.reduces.fetch_or(bit, std::memory_order_relaxed);
  return true;
}

Status Devices::open(std::uint32_t rank, const Device& device) {
  Local& local = locals_[rank];
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device));
  HMC_ASSIGN(auto exchange, runtime->compute().open_exchange(device.index(), group_.size()));
  HMC_ASSIGN(const Blob handle, runtime->sharing().export_handle(exchange->segment(), HandleKind::ipc));
  Bytes bytes;
  local.card = pci_address(device).substr(0, most_text);
  WireWriter(bytes).text(device.vendor()).text(local.card).bytes(handle.bytes);
  fused::MappedOffer& offered = offer(rank);
  if (bytes.size() > sizeof offered.offer) return Status(Code::unsupported, "the vendor's handle is too long");
  std::memcpy(offered.offer, bytes.data(), bytes.size());
  offered.bytes.store(static_cast<std::uint32_t>(bytes.size()), std::memory_order_release);
  local.device = device;
  local.segments[rank] = exchange->segment().data;
  local.exchange = std::move(exchange);
  stand(rank, Standing::offered);
  log(LogLevel::debug, group_.describe(rank) + " offers a segment on " + device.str());
  return {};
}

void Devices::refuse(std::uint32_t rank, const Status& why) {
  stand(rank, Standing::refused);
  usable_.store(false);
  log(LogLevel::info, "collectives of device memory go by messages: " + why.with_context(group_.describe(rank)).str());
}

void Devices::stand(std::uint32_t rank, Standing standing) noexcept {
  locals_[rank].standing = standing;
  offer(rank).state.store(static_cast<std::uint32_t>(standing), std::memory_order_seq_cst);
}

Standing Devices::standing(std::uint32_t rank) const noexcept {
  if (group_.rank(rank).peer->is_self()) return locals_[rank].standing;
  return static_cast<Standing>(offer(rank).state.load(std::memory_order_seq_cst));
}

Devices::Mapping Devices::map(std::uint32_t rank) {
  if (standing(rank) == Standing::offered) {
    if (const Status mapped = map_others(rank); mapped.ok()) {
      stand(rank, Standing::maps_all);
    } else {
      refuse(rank, mapped);
    }
  }
  bool all = true;
  for (std::uint32_t r = 0; r < group_.size(); ++r) {
    const Standing theirs = standing(r);
    if (theirs == Standing::refused) {
      usable_.store(false);
      return Mapping::refused;
    }
    all = all && theirs == Standing::maps_all;
  }
  locals_[rank].mapped = all;
  return all ? Mapping::done : Mapping::awaited;
}

bool Devices::can_map(std::uint32_t rank) const noexcept {
  if (standing(rank) == Standing::offered) return true;
  bool all = true;
  for (std::uint32_t r = 0; r < group_.size(); ++r) {
    if (standing(r) == Standing::refused) return true;
    all = all && standing(r) == Standing::maps_all;
  }
  return all;
}

Status Devices::map_others(std::uint32_t rank) {
  for (std::uint32_t r = 0; r < group_.size(); ++r) {
    if (r == rank) continue;
    if (const Status mapped = map_one(rank, r); !mapped.ok()) return mapped.with_context(group_.describe(r));
  }
  return {};
}

Status Devices::map_one(std::uint32_t rank, std::uint32_t owner) {
  Local& local = locals_[rank];
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(local.device));
  HMC_ASSIGN(const Offered offered, read_offer(offer(owner)));
  if (offered.vendor != local.device.vendor()) return Status(Code::unsupported, "its device is of another vendor");
  if (offered.card == local.card) return Status(Code::unsupported, "two ranks have one device");
  if (group_.rank(owner).peer->is_self()) {
    const Local& other = locals_[owner];
    if (!other.exchange) return Status(Code::unsupported, "it has opened no segment");
    HMC_TRY(runtime->compute().reach(local.device.index(), other.device.index()));
    local.segments[owner] = other.exchange->segment().data;
    return {};
  }
  HMC_ASSIGN(auto imported, runtime->sharing().import_handle(local.device.index(), offered.handle, HandleKind::ipc));
  if (imported->span().bytes != exchange_segment(group_.size()).bytes)
    return Status(Code::protocol, "its segment has another size");
  local.segments[owner] = imported->span().data;
  local.imported.push_back(std::move(imported));
  return {};
}

std::shared_ptr<WorkState> Devices::start(std::uint32_t rank, ExchangeCall call, const CollectiveBuffers& buffers) {
  Local& local = locals_[rank];
  const auto runtime = runtime_for(local.device);
  if (!runtime.ok()) return completed_work(group_.engine(), runtime.status());
  if (local.last_shot == std::numeric_limits<std::uint32_t>::max()) {
    return completed_work(group_.engine(), Status(Code::closed,
                                                  "2^32 calls have used up the numbers of this Communicator's calls; "
                                                  "make a new one by split()"));
  }
  call.input = buffers.in.data != nullptr ? buffers.in.data : buffers.out.data;  // of a broadcast there is one buffer
  call.output = buffers.out.data;
  call.reduction = buffers.reduction;
  call.segments = local.segments;
  call.first = local.next_round;
  if (call.shape.steps == 0) {
    call.shot = ++local.last_shot;
  } else {
    local.next_round += exchange_rounds(call);
  }
  if (!local.works) local.works = std::make_shared<OrderedWorks>(group_.engine());
  const auto run = [&](Completion* done) {
    return local.exchange->run(call, {buffers.after[0].get(), buffers.after[1].get()}, done);
  };
  return local.works->start(**runtime, std::cref(run));  // a reference takes no memory
}

bool Devices::order(std::uint32_t rank, const Device& device, StreamHandle stream) {
  const Local& local = locals_[rank];
  return local.exchange && local.device == device && local.exchange->order(stream).ok();
}

void Devices::end_kernels(std::uint32_t rank) noexcept {
  if (rank < locals_.size() && locals_[rank].exchange) locals_[rank].exchange->end_kernels();
}

}  // namespace hmc::mapped
