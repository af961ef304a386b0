// hmc.Work and its subclasses in Python. Types of our own: to make, cast and end an instance of a pybind11 class costs more than a
// small message, each of which makes one.
#pragma once

#include <hmc/hmc.h>
#include <pybind11/pybind11.h>

#include <type_traits>
#include <utility>
#include <vector>

namespace hmc::bindings {

namespace py = pybind11;

// The names are for signatures in docstrings.
template <class T>
inline constexpr auto work_name = py::detail::const_name("hmc._core.Work");
template <>
inline constexpr auto work_name<WorkOf<Peer>> = py::detail::const_name("hmc._core._PeerWork");
template <>
inline constexpr auto work_name<WorkOf<RemoteBuffer>> = py::detail::const_name("hmc._core._RemoteBufferWork");
template <>
inline constexpr auto work_name<WorkOf<std::vector<Notification>>> = py::detail::const_name("hmc._core._NotificationsWork");

// Made by bind_work(), for the life of the process.
template <class T>
inline PyTypeObject* work_type = nullptr;

py::object new_work(PyTypeObject* type, Work work);
inline py::object make_work(Work work) { return new_work(work_type<Work>, std::move(work)); }
// Throws TypeError for what is no Work.
const Work& work_from(py::handle object);

}  // namespace hmc::bindings

namespace pybind11::detail {

template <class T>
struct type_caster<T, std::enable_if_t<std::is_base_of_v<hmc::Work, T>>> {
  PYBIND11_TYPE_CASTER(T, hmc::bindings::work_name<T>);
  bool load(handle source, bool) {
    if (PyObject_TypeCheck(source.ptr(), hmc::bindings::work_type<T>) == 0) return false;
    value = T(hmc::bindings::work_from(source).state());
    return true;
  }
  static handle cast(T work, return_value_policy, handle) {
    return hmc::bindings::new_work(hmc::bindings::work_type<T>, std::move(work)).release();
  }
};

}  // namespace pybind11::detail
