// Arguments that name themselves: where a value is of another type, the TypeError says which argument it is and what is wanted.
// Without a name pybind11 answers with the signatures of the function.
#pragma once

#include <algorithm>
#include <concepts>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "common.h"

namespace hmc::bindings {

template <std::size_t N>
struct ArgumentName {
  consteval ArgumentName(const char (&name)[N]) { std::copy_n(name, N, text); }
  char text[N];
};

// A parameter of a bound function, in place of T. `name`: as in its py::arg.
template <class T, ArgumentName name>
class Argument {
 public:
  explicit Argument(T value) : value_(std::move(value)) {}
  const T& operator*() const noexcept { return value_; }
  const T* operator->() const noexcept { return &value_; }
  template <class As>
    requires std::convertible_to<const T&, As>
  operator As() const {
    return value_;
  }

 private:
  T value_;
};

// The same of a Communicator's call that takes {Member: T} as well, by another overload.
template <class T, ArgumentName name>
class SingleArgument : public Argument<T, name> {
  using Argument<T, name>::Argument;
};

template <ArgumentName name>
using Text = Argument<std::string, name>;
template <ArgumentName name>
using OptionalText = Argument<std::optional<std::string>, name>;
template <ArgumentName name>
using Int = Argument<int, name>;
template <ArgumentName name>
using OptionalInt = Argument<std::optional<int>, name>;
template <ArgumentName name>
using Number = Argument<double, name>;
template <ArgumentName name>
using Flag = Argument<bool, name>;

// "a Peer": for messages.
template <class T>
std::string wanted() {
  if constexpr (std::same_as<T, py::bytes>) {
    return "bytes";
  } else if constexpr (std::same_as<T, py::iterable>) {
    return "an iterable";
  } else if constexpr (std::same_as<T, NativeFields>) {
    return "a dict of names to ints and texts";
  } else if constexpr (std::derived_from<T, Work>) {
    return "a Work";
  } else {
    const std::string name = written(py::type::of<T>().attr("__name__"));
    return (name.starts_with('I') ? "an " : "a ") + name;
  }
}

// An int as an argument of that name. Throws TypeError or InvalidArgumentError that names it.
template <class T>
T int_of(py::handle value, const char* name) {
  const py::object index = index_of(value, name);
  if constexpr (std::same_as<T, std::uint64_t>) {
    const std::uint64_t number = PyLong_AsUnsignedLongLong(index.ptr());
    if (PyErr_Occurred() == nullptr) return number;
  } else {
    const std::int64_t number = PyLong_AsLongLong(index.ptr());
    if (PyErr_Occurred() == nullptr && std::in_range<T>(number)) return static_cast<T>(number);
  }
  PyErr_Clear();
  refuse(std::string(name) + " must be from " + std::to_string(std::numeric_limits<T>::min()) + " to " +
         std::to_string(std::numeric_limits<T>::max()) + ", and is " + text_of_int(index));
}

// The value of an argument of that name. Throws TypeError or InvalidArgumentError that names it.
template <class T>
struct ArgumentOf {
  static T read(py::handle value, const char* name) {
    if constexpr (std::same_as<T, double> || std::same_as<T, float>) {
      return static_cast<T>(number_of(value, name));
    } else if constexpr (std::same_as<T, std::string>) {
      return T(text_of(value, name));
    } else if constexpr (std::same_as<T, bool>) {
      return flag_of(value, name);
    } else if constexpr (std::integral<T>) {
      return int_of<T>(value, name);
    } else {
      py::detail::make_caster<T> loaded;
      if (value.is_none() || !loaded.load(value, true)) {
        throw py::type_error(std::string(name) + " must be " + wanted<T>() + ", not a " + Py_TYPE(value.ptr())->tp_name);
      }
      return py::detail::cast_op<T>(loaded);
    }
  }
};
template <class T>
struct ArgumentOf<std::optional<T>> {
  static std::optional<T> read(py::handle value, const char* name) {
    if (value.is_none()) return std::nullopt;
    return ArgumentOf<T>::read(value, name);
  }
};
template <class T>
struct ArgumentOf<std::vector<T>> {
  static std::vector<T> read(py::handle value, const char* name) {
    const bool other = PyUnicode_Check(value.ptr()) != 0 || PyBytes_Check(value.ptr()) != 0 || PyDict_Check(value.ptr()) != 0;
    const auto items = py::reinterpret_steal<py::iterator>(other ? nullptr : PyObject_GetIter(value.ptr()));
    if (!items) {  // of an array without dimensions, too
      if (PyErr_Occurred() != nullptr && PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
      PyErr_Clear();
      throw py::type_error(std::string(name) + " must be a sequence, not a " + Py_TYPE(value.ptr())->tp_name);
    }
    const std::string each = "each of " + std::string(name);
    std::vector<T> all;
    for (const py::handle item : items) all.push_back(ArgumentOf<T>::read(item, each.c_str()));
    return all;
  }
};
template <class T>
struct ArgumentOf<std::pair<T, T>> {
  static std::pair<T, T> read(py::handle value, const char* name) {
    const auto both = ArgumentOf<std::vector<T>>::read(value, name);
    if (both.size() != 2) refuse(std::string(name) + " must be a pair");
    return {both[0], both[1]};
  }
};
template <class T>
T argument_of(py::handle value, const char* name) {
  return ArgumentOf<T>::read(value, name);
}

}  // namespace hmc::bindings

namespace pybind11::detail {

template <class T, hmc::bindings::ArgumentName argument>
class type_caster<hmc::bindings::Argument<T, argument>> {
  using Wrapped = hmc::bindings::Argument<T, argument>;

 public:
  static constexpr auto name = make_caster<T>::name;
  template <class>
  using cast_op_type = Wrapped;

  bool load(handle source, bool) {
    loaded_.emplace(hmc::bindings::argument_of<T>(source, argument.text));
    return true;
  }
  explicit operator Wrapped() { return *std::move(loaded_); }

 private:
  std::optional<Wrapped> loaded_;
};

template <class T, hmc::bindings::ArgumentName argument>
class type_caster<hmc::bindings::SingleArgument<T, argument>> {
  using Wrapped = hmc::bindings::SingleArgument<T, argument>;

 public:
  static constexpr auto name = make_caster<T>::name;
  template <class>
  using cast_op_type = Wrapped;

  bool load(handle source, bool) {
    if (PyDict_Check(source.ptr()) != 0) return false;
    make_caster<T> loaded;
    if (source.is_none() || !loaded.load(source, true)) {
      const std::string one = hmc::bindings::wanted<T>();
      throw type_error(std::string(argument.text) + " must be " + one + ", or {Member: " + one.substr(one.find(' ') + 1) +
                       "}, not a " + Py_TYPE(source.ptr())->tp_name);
    }
    loaded_.emplace(pybind11::detail::cast_op<T>(loaded));
    return true;
  }
  explicit operator Wrapped() { return *std::move(loaded_); }

 private:
  std::optional<Wrapped> loaded_;
};

}  // namespace pybind11::detail
