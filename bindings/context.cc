#include "hmc/context.h"

#include "arguments.h"
#include "context_options.h"
#include "fastcall.h"

namespace hmc::bindings {
namespace {

py::tuple arguments_of(const Peer& peer) { return py::make_tuple(peer); }
py::tuple arguments_of(const Peer& peer, const Status& reason) {
  return py::make_tuple(peer, reason.ok() ? py::object(py::none()) : make_error(reason));
}

// A Python callable that the dispatcher thread calls.
template <class... Args>
std::function<void(Args...)> on_dispatcher(py::handle callable, Callbacks& callbacks) {
  return [callback = callbacks.emplace_back(std::make_shared<Callback>(callable))](Args... args) {
    const auto held = callback->get();
    if (!held) return;
    call_from_foreign_thread(object_of(held), "hmc.Context callback",
                             [&] { return guarded([&]() -> py::object { return arguments_of(args...); }); });
  };
}

Access access_of(const std::string& text) {
  if (text != "r" && text != "rw") refuse("access must be \"r\" or \"rw\", not \"" + text + "\"");
  return text == "r" ? Access::read : Access::read_write;
}

}  // namespace

ContextOptions context_options(const py::kwargs& settings, Callbacks& callbacks) {
  ContextOptions options;
  for (const auto& [key, value] : settings) {
    const std::string name(text_of(key, "the name of a setting"));
    if (value.is_none()) continue;
    if (name == "listen") {
      options.listen = py::isinstance<py::str>(value) ? std::vector{argument_of<std::string>(value, "listen")}
                                                      : argument_of<std::vector<std::string>>(value, "listen");
    } else if (name == "key") {
      options.key = text_of(value, "key");
    } else if (name == "insecure") {
      options.insecure = argument_of<bool>(value, "insecure");
    } else if (name == "name") {
      options.name = text_of(value, "name");
    } else if (name == "transports") {
      options.transports = text_of(value, "transports");
    } else if (name == "policy") {
      const std::string policy(text_of(value, "policy"));
      if (policy != "auto" && policy != "direct") refuse("policy must be \"auto\" or \"direct\", not \"" + policy + "\"");
      options.direct_only = policy == "direct";
    } else if (name == "heartbeat") {
      options.heartbeat_seconds = number_of(value, "heartbeat");
    } else if (name == "progress") {
      const std::string mode(text_of(value, "progress"));
      if (mode != "background" && mode != "manual") refuse("progress must be \"background\" or \"manual\", not \"" + mode + "\"");
      options.progress = mode == "manual" ? Progress::manual : Progress::background;
    } else if (name == "on_joined") {
      options.on_joined = on_dispatcher<const Peer&>(callable_of(value, "on_joined"), callbacks);
    } else if (name == "on_left") {
      options.on_left = on_dispatcher<const Peer&, const Status&>(callable_of(value, "on_left"), callbacks);
    } else {
      throw py::type_error("unexpected keyword argument '" + name + "'");
    }
  }
  return options;
}

void bind_context(py::module_& module) {
  py::class_<Context, std::unique_ptr<Context, WithoutGil<Context>>>(
      module, "Context",
      "What this process is on the fabric: its transports, listener and peers, without ranks. Use it as a context manager. Keyword "
      "arguments, all optional: listen (address or list: \"unix:/path\", \"tcp://host:port\"; a private Unix socket is always "
      "there), "
      "key (job key; default HMC_JOB_KEY), insecure (allow TCP beyond this host without a key), name, transports (as "
      "HMC_TRANSPORTS), policy (\"auto\" or \"direct\"), heartbeat (seconds, default 5), progress (\"background\" or \"manual\"), "
      "on_joined(peer), on_left(peer, error or None). Any thread; dead in a forked child.",
      collectable_callbacks())
      // As py::init makes it, but with the object to show the callbacks.
      .def(
          "__init__",
          [](py::detail::value_and_holder& self, const py::args& positional, const py::kwargs& settings) {
            // pybind11's refusal would show the key.
            if (!positional.empty()) throw py::type_error("Context() takes keyword arguments only, such as listen= and key=");
            Callbacks callbacks;
            const ContextOptions options = context_options(settings, callbacks);
            const auto create = [&] {
              const ReleasedGil nogil;
              return check(Context::create(options));
            };
            self.value_ptr() = new Context(create());
            show_callbacks(py::handle(reinterpret_cast<PyObject*>(self.inst)), std::move(callbacks));
          },
          py::detail::is_new_style_constructor())
      .def_property_readonly("id", &Context::id, "32 hexadecimal digits, random.")
      .def_property_readonly("name", &Context::name, "What peers see.")
      .def_property_readonly(
          "addresses",
          [](const Context& self) {
            refuse_if_forked(self);
            return self.addresses();
          },
          "What peers pass to connect(), with real ports.")
      .def_property_readonly("closed", &Context::closed, "True after close().")
      .def_property_readonly(
          "peers",
          [](const Context& self) {
            refuse_if_forked(self);
            return self.peers();
          },
          "Peers connected now.")
      .def(
          "connect",
          [](const Context& self, const Text<"address">& address, const std::optional<double>& timeout) {
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
          "_iconnect",
          [](const Context& self, const Text<"address">& address, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            const ReleasedGil nogil;
            return check(self.iconnect(address, deadline));
          },
          py::arg("address"), py::arg("timeout"))
      .def(
          "_iaccept",
          [](const Context& self, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            const ReleasedGil nogil;
            return check(self.iaccept(deadline));
          },
          py::arg("timeout"))
      .def(
          "buffer",
          [](const Context& self, ByteCount nbytes, const py::object& device, const Text<"access">& access) {
            const Device where = device_of(device);
            const Access allowed = access_of(*access);
            const ReleasedGil nogil;
            return check(self.buffer(nbytes.value, where, allowed));
          },
          py::arg("nbytes"), py::arg("device") = "cpu", py::arg("access") = "rw", "Allocates and registers zero-filled memory.")
      .def(
          "register",
          [](const Context& self, const py::object& array, const Text<"access">& access) {
            const Access allowed = access_of(*access);
            if (allowed == Access::read_write) static_cast<void>(view_of(array, true));
            const Memory memory = memory_of(array);
            const ReleasedGil nogil;
            return check(self.register_memory(memory, allowed));
          },
          py::arg("array"), py::arg("access") = "rw",
          "Registers an array or Memory in place; keeps it alive. A read-only array needs access=\"r\".")
      .def(
          "publish",
          [](const Context& self, const Text<"name">& name, const Argument<ConnBuffer, "buffer">& buffer) {
            check(self.publish(name, buffer));
          },
          py::arg("name"), py::arg("buffer"), "Publishes a buffer for lookup(). InvalidArgumentError when the name is taken.")
      .def(
          "unpublish", [](const Context& self, const Text<"name">& name) { check(self.unpublish(name)); }, py::arg("name"),
          "Takes a published name back.")
      .def(
          "connect_native",
          [](const Context& self, const Text<"transport">& transport, const Argument<NativeFields, "peer">& peer) {
            const ReleasedGil nogil;
            return check(self.connect_native(transport, peer));
          },
          py::arg("transport"), py::arg("peer"),
          "Connects a program that is not HMC, whose own end the fields of `peer` describe, so that it can use what "
          "ConnBuffer.native() says; docs/reference/native.md lists the fields. UnsupportedError: the transport has no such "
          "interface, or is not there.")
      .def(
          "progress",
          [](const Context& self) {
            refuse_if_forked(self);
            const ReleasedGil nogil;
            return self.progress();
          },
          "progress=\"manual\": polls once; True if something moved.")
      .def(
          "counters",
          [](const Context& self) {
            refuse_if_forked(self);
            return self.counters();
          },
          "Counters by name since creation.")
      .def(
          "close",
          [](const Context& self, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            interruptible([&] { return self.close(deadline); });
          },
          py::arg("timeout") = 5.0,
          "Closes every peer, waits until what was posted has arrived, and frees everything. Messages and receives without a match "
          "end with ClosedError. HmcTimeoutError: something may be lost, or a stopped process may still write memory of this one; "
          "call it again to go on waiting. Idempotent.")
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](const Context& self, const py::args&) { interruptible([&] { return self.close(); }); })
      .def("__repr__", [](const Context& self) { return "<hmc.Context " + self.name() + (self.closed() ? ", closed>" : ">"); });
}

}  // namespace hmc::bindings
