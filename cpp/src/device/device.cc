#include "hmc/device.h"

#include <charconv>
#include <deque>
#include <mutex>

#include "device/runtime.h"

namespace hmc {
namespace {

// Vendors seen in this process, by number; a deque keeps the text in place. The CPU is number 0.
struct Vendors {
  std::mutex mutex;
  std::deque<std::string> names{"cpu"};
};

Vendors& vendors() {
  static Vendors* const instance = new Vendors;  // never destroyed: devices may be printed during exit
  return *instance;
}

std::uint16_t intern(std::string_view name) {
  Vendors& v = vendors();
  const std::scoped_lock lock(v.mutex);
  for (std::size_t i = 0; i < v.names.size(); ++i) {
    if (v.names[i] == name) return static_cast<std::uint16_t>(i);
  }
  v.names.emplace_back(name);
  return static_cast<std::uint16_t>(v.names.size() - 1);
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
  // Only vendors with a runtime compiled in have devices; this also bounds the interned names.
  bool known = false;
  for (const auto* factory : device_runtimes()) known = known || factory->vendor == name;
  if (!known) {
    std::string have;
    for (const auto* factory : device_runtimes()) have += (have.empty() ? "" : ", ") + std::string(factory->vendor);
    return Status(Code::invalid_argument,
                  "device vendor \"" + std::string(name) + "\" is not known to this build (known: " + have + ")");
  }
  Device device;
  device.vendor_ = intern(name);
  device.index_ = index;
  if (device.is_cpu() && index != 0) return malformed(text);
  return device;
}

std::string_view Device::vendor() const noexcept {
  if (vendor_ == 0) return "cpu";
  Vendors& v = vendors();
  const std::scoped_lock lock(v.mutex);
  return v.names[vendor_];
}

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
