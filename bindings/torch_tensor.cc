#include "torch_tensor.h"

#include <array>
#include <cstring>

#include "dlpack_abi.h"
#include "interop.h"

namespace hmc::bindings {
namespace {

// A type met before. Its references are never dropped: the interpreter may have ended before.
struct TorchType {
  PyTypeObject* type = nullptr;
  const DlExchangeApi* api = nullptr;  // null: this torch has none, and its tensors go by the protocols
  PyObject* is_in_bad_fork = nullptr;  // of torch._C; null in builds without CUDA and HIP
  PyObject* current_stream = nullptr;  // the same: by the index of a device its current stream's handle
};

struct TypeName {
  const char* module;
  const char* type;
};
constexpr std::array<TypeName, 2> torch_types{{{"torch", "Tensor"}, {"torch.nn.parameter", "Parameter"}}};

// What an object has under a name; null, and no exception, where it has none or raises.
py::object attribute_if_any(PyObject* object, const char* name) {
  PyObject* const value = in_interpreter([&] { return PyObject_GetAttrString(object, name); });
  if (value == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(value);
}

// Of a module that is imported already.
py::object attribute_of_imported(const char* module, const char* name) {
  const py::str name_of_module(module);
  const auto found = py::reinterpret_steal<py::object>(in_interpreter([&] { return PyImport_GetModule(name_of_module.ptr()); }));
  if (!found) PyErr_Clear();
  return found ? attribute_if_any(found.ptr(), name) : py::object();
}

const DlExchangeApi* exchange_api_of(PyTypeObject* type) {
  const py::object capsule = attribute_if_any(reinterpret_cast<PyObject*>(type), dlpack_exchange_attribute);
  if (!capsule || PyCapsule_IsValid(capsule.ptr(), dlpack_exchange_name) == 0) return nullptr;
  const auto* api = static_cast<const DlExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), dlpack_exchange_name));
  return api->major == 1 && api->tensor_of != nullptr ? api : nullptr;
}

// Null for every type but torch's two.
const TorchType* torch_type_of(PyTypeObject* type) {
  static std::array<TorchType, torch_types.size()> known;
  for (const TorchType& one : known) {
    if (one.type == type) return &one;
  }
  for (std::size_t i = 0; i < torch_types.size(); ++i) {
    if (std::strcmp(type->tp_name, torch_types[i].type) != 0) continue;
    if (attribute_of_imported(torch_types[i].module, torch_types[i].type).ptr() != reinterpret_cast<PyObject*>(type)) continue;
    known[i] = {reinterpret_cast<PyTypeObject*>(Py_NewRef(type)), exchange_api_of(type),
                attribute_of_imported("torch._C", "_cuda_isInBadFork").release().ptr(),
                attribute_of_imported("torch._C", "_cuda_getCurrentRawStream").release().ptr()};
    return &known[i];
  }
  return nullptr;
}

// Whether the call or the attribute is exactly False.
bool is_false(PyObject* answer) {
  if (answer == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(answer).ptr() == Py_False;
}

bool says_false(PyObject* tensor, PyObject* method) {
  std::array<PyObject*, 2> arguments{nullptr, tensor};
  return is_false(in_interpreter(
      [&] { return PyObject_VectorcallMethod(method, arguments.data() + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr); }));
}

// The negative and conjugate bits, of which DLPack does not tell, and gradients: the protocols refuse each with words of its own.
bool plain_values(PyObject* tensor, const DlTensor& described) {
  static PyObject* const requires_grad = PyUnicode_InternFromString("requires_grad");
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  static PyObject* const is_conj = PyUnicode_InternFromString("is_conj");
  return is_false(in_interpreter([&] { return PyObject_GetAttr(tensor, requires_grad); })) && says_false(tensor, is_neg) &&
         (described.dtype.code != dlpack_complex || says_false(tensor, is_conj));
}

std::optional<std::size_t> size_by(PyObject* object, PyObject* method) {
  std::array<PyObject*, 2> arguments{nullptr, object};
  const auto found = py::reinterpret_steal<py::object>(in_interpreter(
      [&] { return PyObject_VectorcallMethod(method, arguments.data() + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr); }));
  const std::size_t size = found ? PyLong_AsSize_t(found.ptr()) : 0;
  if (PyErr_Occurred() == nullptr) return size;
  PyErr_Clear();
  return std::nullopt;
}

// Whether all of the tensor's bytes are in its storage, which may have been resized under it (FSDP frees parameters so). To ask the
// storage costs more than the rest of a small send: unless `thorough`, of short tensors only a storage without memory is found.
bool within_storage(PyObject* tensor, const DlTensor& described, std::size_t bytes, bool thorough) {
  constexpr std::size_t is_short = 16384;
  constexpr std::uintptr_t low = std::uintptr_t{1} << 40;  // an address from which on it is no offset into a storage at null
  static PyObject* const untyped_storage = PyUnicode_InternFromString("untyped_storage");
  static PyObject* const nbytes = PyUnicode_InternFromString("nbytes");
  static PyObject* const storage_offset = PyUnicode_InternFromString("storage_offset");
  if (bytes == 0) return true;
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(described.data) + described.byte_offset;
  const bool ask = thorough || bytes >= is_short;
  if (!ask && address >= low) return true;
  const std::size_t item = (static_cast<std::size_t>(described.dtype.bits) * described.dtype.lanes + 7) / 8;
  const std::optional<std::size_t> first = size_by(tensor, storage_offset);
  if (!first || address == *first * item) return false;
  if (!ask) return true;
  const auto storage =
      py::reinterpret_steal<py::object>(in_interpreter([&] { return PyObject_CallMethodNoArgs(tensor, untyped_storage); }));
  if (!storage) PyErr_Clear();
  const std::optional<std::size_t> held = storage ? size_by(storage.ptr(), nbytes) : std::nullopt;
  return held && bytes <= *held && *first <= (*held - bytes) / item;
}

// What torch.cuda.current_stream(index) would name. False where that raises, or where this torch has another way.
bool current_stream(const TorchType& torch, std::int32_t index, StreamHandle& stream) {
  if (torch.is_in_bad_fork == nullptr || torch.current_stream == nullptr) return false;
  if (!is_false(in_interpreter([&] { return PyObject_CallNoArgs(torch.is_in_bad_fork); }))) return false;
  const py::int_ number(index);
  const auto handle =
      py::reinterpret_steal<py::object>(in_interpreter([&] { return PyObject_CallOneArg(torch.current_stream, number.ptr()); }));
  if (handle && PyLong_Check(handle.ptr()) != 0) {
    stream = stream_of(handle);
    return true;
  }
  PyErr_Clear();
  return false;
}

}  // namespace

