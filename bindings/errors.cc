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

}  // namespace

void check(const Status& status) {
  if (!status.ok()) throw StatusError(status);
}

void refuse(std::string message) { throw StatusError(Status(Code::invalid_argument, std::move(message))); }

py::object make_error(const Status& status) {
  return py::reinterpret_borrow<py::object>(class_of(status.code()))(std::string(status.message()), status.native());
}

void set_error(const Status& status) {
  const py::object error = make_error(status);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
}

Deadline deadline_of(const std::optional<double>& timeout) {
  if (!timeout) return Deadline::never();
  if (!(*timeout >= 0)) refuse("timeout " + std::to_string(*timeout) + " is not a number of seconds from 0 on, or None");
  return Deadline::after_seconds(*timeout);
}

Deadline deadline_of(py::handle timeout) {
  if (!timeout || timeout.is_none()) return Deadline::never();
  const double seconds = PyFloat_AsDouble(timeout.ptr());
  if (seconds == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return deadline_of(std::optional<double>(seconds));
}

bool BlockingCall::asked() {
  take_gil();
  const bool raises = PyErr_CheckSignals() != 0;
  if (raises) raised_.emplace();
  before_waiting();
  return raises;
}

void bind_errors(py::module_&) {
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const StatusError& error) {
      set_error(error.status());
    } catch (const py::cast_error& error) {  // a value of another type inside an argument; pybind11 would say RuntimeError
      PyErr_SetString(PyExc_TypeError, error.what());
    }
  });
}

}  // namespace hmc::bindings
