#include "collective/entering.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <utility>

#include "collective/rendezvous.h"
#include "comm/context_state.h"

namespace hmc {
namespace {

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

}  // namespace

Status check_devices(const std::vector<Device>& devices) {
  if (devices.size() > job::max_devices) {
    return {Code::invalid_argument,
            "a process brings at most " + std::to_string(job::max_devices) + " devices, not " + std::to_string(devices.size())};
  }
  if (std::all_of(devices.begin(), devices.end(), [](const Device& device) { return device.is_cpu(); })) return {};
  const auto usable = list_devices();
  for (const auto& device : devices) {
    if (std::any_of(usable.begin(), usable.end(), [&](const DeviceInfo& info) { return info.device == device; })) continue;
    std::string names;
    for (const auto& info : usable) names += (names.empty() ? "" : ", ") + info.device.str();
    return {Code::unsupported,
            "there is no device " + device.str() + " in this process; usable: " + names + " (`hmc info` says why)"};
  }
  return {};
}

job::Registration registration(const Context& context, std::vector<Device> devices, const std::string& rendezvous, bool process_0,
                               Deadline deadline) {
  // A job of one host: processes of other hosts may join later, at the ports that the application listens at.
  const bool met_by_tcp = rendezvous.starts_with("tcp://");
  const std::string meeting = met_by_tcp ? rendezvous : "tcp://" + host_name() + ":1";
  return {context.state()->id(), context.name(), kernel_id(),
          reachable_addresses(context.addresses(), meeting, process_0 || !met_by_tcp, deadline), std::move(devices)};
}

Deadline closing_deadline(Deadline deadline) {
  constexpr double usual_seconds = 5;
  constexpr double least_seconds = 0.25;
  const Deadline usual = Deadline::after_seconds(usual_seconds), least = Deadline::after_seconds(least_seconds);
  return Deadline::at(std::clamp(deadline.when(), least.when(), usual.when()));
}

std::uint32_t wait_ms(Deadline deadline) {
  constexpr int enough_ms = 1000;  // also for an answer on a loaded host
  const int left = deadline.poll_timeout_ms();
  if (left < 0) return 0;
  return static_cast<std::uint32_t>(std::max(left - std::min(left / 5, enough_ms), 1));
}

}  // namespace hmc
