#include "hmc/device.h"

#include <charconv>
#include <optional>

#include "device/runtime.h"

namespace hmc {
namespace {

// A vendor's number is its place in the table of runtimes, which begins with the CPU. No lock: another thread might hold one at a
// fork(), and the child names devices too.
std::optional<std::uint16_t> number_of(std::string_view vendor) noexcept {
  const auto all = device_runtimes();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i]->vendor == vendor) return static_cast<std::uint16_t>(i);
  }
  return std::nullopt;
}

Status malformed(std::string_view text) {
  return Status(Code::invalid_argument, "device \"" + std::string(text.substr(0, 64)) +
                                            "\" is not of the form \"vendor\" or \"vendor:index\" (index 0 to 65535)");
}

}  // namespace

Result<Device> Device::parse(std::string_view text) {
  const auto colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  if (name.empty() || name.size() > 16) return malformed(text);
  for (const char c : name) {
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')) return malformed(text);
  }
  std::uint16_t index = 0;
  if (colon != std::string_view::npos) {
    const std::string_view digits = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) return malformed(text);
  }
  const auto vendor = number_of(name);
  if (!vendor) {  // only vendors with a runtime compiled in have devices
    std::string have;
    for (const auto* factory : device_runtimes()) have += (have.empty() ? "" : ", ") + std::string(factory->vendor);
    return Status(Code::invalid_argument,
                  "device vendor \"" + std::string(name) + "\" is not known to this build (known: " + have + ")");
  }
  Device device;
  device.vendor_ = *vendor;
  device.index_ = index;
  if (device.is_cpu() && index != 0)
    return Status(Code::invalid_argument,
                  "there is no device \"" + std::string(text) + "\": the CPU's memory is one device, \"cpu\"");
  return device;
}

std::string_view Device::vendor() const noexcept { return device_runtimes()[vendor_]->vendor; }

std::string Device::str() const {
  if (is_cpu()) return "cpu";
  return std::string(vendor()) + ":" + std::to_string(index_);
}

std::vector<RuntimeInfo> list_runtimes() {
  std::vector<RuntimeInfo> all;
  for (const auto* factory : device_runtimes()) all.push_back(factory->instance().enumerate());
  return all;
}

std::vector<DeviceInfo> list_devices() {
  std::vector<DeviceInfo> all;
  for (auto& runtime : list_runtimes()) {
    for (auto& device : runtime.devices) all.push_back(std::move(device));
  }
  return all;
}

}  // namespace hmc
