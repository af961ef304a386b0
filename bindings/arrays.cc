// Python memory as views, and its lifetime across threads.
#include <pybind11/numpy.h>

#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "common.h"
#include "cuda_array.h"
#include "dlpack.h"
#include "interop.h"
#include "torch_tensor.h"

namespace hmc::bindings {
namespace {

// References given up by threads that must not take the GIL (the engine's). Drained by the interpreter's main thread soon
// (Py_AddPendingCall needs no GIL), after a callback, and by the next call: a main thread that waits outside of HMC drains nothing.
struct Released {
  std::mutex mutex;
  std::vector<PyObject*> objects;
  std::atomic<bool> any{false};  // objects is not empty
  bool scheduled = false;        // not where the interpreter's queue of pending calls was full
};
Released* current_released = new Released;  // threads may outlive the interpreter
Released& released() { return *current_released; }

int drain_pending(void*) {
  {
    const std::scoped_lock lock(released().mutex);
    released().scheduled = false;
  }
  drain_released();
  return 0;
}

void release_later(PyObject* object) {
  const ForeignUse use;
  if (!use) return;  // the interpreter ends, and all of its objects with it
  const std::scoped_lock lock(released().mutex);
  released().objects.push_back(object);
  released().any.store(true, std::memory_order_relaxed);
  if (!released().scheduled) released().scheduled = Py_AddPendingCall(drain_pending, nullptr) == 0;
}

struct BufferGuard {
  Py_buffer view{};
  bool held = false;
  ~BufferGuard() {
    if (held) PyBuffer_Release(&view);
  }
};

std::string type_name(py::handle object) { return Py_TYPE(object.ptr())->tp_name; }

// What to hold so that the memory which an object offers stays where it is: a bytearray or an array.array moves when it grows, and
// an mmap is unmapped when it is closed, but not while they are exported. An object may have other memory for each export.
py::object export_of(py::handle object) {
  auto view = py::reinterpret_steal<py::object>(PyMemoryView_FromObject(object.ptr()));
  if (!view) throw py::error_already_set();
  return view;
}

MemoryView plain_view(py::handle owner, void* data, std::size_t bytes, Device device) {
  MemoryView view(data, bytes, device);
  view.owner = shared_reference(owner);
  return view;
}

// Whether an element of a format of the buffer protocol is a Python object. Names of fields are between colons.
bool holds_objects(std::string_view format) {
  bool in_name = false;
  for (const char each : format) {
    if (each == ':') in_name = !in_name;
    if (each == 'O' && !in_name) return true;
  }
  return false;
}

// An object's memory. `read_only`: it must not be written.
struct Viewed {
  MemoryView view;
  bool read_only = false;
};

// A NumPy array by its C struct: the buffer protocol writes a format string at every call, which costs more than a small send.
// False for another type, and for what the buffer protocol would refuse: buffer_view() says why.
bool numpy_view(py::handle object, bool writable, Viewed& viewed) {
  constexpr std::uint64_t has_references = 1;  // NPY_ITEM_REFCOUNT of numpy/ndarraytypes.h: an element holds Python objects
  if (Py_TYPE(object.ptr()) != py::detail::npy_api::get().PyArray_Type_) return false;
  const auto array = py::reinterpret_borrow<py::array>(object);
  const py::dtype type = array.dtype();
  if ((array.flags() & py::array::c_style) == 0 || (writable && !array.writeable()) || (type.flags() & has_references) != 0)
    return false;
  viewed.view.data = const_cast<void*>(array.data());
  viewed.view.bytes = static_cast<std::size_t>(array.size()) * static_cast<std::size_t>(type.itemsize());
  viewed.read_only = !array.writeable();
  return true;
}

// An array that C describes, and whose own reference keeps the memory.
bool direct_view(py::handle object, bool writable, Viewed& viewed, bool thorough) {
  return numpy_view(object, writable, viewed) || torch_view(object, viewed.view, thorough);
}

// Empty where the object offers the buffer protocol and has none to give: JAX for bfloat16 and fp8, and for its devices' memory.
std::optional<Viewed> buffer_view(py::handle object, bool writable) {
  BufferGuard guard;
  const auto take = [&](int flags) {
    guard.held = PyObject_GetBuffer(object.ptr(), &guard.view, flags) == 0;
    if (!guard.held) PyErr_Clear();
    return guard.held;
  };
  if (!take(PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0))) {
    if (writable && take(PyBUF_C_CONTIGUOUS)) refuse("a " + type_name(object) + " that is read-only cannot be received into");
    if (!take(PyBUF_FULL_RO)) return std::nullopt;
    refuse("a " + type_name(object) +
           " that is not C-contiguous cannot be transferred; pass numpy.ascontiguousarray(x), or use blocks");
  }
  if (guard.view.format != nullptr && holds_objects(guard.view.format)) refuse("an array of Python objects cannot be transferred");
  if (PyBytes_CheckExact(object.ptr()) != 0) {
    return Viewed{plain_view(object, guard.view.buf, static_cast<std::size_t>(guard.view.len), Device::cpu()), true};
  }
  const py::object held = export_of(object);
  const Py_buffer& kept = *PyMemoryView_GET_BUFFER(held.ptr());
  if (kept.len != guard.view.len || PyBuffer_IsContiguous(&kept, 'C') == 0)
    refuse("the memory of a " + type_name(object) + " has another shape each time it is asked for");
  return Viewed{plain_view(held, kept.buf, static_cast<std::size_t>(kept.len), Device::cpu()), guard.view.readonly != 0};
}

// Empty when the memory is the host's and the buffer protocol has it: then it goes as other CPU memory does.
std::optional<Viewed> cuda_array_view(py::handle object, bool writable) {
  const CudaArray taken = take_cuda_array(object);
  if (taken.on_host) {
    if (PyObject_CheckBuffer(object.ptr()) != 0) return std::nullopt;
    refuse("no device runtime of this process knows the memory of a " + type_name(object));
  }
  if (writable && taken.read_only) refuse("a read-only device array cannot be received into");
  MemoryView view = plain_view(object, taken.memory.data(), taken.memory.size(), taken.device);
  // An empty array of an unknown device has nothing that a stream could order.
  if (!taken.device.is_cpu()) view.stream = producer_stream(object, taken.stream);
  return Viewed{std::move(view), taken.read_only};
}

// Torch negates and conjugates lazily, by a flag that no protocol hands on.
void refuse_lazy(py::handle object) {
  constexpr std::array<std::pair<const char*, const char*>, 2> flags{{{"is_neg", "resolve_neg()"}, {"is_conj", "resolve_conj()"}}};
  for (const auto& [flag, remedy] : flags) {
    const py::object asked = attribute_or_null(object, flag);
    if (!asked || PyCallable_Check(asked.ptr()) == 0) continue;
    const py::object answer = call_python(asked);
    if (answer.ptr() == Py_True) {
      refuse("a " + type_name(object) + " whose " + flag + "() is true does not hold the values it shows; pass ." + remedy);
    }
  }
}

// Types of Python's own, which no library adds attributes to.
bool plain_buffer(py::handle object) {
  return PyBytes_CheckExact(object.ptr()) != 0 || PyByteArray_CheckExact(object.ptr()) != 0 ||
         PyMemoryView_Check(object.ptr()) != 0;
}

}  // namespace

