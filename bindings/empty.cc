// The device of arrays without elements: they have no address that a runtime could be asked about.
#include <algorithm>
#include <vector>

#include "arguments.h"
#include "common.h"
#include "interop.h"

namespace hmc::bindings {
namespace {

// Opens the vendors' libraries.
auto runtimes_here() {
  const ReleasedGil nogil;
  return list_runtimes();
}

// Whether `device` is one of this process's. Asked only where one DLPack type stands for several.
bool present(const Device& device) {
  const auto runtimes = runtimes_here();
  return std::ranges::any_of(runtimes, [&](const auto& runtime) {
    return std::ranges::any_of(runtime.devices, [&](const auto& info) { return info.device == device; });
  });
}

// The device of a DLPack type and number; the CPU's where this process has none of them, or several.
Device device_of_dlpack(std::int32_t type, int index) {
  std::vector<Device> candidates;
  for (const Interop& row : interop_rows) {
    if (row.dlpack != type) continue;
    if (auto device = Device::parse(std::string(row.vendor) + ":" + std::to_string(index))) candidates.push_back(*device);
  }
  if (candidates.size() > 1) std::erase_if(candidates, [](const Device& device) { return !present(device); });
  return candidates.size() == 1 ? candidates.front() : Device::cpu();
}

// "cuda:0" of torch's tensors, and of the like: the only name of vendors that DLPack has no type for.
std::optional<Device> named_device(py::handle array) {
  const py::object device = attribute_or_null(array, "device");
  if (!device) return std::nullopt;
  const py::object type = attribute_or_null(device, "type");
  const py::object index = attribute_or_null(device, "index");
  if (!type || !py::isinstance<py::str>(type) || !index) return std::nullopt;
  auto parsed = Device::parse(type.cast<std::string>() + ":" + (index.is_none() ? "0" : written(index)));
  return parsed ? std::optional(*parsed) : std::nullopt;
}

// The first device of the only vendor here whose libraries use __cuda_array_interface__, which names no device; else the CPU's.
Device device_of_cuda_arrays() {
  std::vector<Device> candidates;
  for (const auto& runtime : runtimes_here()) {
    if (interop_of(runtime.vendor).like_cuda && !runtime.devices.empty()) candidates.push_back(runtime.devices.front().device);
  }
  return candidates.size() == 1 ? candidates.front() : Device::cpu();
}

}  // namespace

Device device_of_empty(py::handle array) {
  const std::optional<Device> named = named_device(array);
  const py::object says = attribute_or_null(array, "__dlpack_device__");
  if (!says) return named ? *named : device_of_cuda_arrays();
  const auto [type, index] = argument_of<std::pair<int, int>>(call_python(says), "__dlpack_device__");
  if (dlpack_on_host(type)) return Device::cpu();
  // Torch calls AMD's devices "cuda" too: the name counts only where its vendor has this type.
  if (named && interop_of(named->vendor()).dlpack == type) return *named;
  return device_of_dlpack(type, index);
}

}  // namespace hmc::bindings
