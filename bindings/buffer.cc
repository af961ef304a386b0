#include "hmc/buffer.h"
#include "hmc/buffer_hold.h"

#include <pybind11/numpy.h>

#include "arguments.h"
#include "sliceable.h"
#include "views.h"

namespace hmc::bindings {
namespace {

const char* access_name(Access access) { return access == Access::read ? "r" : "rw"; }

Result<Memory> memory_of(LoadableBytes& there, const Device& by, std::function<void()> keep) {
  return Memory::wrap_read_only(there.bytes.data(), there.bytes.size(), by, std::move(keep));
}
Result<Memory> memory_of(StorableBytes& there, const Device& by, std::function<void()> keep) {
  return Memory::wrap(there.bytes.data(), there.bytes.size(), by, std::move(keep));
}

// A NumPy array of uint8, for a device a Memory, which are read-only where the bytes are; or None.
template <auto Mapped>
py::object mapped_by(const RemoteBuffer& remote, const py::object& device) {
  using Bytes = decltype((remote.*Mapped)(Device()));
  const Device by = device_of(device);
  auto there = std::make_unique<Bytes>();
  {
    const ReleasedGil nogil;  // another thread may move bytes under the lock
    *there = (remote.*Mapped)(by);
  }
  if (!there->mapping) return py::none();
  if (!by.is_cpu()) return py::cast(check(memory_of(*there, by, [mapping = there->mapping] {})));
  const auto bytes = there->bytes;
  const py::capsule mapping(there.release(), [](void* held) { WithoutGil<Bytes>()(static_cast<Bytes*>(held)); });
  const py::array_t<std::uint8_t> array(static_cast<py::ssize_t>(bytes.size()), reinterpret_cast<const std::uint8_t*>(bytes.data()),
                                        mapping);
  if constexpr (std::is_same_v<Bytes, LoadableBytes>) array.attr("setflags")(py::arg("write") = false);
  return array;
}

// A BufferHold for a `with` block.
class HoldBlock {
 public:
  HoldBlock(std::vector<ConnBuffer> local, std::vector<RemoteBuffer> remote)
      : local_(std::move(local)), remote_(std::move(remote)) {}
  void begin() {
    const ReleasedGil nogil;
    hold_ = check(BufferHold::take(local_, remote_));
  }
  void end() {
    const ReleasedGil nogil;
    hold_.reset();
  }