void drain_released() {
  static std::vector<PyObject*> spare;  // for the next ones: the GIL guards it, and an object's end may come here again
  std::vector<PyObject*> objects = std::exchange(spare, {});
  {
    const std::scoped_lock lock(released().mutex);
    objects.swap(released().objects);
    released().any.store(false, std::memory_order_relaxed);
  }
  in_interpreter([&objects] {
    for (PyObject* object : objects) Py_DECREF(object);
  });
  objects.clear();
  spare = std::move(objects);
}

void drain_if_released() {
  if (released().any.load(std::memory_order_relaxed)) [[unlikely]]
    drain_released();
}

void forget_released() { current_released = new Released; }

std::shared_ptr<const void> shared_reference(py::handle object) {
  Py_INCREF(object.ptr());
  return {static_cast<const void*>(object.ptr()),
          [](const void* p) { release_later(static_cast<PyObject*>(const_cast<void*>(p))); }};
}

struct BorrowedView::Reference {
  PyObject* object = nullptr;
  ~Reference() {
    if (object != nullptr) release_later(object);
  }
};

namespace {

// A collective borrows two.
thread_local std::array<std::shared_ptr<BorrowedView::Reference>, 2> spare_references;

std::shared_ptr<BorrowedView::Reference> take_reference() {
  for (auto& spare : spare_references) {
    if (spare) return std::exchange(spare, nullptr);
  }
  return std::make_shared<BorrowedView::Reference>();
}

void keep_reference(std::shared_ptr<BorrowedView::Reference> reference) {
  for (auto& spare : spare_references) {
    if (!spare) return spare.swap(reference);
  }
}

}  // namespace

