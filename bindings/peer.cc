#include "hmc/peer.h"

#include "arguments.h"
#include "blocks.h"
#include "p2p.h"

namespace hmc::bindings {
namespace {

struct PeerCaller {
  using Self = Peer;
  static constexpr bool ranked = false;
  static Status send(const Peer& self, const MemoryView& view, int, std::int64_t tag, Deadline deadline) {
    return self.send(view, tag, deadline);
  }
  static Result<MessageInfo> recv(const Peer& self, const MemoryView& view, int, std::int64_t tag, Deadline deadline) {
    return self.recv(view, tag, deadline);
  }
  static Result<Work> isend(const Peer& self, const MemoryView& view, int, std::int64_t tag) { return self.isend(view, tag); }
  static Result<Work> irecv(const Peer& self, const MemoryView& view, int, std::int64_t tag) { return self.irecv(view, tag); }
  static Result<Work> put(const Peer& self, const ConnBuffer& s, const RemoteBuffer& t, const PutOptions& o) {
    return self.put(s, t, o);
  }
  static Result<Work> get(const Peer& self, const ConnBuffer& t, const RemoteBuffer& s, StreamHandle after) {
    return self.get(t, s, after);
  }
  static Status wait_notify(const Peer& self, int, std::uint64_t id, std::uint64_t count, Deadline deadline) {
    return self.wait_notify(id, count, deadline);
  }
};

}  // namespace

void bind_peer(py::module_& module) {
  module.attr("ANY_TAG") = any_tag;
  module.attr("ANY_SOURCE") = any_source;
  py::class_<Peer> cls(module, "Peer", "One connected remote Context. Any thread. Every call on a lost peer raises PeerLostError.");
  P2P<PeerCaller>::bind(cls);
  cls.def_property_readonly("name", &Peer::name, "What the peer calls itself.")
      .def_property_readonly("address", &Peer::address, "Where it is connected.")
      .def_property_readonly("epoch", &Peer::epoch, "Differs each time the same address comes back.")
      .def_property_readonly("alive", &Peer::alive, "False once it was lost or closed.")
      .def_property_readonly(
          "gone", &Peer::gone,
          "True when nothing of the peer can read or write memory of this process any more: it was lost or closed, "
          "and its process has let go of the memory, or is dead.")
      .def_property_readonly("same_host", &Peer::same_host, "True when a descriptor could be passed.")
      .def(
          "lookup",
          [](const Peer& self, const Text<"name">& name, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            return interruptible([&] { return self.lookup(name, deadline); });
          },
          py::arg("name"), py::arg("timeout") = py::none(), "Imports the buffer published under name; waits for it to appear.")
      .def(
          "import_buffer",
          [](const Peer& self, const Argument<Descriptor, "descriptor">& descriptor, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            return interruptible([&] { return self.import(descriptor, deadline); });
          },
          py::arg("descriptor"), py::arg("timeout") = 30.0,
          "Imports a buffer by descriptor. StaleBufferError, AuthenticationError (forged), InvalidArgumentError (of another "
          "Context).")
      .def(
          "_ilookup",
          [](const Peer& self, const Text<"name">& name, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            const ReleasedGil nogil;
            return check(self.ilookup(name, deadline));
          },
          py::arg("name"), py::arg("timeout"))
      .def(
          "_iimport",
          [](const Peer& self, const Argument<Descriptor, "descriptor">& descriptor, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            const ReleasedGil nogil;
            return check(self.iimport(descriptor, deadline));
          },
          py::arg("descriptor"), py::arg("timeout"))
      .def(
          "prepare_blocks",
          [](const Peer& self, const Argument<py::iterable, "pairs">& pairs, const Argument<std::size_t, "block">& block) {
            return prepare_from(pairs, block, [&](auto all, std::size_t size) { return self.prepare_blocks(all, size); });
          },
          py::arg("pairs"), py::arg("block"),
          "Checks scattered blocks of `block` bytes: pairs of (local buffer, offsets, remote buffer, offsets), offsets as integer "
          "arrays.")
      .def(
          "put_blocks",
          [](const Peer& self, const Argument<BlockBatch, "batch">& batch, const py::object& notify,
             const Text<"complete">& complete, const py::object& stream) {
            std::string payload;
            PutOptions options = put_options(notify, complete, payload);
            options.stream = stream_of(stream);
            const ReleasedGil nogil;
            return check(self.put_blocks(batch, options));
          },
          py::arg("batch"), py::arg("notify") = py::none(), py::arg("complete") = "remote", py::arg("stream") = py::none(),
          "Puts every block; one notification covers all. stream: as in put.")
      .def(
          "get_blocks",
          [](const Peer& self, const Argument<BlockBatch, "batch">& batch, const py::object& stream) {
            const StreamHandle after = stream_of(stream);
            const ReleasedGil nogil;
            return check(self.get_blocks(batch, after));
          },
          py::arg("batch"), py::arg("stream") = py::none(), "Gets every block. stream: as in get.")
      .def(
          "notify",
          [](const Peer& self, const py::object& what, const std::optional<double>& timeout) {
            std::string payload;
            const Notify notify = notify_of(what, payload);
            const Deadline deadline = deadline_of(timeout);
            interruptible([&] { return self.notify(notify, deadline); }, Gil::until_waiting);
          },
          py::arg("notify"), py::arg("timeout") = py::none(), notify_doc)
      .def(
          "_inotify",
          [](const Peer& self, const py::object& what, const std::optional<double>& timeout) {
            std::string payload;
            const Notify notify = notify_of(what, payload);
            const Deadline deadline = deadline_of(timeout);
            return check(self.inotify(notify, deadline));
          },
          py::arg("notify"), py::arg("timeout"))
      .def(
          "_iwait_notify",
          [](const Peer& self, const py::object& id, const py::object& count, const std::optional<double>& timeout) {
            const auto [number, times] = counted_of(id, count);
            return check(self.iwait_notify(number, times, deadline_of(timeout)));
          },
          py::arg("id"), py::arg("count"), py::arg("timeout"))
      .def(
          "_inotifications",
          [](const Peer& self, const std::optional<double>& timeout) { return check(self.inotifications(deadline_of(timeout))); },
          py::arg("timeout"))
      .def(
          "fence", [](const Peer& self) { check(self.fence()); },
          "What is posted afterwards becomes visible only after everything posted before.")
      .def(
          "notifications",
          [](const Peer& self, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            return notifications_as_list(interruptible([&] { return self.notifications(deadline); }, Gil::until_waiting));
          },
          py::arg("timeout") = 0.0, "Payload notifications as (source, bytes) in arrival order; waits up to timeout for the first.")
      .def(
          "path",
          [](const Peer& self, const py::object& source, const py::object& target, const std::optional<double>& timeout) {
            const Device from = device_of(source);
            const Device to = device_of(target);
            const Deadline deadline = deadline_of(timeout);
            return interruptible([&] { return self.path(from, to, deadline); });
          },
          py::arg("source") = "cpu", py::arg("target") = "cpu", py::arg("timeout") = 30.0,
          "The Path between a device here and one at the peer; connects if need be.")
      .def(
          "close",
          [](const Peer& self) {
            const ReleasedGil nogil;
            self.close();
          },
          "Closes without waiting: what was posted arrives, what the peer posted ends, then both sides say bye. Messages and "
          "receives without a match end with ClosedError.")
      .def("__eq__", [](const Peer& a, const py::object& b) { return py::isinstance<Peer>(b) && a == b.cast<const Peer&>(); })
      .def("__hash__", [](const Peer& self) { return std::hash<const void*>()(self.state().get()); })
      .def("__repr__", [](const Peer& self) {
        return "<hmc.Peer " + self.name() + " at " + self.address() + (self.alive() ? ">" : ", gone>");
      });
}

}  // namespace hmc::bindings
