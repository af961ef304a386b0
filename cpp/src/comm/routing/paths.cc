#include "comm/routing/paths.h"

#include <atomic>
#include <cstdio>

#include "base/log.h"
#include "comm/context_impl.h"
#include "device/links.h"

namespace hmc {

namespace {

std::string rate(double bytes_per_second) {
  char text[48];
  std::snprintf(text, sizeof text, "%.3g GB/s", bytes_per_second / 1e9);
  return text;
}

// Lock not held.
Status wait_ready(PeerImpl& peer, Deadline deadline) {
  ContextImpl& context = peer.impl();
  HMC_TRY(context.usable());
  struct Wait {
    std::atomic<std::uint32_t> done{0};
    Status status;
  };
  const auto wait = std::make_shared<Wait>();
  {
    const auto lock = context.engine()->lock();
    if (peer.phase() == PeerPhase::ready) return {};
    const auto on_ready = [weak = std::weak_ptr(wait), engine = context.engine()](const Status& status) {
      const auto waiting = weak.lock();
      if (!waiting) return;
      waiting->status = status;
      waiting->done.store(1);
      engine->wake_waiters();
    };
    peer.when_ready(on_ready, WhenIdle::connect, wait);
  }
  if (context.engine()->drive_flag(deadline, wait->done)) return wait->status;
  HMC_TRY(context.usable());
  return Status(Code::timeout, "the peer was not connected in time");
}

}  // namespace

Result<Path> path_to(const std::shared_ptr<PeerImpl>& peer, const Device& source, const Device& target, Deadline deadline) {
  ContextImpl& context = peer->impl();
  HMC_TRY(wait_ready(*peer, deadline));
  while (true) {
    std::uint64_t epoch = 0;
    {
      const auto lock = context.engine()->lock();
      const auto found = peer->routes().find(source, target, 0);
      if (found.ok()) return (*found)->path;
      if (found.status().code() != Code::would_block) return found.status();
      epoch = peer->routes().epoch();
    }
    if (!context.engine()->drive(deadline, [&] { return peer->routes().epoch() != epoch; })) {
      HMC_TRY(context.usable());
      const auto lock = context.engine()->lock();
      return Status(Code::timeout, "no path to " + peer->describe() + " was ready in time");
    }
  }
}

double hardware_bandwidth(const Device& local, const Device& remote) {
  constexpr double memcpy_rate = 10e9;  // of one thread
  if (local.is_cpu()) return remote.is_cpu() ? memcpy_rate : 0;
  if (local == remote) return 0;
  const double link = link_bandwidth(local, remote);
  return link > 0 ? link : host_bandwidth(local);
}

void warn_if_poor(const Path& path) {
  const bool one_vendor = !path.source.is_cpu() && path.source.vendor() == path.target.vendor();
  const bool slow = path.bandwidth < path.hardware_bandwidth / 2;
  if (!slow && (path.direct || !one_vendor)) return;
  std::string text = path.source.str() + " to " + path.target.str() + " goes by " + path.transport +
                     (path.direct ? "" : ", through host memory") + ": ";
  if (slow) text += rate(path.bandwidth) + " expected of the " + rate(path.hardware_bandwidth) + " that the hardware could carry. ";
  for (const auto& other : path.rejected) text += "Not " + other + ". ";
  warn_once("poor path " + path.transport + path.source.str() + path.target.str(), text + "`hmc topo` shows every pair");
}

void Route::count(bool is_put, std::size_t bytes) {
  TransportSlot& counted = slot->transport();
  (is_put ? path.bytes_put : path.bytes_got) += bytes;
  (is_put ? counted.put_bytes : counted.get_bytes) += bytes;
  ++(is_put ? counted.puts : counted.gets);
  if (!staged) return;
  path.bytes_staged += bytes;
  counted.staged_bytes += bytes;
}

std::string Path::str() const {
  std::string text = source.str() + " -> " + target.str() + ": " + transport;
  if (!detail.empty()) text += " (" + detail + ")";
  text += direct ? ", direct" : ", staged through host memory";
  text += encrypted ? ", encrypted" : "";
  if (!messages.empty()) text += ", messages by " + messages;
  if (!reason.empty()) text += ", because: " + reason;
  if (!runner_up.empty()) text += ", next: " + runner_up;
  if (bandwidth > 0) {
    char latency[32];
    std::snprintf(latency, sizeof latency, "; expected %.3g us, ", latency_us);
    text += latency + rate(bandwidth);
    if (hardware_bandwidth > bandwidth) text += " (the hardware: " + rate(hardware_bandwidth) + ")";
  }
  for (const auto& other : rejected) text += "\n  not " + other;
  return text;
}

}  // namespace hmc