BorrowedView::BorrowedView(py::handle object, bool writable, py::handle stream) {
  if (Viewed viewed; direct_view(object, writable, viewed, false)) {
    view_ = std::move(viewed.view);
    reference_ = take_reference();
    reference_->object = Py_NewRef(object.ptr());
    view_.owner = reference_;
  } else {
    view_ = view_of(object, writable);
  }
  if (!stream || stream.is_none()) return;
  view_.stream = stream_of(stream);
  // An array without elements may belong to any of several vendors here: then it is unknown whose stream it is, and there is
  // nothing to order.
  if (view_.bytes == 0 && view_.device.is_cpu() && py::hasattr(object, "__cuda_array_interface__")) view_.stream = no_stream;
}

BorrowedView::~BorrowedView() {
  if (!reference_) return;
  view_.owner.reset();
  if (reference_.use_count() != 1) return;  // the operation goes on
  Py_CLEAR(reference_->object);
  keep_reference(std::move(reference_));
}

namespace {

template <class T>
Viewed own_view(const T& memory, bool writable) {
  Viewed viewed{memory, memory.read_only()};
  if (writable && viewed.read_only) refuse("read-only memory cannot be received into; pass memory that may be written");
  return viewed;
}

Viewed look_at(py::handle object, bool writable) {
  // By exact type first: pybind11's isinstance costs more than the rest of a small send.
  static PyTypeObject* const buffer_type = reinterpret_cast<PyTypeObject*>(py::type::of<ConnBuffer>().release().ptr());
  static PyTypeObject* const memory_type = reinterpret_cast<PyTypeObject*>(py::type::of<Memory>().release().ptr());
  if (Py_TYPE(object.ptr()) == buffer_type) return own_view(object.cast<const ConnBuffer&>(), writable);
  if (Py_TYPE(object.ptr()) == memory_type) return own_view(object.cast<const Memory&>(), writable);
  if (Viewed viewed; direct_view(object, writable, viewed, true)) {
    viewed.view.owner = shared_reference(object);
    return viewed;
  }
  if (!plain_buffer(object)) {
    refuse_lazy(object);
    refuse_beyond_storage(object);
  }
  // Before the buffer protocol, which hip-python's arrays offer for device memory too.
  if (!plain_buffer(object) && has_attribute(object, "__cuda_array_interface__")) {
    if (auto viewed = cuda_array_view(object, writable)) return *std::move(viewed);
  }
  const bool offers_buffer = PyObject_CheckBuffer(object.ptr()) != 0;
  if (offers_buffer) {
    if (auto viewed = buffer_view(object, writable)) return *std::move(viewed);
  }
  if (has_attribute(object, "__dlpack__")) {
    const DlpackView taken = take_dlpack(object);
    Viewed viewed{MemoryView(taken.data, taken.bytes, taken.device), false};
    viewed.view.owner = shared_reference(taken.capsule);
    // We named no stream, so the producer has ordered the tensor before the default one.
    const bool ordered = interop_of(taken.device.vendor()).like_cuda;
    if (!taken.device.is_cpu()) viewed.view.stream = producer_stream(object, ordered ? py::object(py::int_(0)) : py::none());
    // Those that refuse a buffer have arrays that nobody may write, and tensors of the older kind do not say so.
    viewed.read_only = taken.read_only || (offers_buffer && !taken.says_writable);
    if (writable && viewed.read_only) refuse("a " + type_name(object) + " that is read-only cannot be received into");
    return viewed;
  }
  refuse(
      "a " + type_name(object) +
      " has no memory to transfer: pass an array (buffer protocol, DLPack or __cuda_array_interface__), a Memory or a ConnBuffer");
}

}  // namespace

