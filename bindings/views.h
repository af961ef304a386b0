// The bytes of Memory and ConnBuffer as arrays of other libraries.
#pragma once

#include "arguments.h"
#include "common.h"
#include "cuda_array.h"
#include "dlpack.h"

namespace hmc::bindings {

inline Memory memory_behind(const Memory& memory) { return memory; }
inline Memory memory_behind(const ConnBuffer& buffer) { return buffer.memory(); }

// Throws BufferError for device memory.
template <class T>
Memory cpu_memory_behind(const T& object) {
  Memory memory = memory_behind(object);
  if (!memory.device().is_cpu()) throw py::buffer_error("memory on " + memory.device().str() + " is not addressable by the CPU");
  return memory;
}

template <class T, class Class>
void bind_views(Class& cls) {
  cls.def_buffer([](const T& self) {
    const Memory memory = cpu_memory_behind(self);
    return py::buffer_info(memory.data(), 1, py::format_descriptor<std::uint8_t>::format(), 1, {memory.size()}, {std::size_t{1}},
                           memory.read_only());
  });
  cls.def(
      "numpy",
      [](const py::object& self, const py::object& dtype, const py::object& shape) -> py::object {
        static_cast<void>(cpu_memory_behind(self.cast<const T&>()));  // the buffer protocol would only say "Error getting buffer"
        const py::object numpy = py::module_::import("numpy");
        const auto bytes = py::reinterpret_steal<py::object>(PyMemoryView_FromObject(self.ptr()));
        if (!bytes) throw py::error_already_set();
        py::object array = numpy.attr("asarray")(bytes);
        if (!dtype.is_none()) array = array.attr("view")(dtype);
        if (!shape.is_none()) array = array.attr("reshape")(shape);
        return array;
      },
      py::arg("dtype") = py::none(), py::arg("shape") = py::none(),
      "The bytes as a NumPy array, without a copy. dtype: default uint8; shape: default one dimension. The array keeps the memory "
      "alive, and is read-only where the memory was registered or wrapped from a read-only array. CPU memory only (BufferError "
      "otherwise).");
  cls.def(
      "__dlpack__",
      [](const T& self, const py::object&, const py::object& max_version, const py::object& dl_device, const py::object& copy) {
        if (argument_of<std::optional<bool>>(copy, "copy").value_or(false))
          throw py::buffer_error("HMC exports memory without copying it");
        const Memory memory = memory_behind(self);
        if (!dl_device.is_none() && !dl_device.equal(dlpack_device(memory)))
          throw py::buffer_error("memory on " + memory.device().str() + " is not exported to DLPack device " + written(dl_device) +
                                 "; copy it there first");
        return give_dlpack(memory, max_version);
      },
      py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(), py::arg("dl_device") = py::none(),
      py::arg("copy") = py::none(),
      "The bytes as a one-dimensional uint8 DLPack tensor that shares ownership of the memory. Read-only memory: BufferError for a "
      "consumer from before DLPack 1, which has no sign for it.");
  cls.def_property_readonly(
      "__cuda_array_interface__", [](const T& self) { return give_cuda_array(memory_behind(self)); },
      "The bytes as one-dimensional uint8, version 3 of the protocol; ready, so no stream. Whoever uses it keeps this object. "
      "AttributeError where the protocol is not the custom: CPU memory and some vendors'.");
  cls.def("__dlpack_device__", [](const T& self) { return dlpack_device(memory_behind(self)); }, "DLPack device type and number.");
}

}  // namespace hmc::bindings