void refuse_beyond_storage(py::handle object) {
  const py::object storage_of = attribute_or_null(object, "untyped_storage");
  if (!storage_of || PyCallable_Check(storage_of.ptr()) == 0) return;
  std::size_t held = 0, end = 0;
  try {
    const py::object storage = call_python(storage_of);
    held = call_python(attribute_of(storage, "nbytes")).cast<std::size_t>();
    if (call_python(attribute_of(object, "numel")).cast<std::size_t>() == 0) return;
    const py::object shape = attribute_of(object, "shape"), strides = call_python(attribute_of(object, "stride"));
    end = call_python(attribute_of(object, "storage_offset")).cast<std::size_t>() + 1;
    for (std::size_t i = 0; i < py::len(shape); ++i) {
      end += (shape[py::int_(i)].cast<std::size_t>() - 1) * strides[py::int_(i)].cast<std::size_t>();
    }
    end *= call_python(attribute_of(object, "element_size")).cast<std::size_t>();
  } catch (const py::cast_error&) {
    return;
  } catch (py::error_already_set& error) {  // sparse tensors have no storage: the protocols refuse them
    if (!error.matches(PyExc_Exception)) throw;
    return;
  }
  if (end <= held) return;
  refuse("a " + std::string(Py_TYPE(object.ptr())->tp_name) + " whose elements end at byte " + std::to_string(end) +
         " of its storage of " + std::to_string(held) + " bytes, which was resized: resize it back before passing the tensor");
}

bool torch_view(py::handle object, MemoryView& view, bool thorough) {
  const TorchType* const torch = torch_type_of(Py_TYPE(object.ptr()));
  if (torch == nullptr || torch->api == nullptr) return false;
  DlTensor tensor{};
  if (in_interpreter([&] { return torch->api->tensor_of(object.ptr(), &tensor); }) != 0) {
    PyErr_Clear();
    return false;
  }
  const std::optional<std::size_t> bytes = contiguous_bytes(tensor);
  if (!bytes || !plain_values(object.ptr(), tensor) || !within_storage(object.ptr(), tensor, *bytes, thorough)) return false;
  void* const data = *bytes > 0 ? static_cast<std::byte*>(tensor.data) + tensor.byte_offset : nullptr;
  Device device = Device::cpu();
  StreamHandle stream = no_stream;
  if (tensor.device.type != dlpack_cpu) {
    // Torch calls AMD's devices "cuda" too. Other vendors' have streams of their own, and an empty tensor has no address.
    const bool of_cuda = tensor.device.type == interop_of("cuda").dlpack || tensor.device.type == interop_of("rocm").dlpack;
    if (!of_cuda || *bytes == 0 || !current_stream(*torch, tensor.device.id, stream)) return false;
    // The code does not always name the vendor: ask the runtimes whose pointer it is.
    device = check(Memory::wrap(data, *bytes)).device();
    if (device.is_cpu()) return false;
  }
  view.data = data;
  view.bytes = *bytes;
  view.device = device;
  view.stream = stream;
  return true;
}

}  // namespace hmc::bindings