MemoryView view_of(py::handle object, bool writable) { return look_at(object, writable).view; }

Memory memory_of(py::handle object) { return memory_and_stream_of(object).first; }

std::pair<Memory, StreamHandle> memory_and_stream_of(py::handle object) {
  if (py::isinstance<ConnBuffer>(object)) return {object.cast<const ConnBuffer&>().memory(), no_stream};
  if (py::isinstance<Memory>(object)) return {object.cast<const Memory&>(), no_stream};
  const Viewed viewed = look_at(object, false);
  const MemoryView& view = viewed.view;
  if (!viewed.read_only) return {memory_of(view), view.stream};
  auto drop = [owner = view.owner]() mutable { owner.reset(); };
  return {check(Memory::wrap_read_only(view.data, view.bytes, view.device, std::move(drop))), view.stream};
}

Memory memory_of(const MemoryView& view) {
  return check(Memory::wrap(view.data, view.bytes, view.device, [owner = view.owner]() mutable { owner.reset(); }));
}

std::size_t item_size_of(py::handle object) {
  if (py::isinstance<ConnBuffer>(object) || py::isinstance<Memory>(object)) return 1;
  if (py::hasattr(object, "itemsize")) return object.attr("itemsize").cast<std::size_t>();
  BufferGuard guard;
  if (PyObject_CheckBuffer(object.ptr()) != 0 &&
      PyObject_GetBuffer(object.ptr(), &guard.view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0) {
    guard.held = true;
    return static_cast<std::size_t>(guard.view.itemsize);
  }
  PyErr_Clear();
  return 1;
}

Offsets offsets_of(py::handle object, const char* name) {
  // ensure() would discard the error, which may be that of a signal handler.
  const py::array array(py::reinterpret_borrow<py::object>(object));
  const char kind = array.dtype().kind();
  if (array.size() > 0 && kind != 'i' && kind != 'u') {
    refuse(std::string(name) + " must be integers (bytes), not dtype " + written(array.dtype()));
  }
  if (array.ndim() != 1) refuse(std::string(name) + " must be one-dimensional");
  if (kind == 'u') {
    const py::array_t<std::uint64_t, py::array::c_style | py::array::forcecast> flat(array);
    return {flat, {flat.data(), static_cast<std::size_t>(flat.size())}};
  }
  // Where none is negative, signed offsets are unsigned ones as they lie.
  const py::array_t<std::int64_t, py::array::c_style | py::array::forcecast> flat(array);
  const std::span<const std::uint64_t> values(reinterpret_cast<const std::uint64_t*>(flat.data()),
                                              static_cast<std::size_t>(flat.size()));
  std::uint64_t bits = 0;
  for (const std::uint64_t value : values) bits |= value;
  if (bits >> 63 != 0) refuse(std::string(name) + " holds a negative offset");
  return {flat, values};
}

std::vector<std::uint64_t> copied_offsets_of(py::handle object, const char* name) {
  const Offsets given = offsets_of(object, name);
  return {given.values.begin(), given.values.end()};
}

Device device_of(py::handle object) {
  if (!object || object.is_none()) return Device::cpu();
  return check(Device::parse(written(object)));
}

Notify notify_of(py::handle object, std::string& payload) {
  if (!object || object.is_none()) return {};
  if (PyIndex_Check(object.ptr()) != 0 && PyBool_Check(object.ptr()) == 0) {
    const py::object number = index_of(object, "notify");
    const std::int64_t id = PyLong_AsLongLong(number.ptr());
    if (PyErr_Occurred() != nullptr) PyErr_Clear();  // beyond 64 bits
    if (id < 0) refuse("a notification id must be from 0 to 2**63 - 1, and is " + text_of_int(number));
    return {static_cast<std::uint64_t>(id)};
  }
  if (PyBytes_Check(object.ptr()) == 0)
    throw py::type_error("notify must be None, an int (counted) or bytes (a payload), not a " + type_name(object));
  payload = object.cast<std::string>();
  return {std::as_bytes(std::span(payload.data(), payload.size()))};
}

}  // namespace hmc::bindings
