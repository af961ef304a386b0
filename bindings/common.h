// What every binding file needs: errors, deadlines, views of Python memory, waits that Ctrl-C can end.
#pragma once

#include <hmc/hmc.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gil.h"
#include "work.h"

// Text of the core as str: what is not UTF-8 (a path, a driver's or a host's name) gets replacement characters instead of raising.
template <>
struct pybind11::detail::type_caster<std::string> : string_caster<std::string> {
  static handle cast(const std::string& text, return_value_policy, handle) {
    PyObject* made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
    if (made == nullptr) throw error_already_set();
    return made;
  }
};

namespace hmc::bindings {

namespace py = pybind11;

// Values of an argument of that name. Throw TypeError, or InvalidArgumentError for what is out of range, that names it.
std::int64_t integer_of(py::handle object, const char* name);   // no bool
py::object index_of(py::handle object, const char* name);       // the same as a Python int of any size
double number_of(py::handle object, const char* name);          // may be NaN
bool flag_of(py::handle object, const char* name);              // of Python or NumPy
std::string_view text_of(py::handle object, const char* name);  // of a str, which keeps it
std::string file_of(py::handle object, const char* name);       // of a path: a str, bytes or os.PathLike
py::handle callable_of(py::handle object, const char* name);
// str(object) for a message or a parser: what is no text (a lone surrogate) is escaped.
std::string written(py::handle object);
std::string text_of_int(const py::object& index);  // of very many digits: how many bits they take
// A size in bytes as an argument named `nbytes`: anything else raises TypeError or InvalidArgumentError that names it.
struct ByteCount {
  std::size_t value = 0;
};
std::size_t byte_count(py::handle object);
// Seconds or None; TypeError that names the argument for anything else.
std::optional<double> seconds_of(py::handle timeout);

}  // namespace hmc::bindings

namespace pybind11::detail {

// Every optional number of seconds is a timeout.
template <>
struct type_caster<std::optional<double>> {
  PYBIND11_TYPE_CASTER(std::optional<double>, const_name("float | None"));
  bool load(handle source, bool) {
    value = hmc::bindings::seconds_of(source);
    return true;
  }
  static handle cast(const std::optional<double>& seconds, return_value_policy, handle) {
    return seconds ? PyFloat_FromDouble(*seconds) : none().release();
  }
};

template <>
struct type_caster<hmc::bindings::ByteCount> {
  PYBIND11_TYPE_CASTER(hmc::bindings::ByteCount, const_name("int"));
  bool load(handle source, bool) {
    value.value = hmc::bindings::byte_count(source);
    return true;
  }
};

}  // namespace pybind11::detail

namespace hmc::bindings {

// ---- errors.cc ----
// Raised for a Status; the translator makes it the Python class of its code (hmc/errors.py).
class StatusError : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)) {}
  [[nodiscard]] const Status& status() const noexcept { return status_; }

 private:
  Status status_;
};
void check(const Status& status);  // throws StatusError
template <class T>
T check(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}
[[noreturn]] void refuse(std::string message);  // invalid_argument
py::object make_error(const Status& status);    // the exception instance, GIL held
void set_error(const Status& status) noexcept;  // PyErr_SetObject, for C functions

// Throws TypeError: `object` was made by its type's __new__ alone, so there is nothing behind it.
[[noreturn]] void refuse_uninitialised(py::handle object);
// Makes every class of the module refuse calls on such objects; pybind11 would call them on uninitialised memory.
void refuse_uninitialised_objects(py::module_& module);
// Makes them refuse pickle and copy. With protocols 0 and 1 Python would make an object of pybind11's base class, which ends the
// process.
void refuse_pickling(py::module_& module);

// Python code of array libraries, which the end of the interpreter may interrupt (in_interpreter). GIL held.
bool has_attribute(py::handle object, const char* name);            // false whatever it raises
py::object attribute_of(py::handle object, const char* name);       // throws what it raises
py::object attribute_or_null(py::handle object, const char* name);  // null where it raises AttributeError; throws the rest
py::object call_python(py::handle callable, const py::tuple& arguments = py::tuple(), const py::dict& keywords = py::dict());

// Throws ClosedError for an object made before fork(), where the call itself returns no Status. Other Contexts pass.
void refuse_if_forked(const Context& context);

// ---- time ----
// Seconds, None for ever. Throws ValueError (as InvalidArgumentError) for negative or NaN.
Deadline deadline_of(py::handle timeout);
Deadline deadline_of(const std::optional<double>& timeout);
// When a blocking call gives up the GIL: at once, or when it waits. A call that only takes what is there keeps it: giving it up and
// taking it back costs as much as a small message.
enum class Gil { released, until_waiting };
// For a call that may copy this much itself: a post copies up to 1 MiB.
inline Gil gil_for(std::size_t bytes) { return bytes <= 4096 ? Gil::until_waiting : Gil::released; }

// Around one blocking call: the GIL, and signals. A signal whose handler raises ends the call early (hmc/interrupt.h).
class BlockingCall final : public Interruptible {
 public:
  explicit BlockingCall(Gil gil) {
    if (gil == Gil::released) before_waiting();
  }
  ~BlockingCall() override { take_gil(); }
  bool asked() override;
  void before_waiting() override {
    if (released_ == nullptr) released_ = PyEval_SaveThread();
  }
  // What the handler raised, if it did.
  [[nodiscard]] std::optional<py::error_already_set>& raised() noexcept { return raised_; }