 private:
  const std::vector<ConnBuffer> local_;
  const std::vector<RemoteBuffer> remote_;
  std::optional<BufferHold> hold_;
};

}  // namespace

void bind_buffer(py::module_& module) {
  py::class_<Descriptor>(module, "Descriptor",
                         "What a ConnBuffer gives away: names it, grants nothing by itself. bytes(d) serialises it.")
      .def_static(
          "parse",
          [](const Argument<py::bytes, "data">& data) {
            const std::string_view text = data;
            return check(Descriptor::parse(std::as_bytes(std::span(text.data(), text.size()))));
          },
          py::arg("data"), "The descriptor of these bytes. ProtocolError for anything else.")
      .def("__bytes__",
           [](const Descriptor& self) {
             const auto bytes = self.serialise();
             return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
           })
      .def_readonly("nbytes", &Descriptor::size, "Size of the buffer in bytes.")
      .def_readonly("generation", &Descriptor::generation, "Differs for each registration.")
      .def_readonly("device", &Descriptor::device, "Device name at its owner.");

  py::class_<ConnBuffer, std::unique_ptr<ConnBuffer, FreeLargeWithoutGil<ConnBuffer>>> local(
      module, "ConnBuffer", py::buffer_protocol(),
      "Registered memory that peers may read (access \"r\") or read and write (\"rw\"). Slices are ConnBuffers too. The end of the "
      "last of them closes it, without waiting.");
  bind_slices<ConnBuffer>(local);
  bind_views<ConnBuffer>(local);
  local.def_property_readonly("memory", &ConnBuffer::memory, "This slice's Memory.")
      .def_property_readonly("offset", &ConnBuffer::offset, "Of this slice in the registration, bytes.")
      .def_property_readonly(
          "access", [](const ConnBuffer& self) { return access_name(self.access()); }, "\"r\" or \"rw\".")
      .def_property_readonly("closed", &ConnBuffer::closed, "True once close() was called.")
      .def(
          "descriptor", [](const ConnBuffer& self) { return check(self.descriptor()); },
          "Names the whole registration for a peer's import_buffer(). ClosedError once closed.")
      .def(
          "native",
          [](const ConnBuffer& self, const Text<"transport">& transport) {
            const ReleasedGil nogil;
            return check(self.native(transport));
          },
          py::arg("transport"),
          "What programs that are not HMC need to reach these bytes through a transport's own interface, such as \"verbs\": one "
          "dict "
          "for each port, whose fields docs/reference/native.md lists. Valid until close(). UnsupportedError: it has none, or is "
          "not "
          "there.")
      .def(
          "close",
          [](const ConnBuffer& self, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            interruptible([&] { return self.close(deadline); });
          },
          py::arg("timeout") = py::none(),
          "Ends the registration: returns when every importer has acknowledged or died and every receive into the memory that has "
          "its message has ended; nothing lands afterwards. A receive without a message stays posted and is not waited for. "
          "HmcTimeoutError: the memory may still be written; HMC keeps its pages until then. Idempotent.")
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](const py::object& self, const py::args&) { self.attr("close")(py::arg("timeout") = 30.0); })
      .def("__repr__", [](const ConnBuffer& self) {
        return "<hmc.ConnBuffer " + std::to_string(self.size()) + " bytes on " + self.device().str() +
               (self.closed() ? ", closed>" : ">");
      });

  py::class_<RemoteBuffer> remote(module, "RemoteBuffer", "A peer's ConnBuffer as imported here. Slices are RemoteBuffers too.");
  bind_slices<RemoteBuffer>(remote);
  remote.def_property_readonly("offset", &RemoteBuffer::offset, "Of this slice in the registration, bytes.")
      .def_property_readonly(
          "access", [](const RemoteBuffer& self) { return access_name(self.access()); }, "\"r\" or \"rw\".")
      .def_property_readonly("alive", &RemoteBuffer::alive, "False once its owner closed it or died.")
      .def("loadable", mapped_by<&RemoteBuffer::loadable>, py::arg("device") = py::none(),
           "This slice without a copy, as a read-only NumPy array of uint8, or for a ``device`` as a read-only Memory; or None.\n\n"
           "For CPU memory that HMC allocated in this process, or has mapped from another one of the host, and for memory of a "
           "device that ``device``, one of this process such as \"cuda:0\", has used in an operation. It may be None at one call "
           "and not at the next: keep get() as the other way. The array or Memory remains valid when the owner closes the buffer "
           "or dies. No close() waits for those who read it outside of a BufferHold, no counter counts that, and the owner may "
           "write meanwhile: synchronise with it by messages or notifications.")
      .def("storable", mapped_by<&RemoteBuffer::storable>, py::arg("device") = py::none(),
           "The same as a writable array or Memory, where its owner registered it with access \"rw\"; else None.\n\n"
           "Write within a BufferHold only, for milliseconds at a time: no close() of the owner waits for other writes, which then "
           "land in memory that it may have freed.")
      .def("__repr__", [](const RemoteBuffer& self) {
        return "<hmc.RemoteBuffer " + std::to_string(self.size()) + " bytes on " + self.device().str() +
               (self.alive() ? ">" : ", gone>");
      });

  py::class_<HoldBlock, std::unique_ptr<HoldBlock, WithoutGil<HoldBlock>>>(
      module, "BufferHold",
      "In its ``with`` block this process's own code reads or writes buffers, without an operation: close() of them, of their "
      "Context, and of the remote ones at their owners, waits for its end. ClosedError, StaleBufferError, PeerLostError: one of "
      "them is closed or lost. InvalidArgumentError: of several Contexts. One thread.")
      .def(py::init<std::vector<ConnBuffer>, std::vector<RemoteBuffer>>(), py::arg("local"), py::arg("remote"))
      .def("__enter__",
           [](HoldBlock& self) {
             self.begin();
             return &self;
           })
      .def("__exit__", [](HoldBlock& self, const py::args&) { self.end(); });

  py::class_<BlockBatch>(module, "BlockBatch", "Scattered blocks over buffer pairs, validated once, posted as often as wanted.")
      .def_property_readonly("blocks", &BlockBatch::blocks, "Number of blocks.")
      .def_property_readonly("nbytes", &BlockBatch::bytes, "Bytes in all.");
}

}  // namespace hmc::bindings
