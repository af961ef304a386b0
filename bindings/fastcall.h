// Methods that are called millions of times: METH_FASTCALL | METH_KEYWORDS functions on a pybind11 type, with arguments parsed by
// hand. A keyword method of pybind11 costs about 0.5 us, this about 0.05 us.
#pragma once

#include <cxxabi.h>

#include <array>
#include <new>
#include <string_view>
#include <typeinfo>

#include "common.h"

namespace hmc::bindings {

// Names of a function's arguments, the first `required` of which have no default.
template <std::size_t N>
class Signature {
 public:
  Signature(const char* function, std::array<const char*, N> names, std::size_t required)
      : function_(function), names_(names), required_(required) {
    for (std::size_t i = 0; i < N; ++i) interned_[i] = PyUnicode_InternFromString(names[i]);
  }

  // Borrowed references by position; null where an optional argument is absent. Throws TypeError as Python would.
  std::array<py::handle, N> parse(PyObject* const* args, Py_ssize_t count, PyObject* keywords) const {
    std::array<py::handle, N> values{};
    if (static_cast<std::size_t>(count) > N) fail("takes at most " + std::to_string(N) + " arguments");
    for (Py_ssize_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = args[i];
    const Py_ssize_t named = keywords != nullptr ? PyTuple_GET_SIZE(keywords) : 0;
    for (Py_ssize_t k = 0; k < named; ++k) {
      PyObject* name = PyTuple_GET_ITEM(keywords, k);
      std::size_t i = 0;
      while (i < N && interned_[i] != name) ++i;
      if (i == N) {
        for (i = 0; i < N && PyUnicode_Compare(interned_[i], name) != 0;) ++i;
      }
      if (i == N) fail("got an unexpected keyword argument '" + written(name) + "'");
      if (values[i]) fail("got multiple values for argument '" + std::string(names_[i]) + "'");
      values[i] = args[count + k];
    }
    for (std::size_t i = 0; i < required_; ++i) {
      if (!values[i]) fail("misses the argument '" + std::string(names_[i]) + "'");
    }
    return values;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw py::type_error(std::string(function_) + "() " + what); }

  const char* function_;
  std::array<const char*, N> names_;
  std::array<PyObject*, N> interned_{};
  std::size_t required_;
};

// The C++ object of a pybind11 instance whose type the method descriptor has checked. The instance may be of several classes.
template <class T>
T& self_as(PyObject* self) {
  static const py::detail::type_info* const type = py::detail::get_type_info(typeid(T));
  T* const value = reinterpret_cast<py::detail::instance*>(self)->get_value_and_holder(type).template value_ptr<T>();
  if (value == nullptr) [[unlikely]]
    refuse_uninitialised(self);
  return *value;
}

// `fallback` for an absent argument. Errors: those of integer_of().
inline std::int64_t integer_or(py::handle value, std::int64_t fallback, const char* name) {
  return value ? integer_of(value, name) : fallback;
}

// Of a str, which keeps the text; `fallback` for an absent argument. Errors: those of text_of().
inline std::string_view text_or(py::handle value, std::string_view fallback, const char* name) {
  return value ? text_of(value, name) : fallback;
}

// Empty for None.
inline std::string_view optional_text(py::handle value, const char* name) {
  return value && value.is_none() ? std::string_view() : text_or(value, {}, name);
}

// False for an absent argument. Errors: those of flag_of().
inline bool is_set(py::handle value, const char* name) { return value && flag_of(value, name); }

// Runs `body`, which returns a py::object, and turns exceptions into Python's.
template <class Body>
PyObject* guarded(Body body) noexcept {
  try {
    return body().release().ptr();
  } catch (const StatusError& error) {
    set_error(error.status());
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::cast_error& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::bad_alloc&) {
    set_error(Status(Code::out_of_memory, "this process has no memory left for the call"));
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (const abi::__forced_unwind&) {
    stop_thread();
  }
  return nullptr;
}

using FastFunction = PyObject* (*)(PyObject * self, PyObject* const* args, Py_ssize_t count, PyObject* keywords);

// Installs `function` as method `name` of a pybind11 class. `doc` begins with the signature line that help() and sphinx show.
inline void fast_method(py::handle cls, const char* name, FastFunction function, const char* doc) {
  auto* definition = new PyMethodDef{name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
                                     METH_FASTCALL | METH_KEYWORDS, doc};  // lives as long as the type
  PyObject* method = PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(cls.ptr()), definition);
  if (method == nullptr) throw py::error_already_set();
  cls.attr(name) = py::reinterpret_steal<py::object>(method);
}

}  // namespace hmc::bindings
