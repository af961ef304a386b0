#include "hmc/context.h"

#include "context_options.h"

namespace hmc::bindings {
namespace {

// A Python callable that the dispatcher thread calls; dropped with the GIL on whatever thread drops it last.
template <class... Args>
std::function<void(Args...)> on_dispatcher(const py::object& callable) {
  std::shared_ptr<py::object> held(new py::object(callable), [](py::object* object) {
    const py::gil_scoped_acquire gil;
    delete object;
  });
  return [held](Args... args) {
    const py::gil_scoped_acquire gil;
    try {
      if constexpr (sizeof...(Args) == 1) {
        (*held)(py::cast(args)...);
      } else {
        [&](const Peer& peer, const Status& reason) {
          (*held)(peer, reason.ok() ? py::object(py::none()) : make_error(reason));
        }(args...);
      }
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("hmc.Context callback");
    }
  };
}

}  // namespace

ContextOptions context_options(const py::kwargs& settings) {
  ContextOptions options;
  for (const auto& [key, value] : settings) {
    const auto name = key.cast<std::string>();
    if (value.is_none()) continue;
    if (name == "listen") {
      if (py::isinstance<py::str>(value)) {
        options.listen = {value.cast<std::string>()};
      } else {
        options.listen = value.cast<std::vector<std::string>>();
      }
    } else if (name == "key") {
      options.key = value.cast<std::string>();
    } else if (name == "insecure") {
      options.insecure = value.cast<bool>();
    } else if (name == "name") {
      options.name = value.cast<std::string>();
    } else if (name == "transports") {
      options.transports = value.cast<std::string>();
    } else if (name == "policy") {
      const auto policy = py::str(value).cast<std::string>();
      if (policy != "auto" && policy != "direct") refuse("policy must be \"auto\" or \"direct\", not \"" + policy + "\"");
      options.direct_only = policy == "direct";
    } else if (name == "heartbeat") {
      options.heartbeat_seconds = value.cast<double>();
    } else if (name == "progress") {
      const auto mode = py::str(value).cast<std::string>();
      if (mode != "background" && mode != "manual") refuse("progress must be \"background\" or \"manual\", not \"" + mode + "\"");
      options.progress = mode == "manual" ? Progress::manual : Progress::background;
    } else if (name == "on_joined") {
      options.on_joined = on_dispatcher<const Peer&>(py::reinterpret_borrow<py::object>(value));
    } else if (name == "on_left") {
      options.on_left = on_dispatcher<const Peer&, const Status&>(py::reinterpret_borrow<py::object>(value));
    } else {
      throw py::type_error("unexpected keyword argument '" + name + "'");
    }
  }
  return options;
}

void bind_context(py::module_& module) {
  py::class_<Context>(
      module, "Context",
      "What this process is on the fabric: its transports, listener and peers, without ranks. Use it as a context manager. Keyword "
      "arguments, all optional: listen (address or list: \"unix:/path\", \"tcp://host:port\"; a private Unix socket is always "
      "there), "
      "key (job key; default HMC_JOB_KEY), insecure (allow TCP beyond this host without a key), name, transports (as "
      "HMC_TRANSPORTS), policy (\"auto\" or \"direct\"), heartbeat (seconds, default 5), progress (\"background\" or \"manual\"), "
      "on_joined(peer), on_left(peer, error or None). Any thread; dead in a forked child.")
      .def(py::init([](const py::kwargs& settings) {
        const ContextOptions options = context_options(settings);
        const py::gil_scoped_release nogil;
        return check(Context::create(options));
      }))
      .def_property_readonly("id", &Context::id, "32 hexadecimal digits, random.")
      .def_property_readonly("name", &Context::name, "What peers see.")
      .def_property_readonly("addresses", &Context::addresses, "What peers pass to connect(), with real ports.")
      .def_property_readonly("closed", &Context::closed, "True after close().")
      .def_property_readonly("peers", &Context::peers, "Peers connected now.")
      .def(
          "connect",
          [](const Context& self, const std::string& address, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            return interruptible([&] { return self.connect(address, deadline); });
          },
          py::arg("address"), py::arg("timeout") = 30.0,
          "Connects to a listening Context. AuthenticationError, HmcTimeoutError, PeerLostError (refused), ProtocolError (another "
          "version).")
      .def(
          "accept",
          [](const Context& self, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            return interruptible([&] { return self.accept(deadline); });
          },
          py::arg("timeout") = py::none(), "The next peer that connected and has not been accepted yet.")
      .def(
          "buffer",
          [](const Context& self, std::size_t nbytes, const py::object& device, const std::string& access) {
            const Device where = device_of(device);
            if (access != "r" && access != "rw") refuse("access must be \"r\" or \"rw\", not \"" + access + "\"");
            const py::gil_scoped_release nogil;
            return check(self.buffer(nbytes, where, access == "r" ? Access::read : Access::read_write));
          },
          py::arg("nbytes"), py::arg("device") = "cpu", py::arg("access") = "rw", "Allocates and registers zero-filled memory.")
      .def(
          "register",
          [](const Context& self, const py::object& array, const std::string& access) {
            if (access != "r" && access != "rw") refuse("access must be \"r\" or \"rw\", not \"" + access + "\"");
            if (access == "rw") static_cast<void>(view_of(array, true));
            const Memory memory = memory_of(array);
            const py::gil_scoped_release nogil;
            return check(self.register_memory(memory, access == "r" ? Access::read : Access::read_write));
          },
          py::arg("array"), py::arg("access") = "rw",
          "Registers an array or Memory in place; keeps it alive. A read-only array needs access=\"r\".")
      .def(
          "publish",
          [](const Context& self, const std::string& name, const ConnBuffer& buffer) { check(self.publish(name, buffer)); },
          py::arg("name"), py::arg("buffer"), "Publishes a buffer for lookup(). InvalidArgumentError when the name is taken.")
      .def(
          "unpublish", [](const Context& self, const std::string& name) { check(self.unpublish(name)); }, py::arg("name"),
          "Takes a published name back.")
      .def(
          "connect_native",
          [](const Context& self, const std::string& transport, const NativeFields& peer) {
            const py::gil_scoped_release nogil;
            return check(self.connect_native(transport, peer));
          },
          py::arg("transport"), py::arg("peer"),
          "Connects a program that is not HMC, whose own end the fields of `peer` describe, so that it can use what "
          "ConnBuffer.native() says; docs/reference/native.md lists the fields. UnsupportedError: the transport has no such "
          "interface, or is not there.")
      .def(
          "progress",
          [](const Context& self) {
            const py::gil_scoped_release nogil;
            return self.progress();
          },
          "progress=\"manual\": polls once; True if something moved.")
      .def("counters", &Context::counters, "Counters by name since creation.")
      .def(
          "close",
          [](const Context& self, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            const py::gil_scoped_release nogil;
            check(self.close(deadline));
          },
          py::arg("timeout") = 5.0,
          "Says goodbye to every peer and frees everything; pending operations end with ClosedError. Idempotent.")
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__",
           [](const Context& self, const py::args&) {
             const py::gil_scoped_release nogil;
             check(self.close());
           })
      .def("__repr__", [](const Context& self) { return "<hmc.Context " + self.name() + (self.closed() ? ", closed>" : ">"); });
}

}  // namespace hmc::bindings
