#include "transport/verbs/region.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "device/links.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace hmc::verbs {
namespace {

constexpr std::size_t parallel_bytes = 64 << 20;  // from here on the work is worth threads

// `count` calls of `work`, each on a thread of its own where there are several.
template <class Work>
void in_parallel(std::size_t count, const Work& work) {
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < count; ++i) {
    try {
      threads.emplace_back([&work, i] { work(i); });
    } catch (const std::system_error&) {  // no more threads
      work(i);
    }
  }
  work(0);
  for (std::thread& thread : threads) thread.join();
}

// Most of the time of a registration goes into pages that nobody has touched yet: these come in parallel. A hint, so errors are
// left to the registration.
void populate(const DeviceSpan& span, Access access) {
  constexpr std::size_t most = 16;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(span.data) / page * page;
  const auto last = reinterpret_cast<std::uintptr_t>(span.data) + span.bytes;
  const std::size_t threads =
      std::min({most, std::max<std::size_t>(std::thread::hardware_concurrency() / 2, 1), span.bytes / (parallel_bytes / 4)});
  const std::size_t part = ((last - first) / threads + page) / page * page;
  in_parallel(threads, [&](std::size_t i) {
    const std::uintptr_t start = std::min(last, first + i * part);
    const std::size_t bytes = std::min(last - start, part);
    if (bytes == 0) return;
    madvise(reinterpret_cast<void*>(start), bytes, access == Access::read ? MADV_POPULATE_READ : MADV_POPULATE_WRITE);
  });
}

}  // namespace

Result<std::unique_ptr<LocalRegion>> VerbsLocalRegion::create(const RegionView& view, std::shared_ptr<const Nics> nics,
                                                              DeviceMemory& devices) {
  auto region = std::unique_ptr<VerbsLocalRegion>(new VerbsLocalRegion(view, std::move(nics)));
  const Nics& cards = *region->nics_;
  const DeviceSpan& span = view.span;
  if (span.bytes == 0) return std::unique_ptr<LocalRegion>(std::move(region));
  if (region->on_device()) {
    const auto able = static_cast<std::size_t>(std::ranges::count_if(cards, [](const auto& nic) { return nic->info().devices; }));
    if (able == 0) return Status(Code::unsupported, "no network card here reaches memory of devices");
    HMC_ASSIGN(region->budget_, BudgetShare::take(span.device, able * span.bytes));
    region->numa_node_ = hmc::numa_node(span.device);
  }
  region->handles_.resize(cards.size(), nullptr);
  std::vector<Status> failures(cards.size());
  const auto add = [&](std::size_t i) {
    if (region->on_device() && !cards[i]->info().devices) return;
    failures[i] = region->add(*cards[i], devices);
  };
  if (span.bytes >= parallel_bytes) {
    if (!region->on_device()) populate(span, view.access);
    in_parallel(cards.size(), add);
  } else {
    for (std::size_t i = 0; i < cards.size(); ++i) add(i);
  }
  for (const Status& failure : failures) HMC_TRY(Status(failure));
  return std::unique_ptr<LocalRegion>(std::move(region));
}

Status VerbsLocalRegion::add(Nic& nic, DeviceMemory& devices) {
  const unsigned remote =
      view_.access == Access::read_write ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ;
  const auto once = [&](unsigned access) {
    return on_device() ? devices.add(nic, view_.span, access) : nic.register_memory(view_.span.data, view_.span.bytes, access);
  };
  auto handle = once(remote | IBV_ACCESS_LOCAL_WRITE);
  // Memory that this process itself may only read.
  if (!handle.ok() && view_.access == Access::read && !on_device()) {
    if (auto again = once(remote); again.ok()) handle = std::move(again);
  }
  if (!handle.ok()) return handle.status();
  handles_[nic.info().nic] = *handle;
  return {};
}

VerbsLocalRegion::~VerbsLocalRegion() {
  for (std::size_t i = 0; i < handles_.size(); ++i) {
    const Nic& nic = *(*nics_)[i];
    if (handles_[i] != nullptr && !nic.forked()) nic.api().dereg_mr(handles_[i]);
  }
}

Result<Blob> VerbsLocalRegion::exported() {
  RegionKeys keys;
  keys.address = reinterpret_cast<std::uintptr_t>(view_.span.data);
  keys.bytes = view_.span.bytes;
  keys.access = view_.access;
  keys.device = on_device();
  for (const ibv_mr* handle : handles_) keys.keys.push_back(handle == nullptr ? std::nullopt : std::optional(handle->rkey));
  Blob blob;
  blob.bytes = encode_region(keys);
  return blob;
}

}  // namespace hmc::verbs
