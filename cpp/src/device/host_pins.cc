#include "device/host_pins.h"

#include <unistd.h>

#include "base/log.h"

namespace hmc {

void HostPins::pin_for(const Device& device, const HostPages& host) {
  if (device.is_cpu() || host.span.bytes == 0) return;
  const std::lock_guard guard(mutex_);
  const auto [entry, first] = pins_.try_emplace(std::string(device.vendor()));
  if (!first) return;
  const auto runtime = runtime_for(device);
  if (!runtime.ok()) return;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  HostPages pages = host;
  pages.span.bytes = (host.span.bytes + page - 1) / page * page;
  auto pinned = (*runtime)->sharing().pin_host(device.index(), pages);
  if (pinned.ok()) {
    entry->second = std::move(*pinned);
  } else {
    warn_once("pin " + std::string(device.vendor()),
              "CPU memory is not pinned for " + device.str() +
                  ", and copies between the two are slower for it: " + std::string(pinned.status().message()));
  }
}

}  // namespace hmc
