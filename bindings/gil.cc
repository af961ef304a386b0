#include "gil.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "common.h"

namespace hmc::bindings {
namespace {

constexpr auto longest_callback = std::chrono::seconds(5);

std::atomic<bool> foreign_use_ended{false};
std::atomic<int> foreign_uses{0};
bool forked = false;
unsigned long main_thread = 0;

bool finalizing() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Runs at exit, before the interpreter is finalized: afterwards no dispatcher thread is inside it. A callback that takes longer
// than `longest_callback` is left behind: the interpreter ends its thread.
void end_foreign_use() {
  foreign_use_ended.store(true);
  const ReleasedGil nogil;
  const auto until = std::chrono::steady_clock::now() + longest_callback;
  while (foreign_uses.load() != 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// The forking thread is the child's only one, and its main thread.
void after_fork() {
  forked = true;
  foreign_uses.store(0);
  main_thread = PyThread_get_thread_ident();
}

}  // namespace

void stop_thread() noexcept {
  for (;;) pause();
}

bool handles_signals() noexcept { return PyThread_get_thread_ident() == main_thread || getpid() == gettid(); }

// PyGILState_Check() alone is true in every thread once the interpreter has ended.
bool holds_gil() noexcept { return PyGILState_Check() != 0 && py::detail::get_thread_state_unchecked() != nullptr; }

bool in_forked_child() noexcept { return forked; }

bool ended_for_this_thread() noexcept { return finalizing() && !handles_signals(); }

void restore_thread(PyThreadState* state) noexcept {
  if (ended_for_this_thread()) stop_thread();
  in_interpreter([state] { PyEval_RestoreThread(state); });
}

ForeignUse::ForeignUse() noexcept : permitted_((foreign_uses.fetch_add(1), !foreign_use_ended.load())) {}

ForeignUse::~ForeignUse() { foreign_uses.fetch_sub(1); }

void detail::call_foreign(PyObject* callable, const char* where, PyObject* (*arguments)(void*), void* state) {
  const PyGILState_STATE gil = PyGILState_Ensure();
  PyObject* tuple = arguments(state);
  PyObject* result = tuple != nullptr ? PyObject_Call(callable, tuple, nullptr) : nullptr;
  if (result == nullptr) {
    PyObject* context = PyUnicode_FromString(where);
    PyErr_WriteUnraisable(context);
    Py_XDECREF(context);
  }
  Py_XDECREF(result);
  Py_XDECREF(tuple);
  drain_released();
  PyGILState_Release(gil);
}

void guard_interpreter() {
  main_thread = py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
  py::module_::import("atexit").attr("register")(py::cpp_function(&end_foreign_use));
  pthread_atfork(nullptr, nullptr, forget_released);  // before the child's first Python code
  const py::object fork_hook = py::cpp_function(&after_fork);
  py::module_::import("os").attr("register_at_fork")(py::arg("after_in_child") = fork_hook);
}

bool has_attribute(py::handle object, const char* name) {
  return in_interpreter([&] { return PyObject_HasAttrString(object.ptr(), name); }) == 1;
}

py::object attribute_of(py::handle object, const char* name) {
  PyObject* value = in_interpreter([&] { return PyObject_GetAttrString(object.ptr(), name); });
  if (value == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

py::object attribute_or_null(py::handle object, const char* name) {
  PyObject* value = in_interpreter([&] { return PyObject_GetAttrString(object.ptr(), name); });
  if (value == nullptr && PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw py::error_already_set();
  if (value == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(value);
}

py::object call_python(py::handle callable, const py::tuple& arguments, const py::dict& keywords) {
  PyObject* value = in_interpreter([&] { return PyObject_Call(callable.ptr(), arguments.ptr(), keywords.ptr()); });
  if (value == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(value);
}

}  // namespace hmc::bindings
