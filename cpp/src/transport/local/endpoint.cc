#include "transport/local/endpoint.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <utility>

#include "transport/local/region.h"

namespace hmc::local {

namespace {

constexpr std::size_t inline_bytes = 1 << 20;  // copied in the posting call
constexpr std::size_t turn_bytes = 256 << 10;  // of one operation before the next has its turn
constexpr int turns_per_poll = 64;
constexpr int signals_per_poll = 64;

bool owned(const RegionView& view) noexcept { return view.block != nullptr && view.block->owned(); }

// A put onto itself can be copied, a shifted one cannot.
Status check_overlap(const Run& run, const DeviceSpan& local, const DeviceSpan& remote) {
  const auto local_base = reinterpret_cast<std::uintptr_t>(local.data);
  const auto remote_base = reinterpret_cast<std::uintptr_t>(remote.data);
  if (local_base + local.bytes <= remote_base || remote_base + remote.bytes <= local_base) return {};
  for (std::size_t i = 0; i < run.count; ++i) {
    const std::uintptr_t a = local_base + run.local_offsets[i];
    const std::uintptr_t b = remote_base + run.remote_offsets[i];
    if (a != b && (a < b ? b - a : a - b) < run.block) {
      return Status(Code::invalid_argument, "source and target of block " + std::to_string(i) + " overlap");
    }
  }
  return {};
}

Status stale() { return Status(Code::stale, "the target region was deregistered"); }

}  // namespace

LocalEndpoint::LocalEndpoint(std::shared_ptr<Engine> engine, std::shared_ptr<const ServedRegions> regions, EndpointSink& sink)
    : EndpointBase({"local", max_signal, kit::operation_type<Copy>()}, std::move(engine), sink), regions_(std::move(regions)) {}

Status LocalEndpoint::connect(const Blob& peer_address, Completion* done) {
  if (!peer_address.bytes.empty() || !peer_address.fds.empty()) return Status(Code::protocol, "malformed local address");
  HMC_TRY(begin_connect(done));
  connected({});
  return {};
}

Result<std::unique_ptr<RemoteRegion>> LocalEndpoint::import_region(const Blob& exported) {
  HMC_ASSIGN(const ServedKey key, decode_served(exported.bytes));
  const ServedRegion* region = regions_->find(key.id);
  if (region == nullptr) return stale();
  return std::unique_ptr<RemoteRegion>(std::make_unique<ImportedRegion>(key, region->view));
}

const ServedRegion* LocalEndpoint::target(const Run& run) const noexcept {
  return regions_->find(static_cast<const ImportedRegion&>(*run.remote).id());
}

Status LocalEndpoint::check(const Run& run, bool is_put) const {
  const ServedRegion* remote = target(run);
  if (remote == nullptr) return stale();
  if (is_put && !remote->writable()) return read_only_target();
  const DeviceSpan& from = run.local->view().span;
  const DeviceSpan& to = remote->view.span;
  if (from.device == to.device) return check_overlap(run, from, to);
  if (from.device.is_cpu() || to.device.is_cpu()) return {};
  return DeviceCopies::runtime_between(from.device, to.device).status();
}

Status LocalEndpoint::signal(ByteSpan head, ByteSpan body) {
  if (!ready()) [[unlikely]]
    return not_ready();
  HMC_TRY(check_signal(head.size() + body.size()));
  if (!waiting_.empty() || !ring_.push(head, body)) return Status(Code::would_block, "the local signal queue is full");
  engine_->kick();
  return {};
}

bool LocalEndpoint::send(ByteSpan signal, std::uint64_t) {
  if (!ring_.push(signal, {})) return false;
  engine_->kick();
  return true;
}

Status LocalEndpoint::start(kit::Operation& operation) {
  auto& copy = static_cast<Copy&>(operation);
  copy.kind = copy_kind_for(copy.bytes);
  move(copy, inline_bytes);
  if (over(copy)) {
    finish(copy);
  } else {
    engine_->kick();
  }
  return {};
}

std::size_t LocalEndpoint::move(Copy& copy, std::size_t budget) {
  std::size_t moved = 0;
  while (moved < budget && !copy.handed_over()) {
    const Run& run = copy.cursor.run();
    const ServedRegion* remote = target(run);
    if (remote == nullptr) {
      copy.failure = stale();
      break;
    }
    const DeviceSpan& local = run.local->view().span;
    const bool host = local.device.is_cpu() && remote->view.span.device.is_cpu();
    const std::size_t step =
        host ? copy_run(copy.cursor, static_cast<std::byte*>(local.data), remote->data(), copy.is_put, budget - moved, copy.kind)
             : move_device(copy, remote->view);
    if (step == 0) break;
    moved += step;
    copy.moved += step;
  }
  if (moved != 0) copy_fence(copy.kind);
  return moved;
}

// Hands the next blocks to the runtime. 0: enough is in flight, or none of it can be.
std::size_t LocalEndpoint::move_device(Copy& copy, const RegionView& remote) {
  if (!copy.copies) copy.copies = std::make_unique<DeviceCopies>();
  const RegionView& local = copy.cursor.run().local->view();
  auto runtime = DeviceCopies::runtime_between(local.span.device, remote.span.device);
  if (!runtime.ok()) {
    copy.failure = runtime.status();
    return 0;
  }
  copy.runtime = *runtime;
  // One device reaches all of another's memory only where that was allocated as a whole: a framework's virtual memory, or its
  // pools, may be shut to it, and a kernel would fault where a copy does not.
  const bool apart = !local.span.device.is_cpu() && !remote.span.device.is_cpu() && local.span.device != remote.span.device &&
                     !(owned(local) && owned(remote));
  return copy.copies->hand(*copy.runtime, copy.cursor, {local.span, remote.span, apart}, copy.is_put, copy.after);
}

// Also takes over what went wrong in the runtime.
bool LocalEndpoint::over(Copy& copy) {
  if (copy.copies) {
    if (copy.failure.ok()) copy.failure = copy.copies->outcome();
    if (copy.copies->pending() != 0) return false;
    if (copy.failure.ok()) copy.failure = copy.copies->outcome();
  }
  return copy.handed_over();
}

bool LocalEndpoint::advance(std::size_t& budget) {
  bool moved_any = false;
  std::size_t idle = 0;  // operations in a row that could not go on
  for (int turn = 0; turn < turns_per_poll && budget != 0 && ready() && idle < operations_.size(); ++turn) {
    auto& copy = static_cast<Copy&>(operations_.next(last_served_));
    last_served_ = copy.number;
    if (copy.runtime != nullptr) copy.runtime->poll();
    const std::size_t moved = move(copy, std::min(budget, turn_bytes));
    budget -= std::min(budget, moved);
    const bool ended = over(copy);
    idle = ended || moved != 0 ? 0 : idle + 1;
    moved_any = moved_any || ended || moved != 0;
    if (ended) finish(copy);
  }
  return moved_any;
}

bool LocalEndpoint::deliver(std::size_t& budget) {
  bool moved = false;
  for (int i = 0; i < signals_per_poll && budget != 0 && ready() && !ring_.empty(); ++i) {
    const ByteSpan signal = ring_.front();
    budget -= std::min(budget, signal.size());
    sink_->on_signal(signal);
    ring_.pop();  // only now: the sink may send, and must not overwrite what it reads
    moved = true;
  }
  return send_waiting() || moved;
}

bool LocalEndpoint::poll(std::size_t& budget) {
  const bool moved = advance(budget);
  return (ready() && deliver(budget)) || moved;
}

Status LocalEndpoint::withdraw(kit::Operation& operation) {
  const auto& copy = static_cast<const Copy&>(operation);
  if (!copy.copies || copy.copies->pending() == 0) return {};
  return Status(Code::unsupported, "a device is copying part of the operation; it goes on");
}

// What a device copies cannot be stopped, and its memory may be freed once the operation is complete.
void LocalEndpoint::stop() {
  for (const auto& [number, operation] : operations_.all()) {
    const auto& copy = static_cast<const Copy&>(*operation);
    while (copy.copies && copy.copies->pending() != 0) {
      if (!copy.runtime->poll()) sched_yield();
    }
  }
}

}  // namespace hmc::local
