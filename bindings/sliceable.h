// What Memory, ConnBuffer and RemoteBuffer have in common: len() and slices in bytes, step 1.
#pragma once

#include "common.h"

namespace hmc::bindings {

template <class T, class Class>
void bind_slices(Class& cls) {
  cls.def("__len__", &T::size);
  cls.def(
      "__getitem__",
      [](const T& self, const py::object& index) {
        if (PySlice_Check(index.ptr()) == 0) refuse("index with a slice of bytes, such as [4096:8192]");
        const auto step = index.attr("step");
        if (!step.is_none() && integer_of(step, "slice step") != 1)
          refuse("slices have step 1; use prepare_blocks for scattered bytes");
        const auto bound = [&](const char* name, std::size_t fallback) -> std::size_t {
          const py::object value = index.attr(name);
          if (value.is_none()) return fallback;
          const std::int64_t number = integer_of(value, "slice bound");
          const auto size = static_cast<std::int64_t>(self.size());
          const std::int64_t at = number < 0 ? number + size : number;
          // Python clips; a transfer that is silently shorter than asked for would be a trap.
          if (at < 0 || at > size) {
            refuse("slice bound " + std::to_string(number) + " lies outside " + std::to_string(self.size()) + " bytes");
          }
          return static_cast<std::size_t>(at);
        };
        const std::size_t start = bound("start", 0);
        const std::size_t stop = bound("stop", self.size());
        if (stop < start) refuse("slice [" + std::to_string(start) + ":" + std::to_string(stop) + "] runs backwards");
        return check(self.slice(start, stop - start));
      },
      py::arg("index"), "A view of bytes [start:stop]; no copy. InvalidArgumentError when out of range.");
  cls.def_property_readonly("nbytes", &T::size, "Size in bytes.");
  cls.def_property_readonly("device", [](const T& self) { return self.device().str(); }, "Device name, such as \"cpu\".");
}

}  // namespace hmc::bindings
