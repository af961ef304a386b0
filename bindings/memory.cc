#include "hmc/memory.h"

#include "arguments.h"
#include "sliceable.h"
#include "views.h"

namespace hmc::bindings {

void bind_memory(py::module_& module) {
  py::class_<Memory, std::unique_ptr<Memory, FreeLargeWithoutGil<Memory>>> cls(
      module, "Memory", py::buffer_protocol(),
      "Bytes on one device. Memory(nbytes, device=\"cpu\") allocates (zero-filled on the CPU); slices and exported views "
      "share the bytes and keep them alive. Any thread; concurrent access to the same bytes is the caller's to order.");
  cls.def(
      py::init([](ByteCount nbytes, const py::object& device, const Flag<"huge_pages">& huge_pages, const Flag<"pinned">& pinned,
                  const Argument<std::size_t, "alignment">& alignment) {
        const MemoryOptions options{huge_pages, pinned, alignment};
        const Device where = device_of(device);
        const ReleasedGil nogil;
        return check(Memory::allocate(nbytes.value, where, options));
      }),
      py::arg("nbytes"), py::arg("device") = "cpu", py::kw_only(), py::arg("huge_pages") = false, py::arg("pinned") = false,
      py::arg("alignment") = 4096,
      "Allocates nbytes (may be 0). huge_pages: asked for, not insisted on. pinned: locked, or OutOfMemoryError naming the limit. "
      "alignment: bytes, a power of two up to 2 MiB.");
  cls.def_static(
      "from_array", [](const py::object& array) { return memory_of(array); }, py::arg("array"),
      "The memory of an array, in place; keeps the array alive.");
  bind_slices<Memory>(cls);
  bind_views<Memory>(cls);
  cls.def(
      "copy_from",
      [](const Memory& self, const py::object& source) {
        const MemoryView from = view_of(source, false);
        const Memory other = memory_of(from);
        const ReleasedGil nogil;
        if (from.stream != no_stream) check(synchronize_stream(from.device, from.stream));
        check(self.copy_from(other));
      },
      py::arg("source"), "Copies every byte of source (Memory or array, any device) here. Sizes must be equal. Blocks.");
  cls.def(
      "copy_to",
      [](const Memory& self, const py::object& target) {
        const MemoryView to = view_of(target, true);
        const Memory other = memory_of(to);
        const ReleasedGil nogil;
        if (to.stream != no_stream) check(synchronize_stream(to.device, to.stream));
        check(self.copy_to(other));
      },
      py::arg("target"), "Copies every byte to target (Memory or writable array, any device). Sizes must be equal. Blocks.");
  cls.def(
      "copy_blocks_from",
      [](const Memory& self, const Argument<Memory, "source">& source, const py::object& source_offsets,
         const py::object& target_offsets, ByteCount nbytes) {
        const auto from = copied_offsets_of(source_offsets, "source_offsets");
        const auto to = copied_offsets_of(target_offsets, "target_offsets");
        const ReleasedGil nogil;
        check(self.copy_blocks_from(source, from, to, nbytes.value));
      },
      py::arg("source"), py::arg("source_offsets"), py::arg("target_offsets"), py::arg("nbytes"),
      "Copies blocks of nbytes bytes from source_offsets[i] of source (a Memory on any device) to target_offsets[i] here. Blocks "
      "written do not overlap. Beside a device, CPU memory that HMC allocated is pinned at the first such copy. Returns when all "
      "are "
      "there.");
  cls.def(
      "fill",
      [](const Memory& self, const Int<"value">& value) {
        if (*value < 0 || *value > 255) refuse("fill takes a byte, 0 to 255");
        const ReleasedGil nogil;
        check(self.fill(static_cast<std::uint8_t>(*value)));
      },
      py::arg("value"), "Sets every byte.");
  cls.def_property_readonly(
      "address", [](const Memory& self) { return reinterpret_cast<std::uintptr_t>(self.data()); },
      "Where the bytes begin, in the address space of their device; 0 where there are none.");
  cls.def_property_readonly("shareable", &Memory::shareable, "True when peers on the host can map it: HMC allocated it.");
  cls.def("__repr__", [](const Memory& self) {
    return "<hmc.Memory " + std::to_string(self.size()) + " bytes on " + self.device().str() + ">";
  });
}

}  // namespace hmc::bindings