 private:
  void take_gil() {
    if (released_ != nullptr) restore_thread(std::exchange(released_, nullptr));
  }
  PyThreadState* released_ = nullptr;
  std::optional<py::error_already_set> raised_;
};

// Raises the exception of a signal's handler at the interpreter's next look for signals, or ends the next blocking call with it.
// False: the interpreter takes no more such requests. GIL held, on the thread that handles signals.
bool raise_later(py::error_already_set& raised);

// Drops references that operations gave up on other threads. GIL held.
void drain_released();
void drain_if_released();  // the same, at no cost where there are none

// Runs a blocking call. A signal whose handler raises ends it: what it was about fails, and the handler's exception is thrown. A
// call that succeeded all the same returns its result, which exists only once (a notification, a Work): the exception comes after
// it.
template <class Call>
auto interruptible(Call call, Gil gil = Gil::released) {
  drain_if_released();
  std::unique_ptr<py::error_already_set> raised;
  std::optional<decltype(call())> outcome;
  {
    BlockingCall scope(gil);
    outcome.emplace(call());
    if (scope.raised()) [[unlikely]] {
      if (!outcome->ok()) outcome.reset();  // its end may wait for threads that need the GIL
      raised = std::make_unique<py::error_already_set>(*std::move(scope.raised()));
    }
  }
  if (raised && outcome) {
    if (raise_later(*raised)) {
      raised.reset();
    } else {
      const ReleasedGil nogil;
      outcome.reset();
    }
  }
  if (raised) throw py::error_already_set(std::move(*raised));
  return check(*std::move(outcome));
}

// ---- arrays.cc ----
// The bytes of `object`: Memory, ConnBuffer, NumPy and anything with the buffer protocol, DLPack or __cuda_array_interface__.
// The view's owner keeps the Python object until the operation is over. Throws InvalidArgumentError for read-only (when
// `writable`), non-contiguous or object arrays.
MemoryView view_of(py::handle object, bool writable);
// The same for one call: nothing is allocated for a NumPy array unless the operation outlives the call. GIL held at both ends. A
// `stream` that is named takes the place of the producer's.
class BorrowedView {
 public:
  struct Reference;
  BorrowedView(py::handle object, bool writable, py::handle stream = {});
  ~BorrowedView();
  BorrowedView(const BorrowedView&) = delete;
  BorrowedView& operator=(const BorrowedView&) = delete;
  const MemoryView& operator*() const noexcept { return view_; }
  const MemoryView* operator->() const noexcept { return &view_; }

 private:
  std::shared_ptr<Reference> reference_;  // the thread uses it again unless an operation kept it
  MemoryView view_;
};
// As a Memory handle (for registration).
Memory memory_of(py::handle object);
Memory memory_of(const MemoryView& view);
// And the stream on which it is produced; no_stream where nothing says so.
std::pair<Memory, StreamHandle> memory_and_stream_of(py::handle object);
// uint64 offsets from any integer array or sequence, without a Python loop for arrays and without a copy of 64-bit ones.
struct Offsets {
  py::object array;  // holds them
  std::span<const std::uint64_t> values;
};
Offsets offsets_of(py::handle object, const char* name);
// A copy of them, for code without the GIL: other threads may write into the array meanwhile.
std::vector<std::uint64_t> copied_offsets_of(py::handle object, const char* name);
// The device of an array without elements, as __dlpack_device__ and a framework's `device` name it; the CPU where neither does.
Device device_of_empty(py::handle array);
// Bytes per element of an array-like; 1 for raw memory.
std::size_t item_size_of(py::handle object);
// In a forked child: a thread that it does not have may hold the lock of the parent's list.
void forget_released();
// A shared owner of a Python reference that any thread may drop without the GIL.
std::shared_ptr<const void> shared_reference(py::handle object);
inline PyObject* object_of(const std::shared_ptr<const void>& reference) {
  return static_cast<PyObject*>(const_cast<void*>(reference.get()));
}

// ---- streams.cc ----
StreamHandle stream_of(py::handle object);  // None (no_stream), number, framework stream, __cuda_stream__
Device stream_device(py::handle object);    // whose a framework's stream is; throws when it does not say
StreamHandle producer_stream(py::handle array, py::handle declared);

// ---- work.cc; see also work.h ----
py::object make_info(const MessageInfo& info);

Device device_of(py::handle object);                        // text or None (cpu)
Notify notify_of(py::handle object, std::string& payload);  // None, int, or bytes (kept in `payload`)

// ---- one per public header ----
void bind_errors(py::module_& module);
void bind_device(py::module_& module);
void bind_streams(py::module_& module);
void bind_memory(py::module_& module);
void bind_buffer(py::module_& module);
void bind_work(py::module_& module);
void bind_native(py::module_& module);
void bind_path(py::module_& module);
void bind_topology(py::module_& module);
void bind_plan(py::module_& module);
void bind_islands(py::module_& module);
void bind_layout(py::module_& module);
void bind_experts(py::module_& module);
void bind_peer(py::module_& module);
void bind_pages(py::module_& module);
void bind_context(py::module_& module);
void bind_communicator(py::module_& module);
void bind_baseline(py::module_& module);

}  // namespace hmc::bindings
