#include <limits>
#include <new>
#include <system_error>

#include "common.h"

namespace hmc::bindings {
namespace {

// The classes of hmc/errors.py by code, looked up once; never released (they live as long as the interpreter).
py::handle class_of(Code code) {
  static py::handle const by_code = [] {
    py::object table = py::module_::import("hmc.errors").attr("BY_CODE");
    return table.release();
  }();
  static py::handle const base = py::object(py::module_::import("hmc.errors").attr("HmcError")).release();
  const py::int_ key(static_cast<int>(code));
  return by_code.contains(key) ? py::handle(py::reinterpret_borrow<py::dict>(by_code)[key]) : base;
}

// Calls change(class, its record) for each class of pybind11 in the module.
template <class Change>
void for_each_class(const py::module_& module, Change change) {
  for (const auto& [name, value] : module.attr("__dict__").cast<py::dict>()) {
    if (PyType_Check(value.ptr()) == 0) continue;
    auto* const info = py::detail::get_type_info(reinterpret_cast<PyTypeObject*>(value.ptr()));
    if (info != nullptr) change(value, *info);
  }
}

}  // namespace

void check(const Status& status) {
  if (!status.ok()) throw StatusError(status);
}

void refuse(std::string message) { throw StatusError(Status(Code::invalid_argument, std::move(message))); }

void refuse_uninitialised(py::handle object) {
  throw py::type_error(std::string("this ") + Py_TYPE(object.ptr())->tp_name + " was not initialised: its __init__() has not run");
}

void refuse_uninitialised_objects(py::module_& module) {
  for_each_class(module, [](py::handle, py::detail::type_info& info) {
    // Where an argument is loaded, pybind11 allocates what an old-style __init__ would construct in place; none of ours does.
    info.operator_new = [](std::size_t) -> void* {
      throw py::type_error("this object was not initialised: its __init__() has not run");
    };
  });
}

void refuse_pickling(py::module_& module) {
  for_each_class(module, [](py::handle cls, py::detail::type_info&) {
    const auto refuse_object = [](const py::object& self) -> py::object {
      throw py::type_error(std::string("cannot pickle '") + Py_TYPE(self.ptr())->tp_name + "' object");
    };
    cls.attr("__reduce__") = py::cpp_function(refuse_object, py::name("__reduce__"), py::is_method(cls));
  });
}

void refuse_if_forked(const Context& context) {
  if (!in_forked_child() || !context.closed()) return;
  // A Context closed in this process says so too, in other words.
  const Status status = context.unpublish("-");
  if (status.message().find("fork()") != std::string_view::npos) check(status);
}

py::object make_error(const Status& status) {
  return call_python(class_of(status.code()), py::make_tuple(std::string(status.message()), status.native()));
}

void set_error(const Status& status) noexcept {
  try {
    const py::object error = make_error(status);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  } catch (py::error_already_set& other) {
    other.restore();
  } catch (const std::exception&) {
    PyErr_NoMemory();
  }
}

Deadline deadline_of(const std::optional<double>& timeout) {
  if (!timeout) return Deadline::never();
  if (!(*timeout >= 0)) refuse("timeout " + std::to_string(*timeout) + " is not a number of seconds from 0 on, or None");
  return Deadline::after_seconds(*timeout);
}

std::optional<double> seconds_of(py::handle timeout) {
  if (!timeout || timeout.is_none()) return std::nullopt;
  const bool truth = PyBool_Check(timeout.ptr()) != 0;
  const double seconds = truth ? 0 : PyFloat_AsDouble(timeout.ptr());
  if (truth || (seconds == -1.0 && PyErr_Occurred() != nullptr)) {
    if (!truth && PyErr_ExceptionMatches(PyExc_OverflowError) != 0) {  // an int that no double holds
      PyErr_Clear();
      const int negative = PyObject_RichCompareBool(timeout.ptr(), py::int_(0).ptr(), Py_LT);
      if (negative < 0) throw py::error_already_set();
      return negative == 1 ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
    }
    if (!truth && PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
    PyErr_Clear();
    throw py::type_error(std::string("timeout must be a number of seconds or None, not a ") + Py_TYPE(timeout.ptr())->tp_name);
  }
  return seconds;
}

namespace {

py::type_error not_an_int(py::handle object, const char* name) {
  return py::type_error(std::string(name) + " must be an int, not a " + Py_TYPE(object.ptr())->tp_name);
}

}  // namespace

// Python refuses to write integers of thousands of digits.
std::string text_of_int(const py::object& index) {
  const auto bits = index.attr("bit_length")().cast<std::size_t>();
  return bits > 128 ? "an int of " + std::to_string(bits) + " bits" : written(index);
}

py::object index_of(py::handle object, const char* name) {
  if (PyBool_Check(object.ptr()) != 0) throw not_an_int(object, name);
  auto index = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
  if (index) return index;
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
  PyErr_Clear();
  throw not_an_int(object, name);
}

std::int64_t integer_of(py::handle object, const char* name) {
  if (PyBool_Check(object.ptr()) != 0) throw not_an_int(object, name);
  const long long number = PyLong_AsLongLong(object.ptr());
  if (number != -1 || PyErr_Occurred() == nullptr) return number;
  const bool beyond = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
  if (!beyond && PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
  PyErr_Clear();
  if (beyond) refuse(std::string(name) + " must be from -2**63 to 2**63 - 1, and is " + text_of_int(index_of(object, name)));
  throw not_an_int(object, name);
}

double number_of(py::handle object, const char* name) {
  if (PyBool_Check(object.ptr()) == 0) {
    const double value = PyFloat_AsDouble(object.ptr());
    if (value != -1.0 || PyErr_Occurred() == nullptr) return value;
    const bool beyond = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;  // an int that no double holds
    if (!beyond && PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
    PyErr_Clear();
    if (beyond) refuse(std::string(name) + " is an int beyond the largest float");
  }
  throw py::type_error(std::string(name) + " must be a number, not a " + Py_TYPE(object.ptr())->tp_name);
}

bool flag_of(py::handle object, const char* name) {
  if (PyBool_Check(object.ptr()) != 0) return object.ptr() == Py_True;
  const std::string_view type = Py_TYPE(object.ptr())->tp_name;
  if (type != "numpy.bool" && type != "numpy.bool_")
    throw py::type_error(std::string(name) + " must be a bool, not a " + std::string(type));
  const int truth = PyObject_IsTrue(object.ptr());
  if (truth < 0) throw py::error_already_set();
  return truth == 1;
}

std::string_view text_of(py::handle object, const char* name) {
  if (PyUnicode_Check(object.ptr()) == 0)
    throw py::type_error(std::string(name) + " must be a str, not a " + Py_TYPE(object.ptr())->tp_name);
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(object.ptr(), &length);
  if (text != nullptr) return {text, static_cast<std::size_t>(length)};
  if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) == 0) throw py::error_already_set();
  PyErr_Clear();
  // Not shown: it may be a key.
  refuse(std::string(name) + " has a lone surrogate, such as U+D800; pass text of Unicode");
}

std::string file_of(py::handle object, const char* name) {
  PyObject* converted = nullptr;
  if (PyUnicode_FSConverter(object.ptr(), &converted) != 0) return py::reinterpret_steal<py::bytes>(converted);
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
  PyErr_Clear();
  throw py::type_error(std::string(name) + " must be a path, not a " + Py_TYPE(object.ptr())->tp_name);
}

py::handle callable_of(py::handle object, const char* name) {
  if (PyCallable_Check(object.ptr()) != 0) return object;
  throw py::type_error(std::string(name) + " must be callable, and a " + Py_TYPE(object.ptr())->tp_name + " is not");
}

std::string written(py::handle object) {
  const auto bytes =
      py::reinterpret_steal<py::bytes>(PyUnicode_AsEncodedString(py::str(object).ptr(), "utf-8", "backslashreplace"));
  if (!bytes) throw py::error_already_set();
  return bytes;
}

std::size_t byte_count(py::handle object) {
  const py::object index = index_of(object, "nbytes");
  const Py_ssize_t bytes = PyLong_AsSsize_t(index.ptr());
  const bool outside = bytes == -1 && PyErr_Occurred() != nullptr;
  if (outside) PyErr_Clear();
  if (outside || bytes < 0) refuse("nbytes must be from 0 to 2**63 - 1, and is " + text_of_int(index));
  return static_cast<std::size_t>(bytes);
}

Deadline deadline_of(py::handle timeout) { return deadline_of(seconds_of(timeout)); }

namespace {

// What a signal's handler raised during a call that succeeded. Of the thread that handles signals, GIL held. Never destroyed: the
// interpreter may have ended.
std::optional<py::error_already_set>& postponed() {
  static auto* const error = new std::optional<py::error_already_set>;
  return *error;
}

int raise_postponed(void*) {
  if (!postponed()) return 0;  // the next blocking call was first
  std::exchange(postponed(), std::nullopt)->restore();
  return -1;
}

}  // namespace

bool raise_later(py::error_already_set& raised) {
  if (Py_AddPendingCall(raise_postponed, nullptr) != 0) return false;
  postponed().emplace(std::move(raised));
  return true;
}

bool BlockingCall::asked() {
  // Only on one thread does the interpreter run signal handlers. The others' calls end early with the interpreter.
  if (!handles_signals()) return ended_for_this_thread();
  take_gil();
  if (postponed()) {
    raised_ = std::exchange(postponed(), std::nullopt);
  } else if (PyErr_CheckSignals() != 0) {
    raised_.emplace();
  }
  before_waiting();
  return raised_.has_value();
}

void bind_errors(py::module_&) {
  // For the functions of this module alone: other extensions of pybind11 in the process have their own exceptions.
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const StatusError& error) {
      set_error(error.status());
    } catch (const std::bad_alloc&) {
      set_error(Status(Code::out_of_memory, "this process has no memory left for the call"));
    } catch (const std::system_error& error) {
      set_error(errno_status("the system refused what the call needs", error.code().value()));
    } catch (const py::cast_error& error) {  // a value of another type inside an argument; pybind11 would say RuntimeError
      PyErr_SetString(PyExc_TypeError, error.what());
    }
  });
}

}  // namespace hmc::bindings
