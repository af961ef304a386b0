#include "dlpack.h"

#include <algorithm>
#include <limits>

#include "arguments.h"

#include "dlpack_abi.h"
#include "interop.h"

namespace hmc::bindings {
namespace {

constexpr std::uint64_t read_only_flag = 1;
constexpr const char* plain_name = "dltensor";
constexpr const char* versioned_name = "dltensor_versioned";

// What an exported capsule owns: the memory, and the arrays its tensor points to.
template <class Managed>
struct Export {
  Managed managed{};
  Memory memory;
  std::int64_t shape = 0;
  std::int64_t stride = 1;

  [[nodiscard]] std::size_t size() const noexcept { return memory.size(); }
  [[nodiscard]] std::size_t offset() const noexcept { return memory.offset(); }
};

template <class Managed>
void drop_capsule(PyObject* capsule, const char* name) {
  if (PyCapsule_IsValid(capsule, name) == 0) return;  // consumed: the consumer calls the deleter
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

template <class Managed>
Managed* export_memory(const Memory& memory) {
  auto* exported = new Export<Managed>;
  exported->memory = memory;
  exported->shape = static_cast<std::int64_t>(memory.size());
  DlTensor& tensor = exported->managed.tensor;
  const DlDevice device{interop_of(memory.device().vendor()).dlpack, memory.device().index()};
  tensor = {memory.data(), device, 1, {1, 8, 1}, &exported->shape, &exported->stride, 0};
  exported->managed.manager = exported;
  exported->managed.deleter = [](Managed* managed) {
    using Exported = Export<Managed>;
    FreeLargeWithoutGil<Exported>()(static_cast<Exported*>(managed->manager));
  };
  return &exported->managed;
}

// Refuses shapes whose bytes a signed 64-bit number does not hold, and elements that share bytes.
void check_size(const DlTensor& tensor) {
  const std::uint64_t item = std::uint64_t{tensor.dtype.bits} * tensor.dtype.lanes;
  if (item == 0 || item % 8 != 0)
    refuse("a tensor whose elements have " + std::to_string(item) + " bits cannot be transferred; view it as whole bytes");
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t bytes = item / 8;
  bool possible = tensor.ndim >= 0;
  for (std::int32_t i = 0; i < tensor.ndim; ++i) possible = possible && tensor.shape[i] >= 0;
  const bool empty = possible && std::find(tensor.shape, tensor.shape + tensor.ndim, 0) != tensor.shape + tensor.ndim;
  for (std::int32_t i = 0; possible && !empty && i < tensor.ndim; ++i) {
    possible = static_cast<std::uint64_t>(tensor.shape[i]) <= most / bytes;
    bytes *= static_cast<std::uint64_t>(tensor.shape[i]);
  }
  if (!possible) refuse("the tensor has a shape that no memory holds");
}

}  // namespace

DlpackView take_dlpack(py::handle object) {
  DlpackView view;
  try {
    py::dict keywords;
    keywords["max_version"] = py::make_tuple(1, 0);
    view.capsule = call_python(attribute_of(object, "__dlpack__"), py::tuple(), keywords);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    view.capsule = call_python(attribute_of(object, "__dlpack__"));  // a producer from before versions
  }
  const DlTensor* tensor = nullptr;
  if (PyCapsule_IsValid(view.capsule.ptr(), versioned_name) != 0) {
    const auto* managed = static_cast<DlManagedTensorVersioned*>(PyCapsule_GetPointer(view.capsule.ptr(), versioned_name));
    if (managed->major != 1) refuse("the tensor's DLPack version is not 1.x");
    view.read_only = (managed->flags & read_only_flag) != 0;
    view.says_writable = !view.read_only;
    tensor = &managed->tensor;
  } else if (PyCapsule_IsValid(view.capsule.ptr(), plain_name) != 0) {
    tensor = &static_cast<DlManagedTensor*>(PyCapsule_GetPointer(view.capsule.ptr(), plain_name))->tensor;
  } else {
    refuse("__dlpack__ did not return a tensor");
  }
  check_size(*tensor);
  const std::optional<std::size_t> bytes = contiguous_bytes(*tensor);
  if (!bytes) refuse("a tensor that is not C-contiguous cannot be transferred; make it contiguous, or use blocks");
  view.bytes = *bytes;
  view.data = view.bytes > 0 ? static_cast<std::byte*>(tensor->data) + tensor->byte_offset : nullptr;
  const std::int32_t type = tensor->device.type;
  if (!dlpack_on_host(type)) {
    // The code does not always name the vendor: ask the runtimes whose pointer it is.
    view.device = view.bytes > 0 ? check(Memory::wrap(view.data, view.bytes)).device() : device_of_empty(object);
    if (view.bytes > 0 && view.device.is_cpu()) {
      refuse("no device runtime of this process knows the memory of this tensor (DLPack device type " + std::to_string(type) + ")");
    }
  }
  return view;
}

py::object give_dlpack(const Memory& memory, py::handle max_version) {
  const bool given = max_version && !max_version.is_none();
  const std::vector<int> version = given ? argument_of<std::vector<int>>(max_version, "max_version") : std::vector<int>();
  if (given && version.size() != 2) refuse("max_version must be (major, minor)");
  const bool versioned = given && version[0] >= 1;
  if (memory.read_only() && !versioned) {
    throw py::buffer_error(
        "read-only memory is exported by DLPack 1.0 and later only: earlier versions cannot mark it as read-only");
  }
  PyObject* capsule = nullptr;
  if (versioned) {
    auto* managed = export_memory<DlManagedTensorVersioned>(memory);
    managed->major = 1;
    managed->minor = 0;
    managed->flags = memory.read_only() ? read_only_flag : 0;
    capsule =
        PyCapsule_New(managed, versioned_name, [](PyObject* c) { drop_capsule<DlManagedTensorVersioned>(c, versioned_name); });
  } else {
    auto* managed = export_memory<DlManagedTensor>(memory);
    capsule = PyCapsule_New(managed, plain_name, [](PyObject* c) { drop_capsule<DlManagedTensor>(c, plain_name); });
  }
  if (capsule == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(capsule);
}

py::tuple dlpack_device(const Memory& memory) {
  return py::make_tuple(interop_of(memory.device().vendor()).dlpack, memory.device().index());
}

}  // namespace hmc::bindings
