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

bool torch_view(py::handle object, MemoryView& view) {
  const TorchType* const torch = torch_type_of(Py_TYPE(object.ptr()));
  if (torch == nullptr || torch->api == nullptr) return false;
  DlTensor tensor{};
  if (in_interpreter([&] { return torch->api->tensor_of(object.ptr(), &tensor); }) != 0) {
    PyErr_Clear();
    return false;
  }
  const std::optional<std::size_t> bytes = contiguous_bytes(tensor);
  if (!bytes || !plain_values(object.ptr(), tensor)) return false;
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
