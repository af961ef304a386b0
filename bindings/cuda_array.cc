#include "cuda_array.h"

#include <charconv>
#include <limits>

#include "interop.h"

namespace hmc::bindings {
namespace {

constexpr const char* attribute = "__cuda_array_interface__";

[[noreturn]] void malformed(py::handle array, const std::string& what) {
  refuse(std::string(attribute) + " of a " + Py_TYPE(array.ptr())->tp_name + " " + what);
}

// The entry `key` as a T; refuses what is missing or another type.
template <class T>
T entry(py::handle array, const py::dict& face, const char* key) {
  if (!face.contains(key)) malformed(array, "has no '" + std::string(key) + "'");
  try {
    return face[key].cast<T>();
  } catch (const py::cast_error&) {
    malformed(array,
              "has a '" + std::string(key) + "' that the protocol does not allow: " + py::repr(face[key]).cast<std::string>());
  }
}

bool given(const py::dict& face, const char* key) { return face.contains(key) && !py::object(face[key]).is_none(); }

// "<f4" says it itself; NumPy knows every other spelling, such as hip-python's "B".
std::size_t item_size(py::handle array, const std::string& type) {
  std::size_t bytes = 0;
  if (type.size() > 2 && std::string_view("<>|=").find(type[0]) != std::string_view::npos &&
      std::string_view("biufcV").find(type[1]) != std::string_view::npos) {
    const char* end = type.data() + type.size();
    const auto [stop, error] = std::from_chars(type.data() + 2, end, bytes);
    if (error == std::errc() && stop == end) return bytes;
  }
  py::object dtype;
  try {
    dtype = py::module_::import("numpy").attr("dtype")(type);
  } catch (const py::error_already_set&) {
    malformed(array, "has the 'typestr' \"" + type + "\", which is no type of NumPy's");
  }
  if (dtype.attr("hasobject").cast<bool>()) refuse("an array of Python objects cannot be transferred");
  return dtype.attr("itemsize").cast<std::size_t>();
}

std::size_t contiguous_bytes(py::handle array, const py::dict& face) {
  constexpr auto most = static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max());
  const auto shape = entry<std::vector<std::size_t>>(array, face, "shape");
  std::vector<std::int64_t> strides;
  if (given(face, "strides")) strides = entry<std::vector<std::int64_t>>(array, face, "strides");
  if (!strides.empty() && strides.size() != shape.size()) malformed(array, "has strides for another shape");
  std::size_t bytes = item_size(array, entry<std::string>(array, face, "typestr"));
  if (bytes > most) malformed(array, "has elements that no memory holds");
  bool contiguous = true;
  bool empty = bytes == 0;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (!strides.empty() && shape[i] > 1 && strides[i] != static_cast<std::int64_t>(bytes)) contiguous = false;
    if (shape[i] == 0) empty = true;
    if (!empty && shape[i] > most / bytes) malformed(array, "has a shape that no memory holds");
    bytes *= shape[i];
  }
  if (empty) return 0;
  if (!contiguous) refuse("a strided device array cannot be transferred; make it contiguous");
  return bytes;
}

}  // namespace

CudaArray take_cuda_array(py::handle array) {
  const py::object face_object = attribute_of(array, attribute);
  if (!py::isinstance<py::dict>(face_object)) malformed(array, "is not a dict");
  const auto face = py::reinterpret_borrow<py::dict>(face_object);
  const auto data = entry<std::pair<std::uintptr_t, bool>>(array, face, "data");
  if (given(face, "mask")) refuse("a masked device array cannot be transferred");
  CudaArray taken;
  taken.read_only = data.second;
  // The protocol's name says nothing of the owner: ask the runtimes.
  taken.memory = check(Memory::wrap(reinterpret_cast<void*>(data.first), contiguous_bytes(array, face)));
  taken.device = taken.memory.size() > 0 ? taken.memory.device() : device_of_empty(array);
  taken.on_host = taken.memory.size() > 0 && taken.device.is_cpu();
  taken.stream = given(face, "stream") ? py::object(face["stream"]) : py::none();
  return taken;
}

py::dict give_cuda_array(const Memory& memory) {
  const Device device = memory.device();
  if (!interop_of(device.vendor()).like_cuda) {
    throw py::attribute_error("memory on " + device.str() + " has no " + attribute + (device.is_cpu() ? "" : "; use DLPack"));
  }
  const void* data = memory.size() == 0 ? nullptr : memory.data();  // the protocol wants 0 for what is empty
  py::dict face;
  face["shape"] = py::make_tuple(memory.size());
  face["typestr"] = "|u1";
  face["data"] = py::make_tuple(reinterpret_cast<std::uintptr_t>(data), memory.read_only());
  face["strides"] = py::none();
  face["stream"] = py::none();
  face["version"] = 3;
  return face;
}

}  // namespace hmc::bindings
