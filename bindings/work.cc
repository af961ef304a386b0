#include "hmc/work.h"

#include "fastcall.h"
#include "hmc/completion_queue.h"

namespace hmc::bindings {
namespace {

PyTypeObject* info_type() {
  static PyTypeObject* const type = [] {
    static PyStructSequence_Field fields[] = {{"source", "Rank of the sender, or -1 for a peer outside a Communicator."},
                                              {"tag", "Tag of the message."},
                                              {"bytes", "Size of the message in bytes."},
                                              {nullptr, nullptr}};
    static PyStructSequence_Desc description{"hmc.MessageInfo", "What a receive delivered: source, tag, bytes.", fields, 3};
    return PyStructSequence_NewType(&description);
  }();
  return type;
}

PyObject* wait(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  static const Signature<1> signature("wait", {"timeout"}, 0);
  return guarded([&]() -> py::object {
    const Work& work = self_as<Work>(self);
    const auto [timeout] = signature.parse(args, count, keywords);
    const Deadline deadline = deadline_of(timeout);
    // A KeyboardInterrupt leaves the operation going.
    interruptible([&] { return work.wait(deadline); }, Gil::until_waiting);
    return py::none();
  });
}

void add_done_callback(const py::object& self, const py::object& callback) {
  const Work& work = self.cast<const Work&>();
  // The dispatcher thread runs it and drops it there, with the GIL.
  auto held = std::make_shared<std::pair<py::object, py::object>>(callback, self);
  work.then([held](const Status&) mutable {
    const py::gil_scoped_acquire gil;
    try {
      held->first(held->second);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("hmc.Work callback");
    }
    held.reset();
  });
}

}  // namespace

py::object make_work(Work work) { return py::cast(std::move(work)); }

bool is_work(py::handle object) { return py::isinstance<Work>(object); }

const Work& work_from(py::handle object) {
  if (!is_work(object)) throw py::type_error("expected an hmc.Work");
  return object.cast<const Work&>();
}

py::object make_info(const MessageInfo& info) {
  PyObject* result = PyStructSequence_New(info_type());
  if (result == nullptr) throw py::error_already_set();
  PyStructSequence_SetItem(result, 0, PyLong_FromLong(info.source));
  PyStructSequence_SetItem(result, 1, PyLong_FromLongLong(info.tag));
  PyStructSequence_SetItem(result, 2, PyLong_FromSize_t(info.bytes));
  return py::reinterpret_steal<py::object>(result);
}

void bind_work(py::module_& module) {
  module.attr("MessageInfo") = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(info_type()));
  py::class_<Work> cls(
      module, "Work",
      "One operation under way: wait for it, await it, or be called back. Completes exactly once by itself; dropping it does "
      "not cancel it. Any thread.");
  fast_method(cls, "wait", wait,
              "wait($self, timeout=None)\n--\n\nWaits until done; raises the operation's error, or HmcTimeoutError after `timeout` "
              "seconds (the "
              "operation goes on).");
  cls.def_property_readonly("done", &Work::done, "True once complete.");
  cls.def_property_readonly("info", [](const Work& work) { return make_info(work.info()); }, "MessageInfo of a completed receive.");
  cls.def(
      "cancel",
      [](const Work& work) {
        const py::gil_scoped_release nogil;
        check(work.cancel());
      },
      "Stops the operation: afterwards nothing of it is written. UnsupportedError when it is too late (it completes by itself), "
      "InvalidArgumentError when it is complete.");
  cls.def(
      "join",
      [](const Work& work, const py::object& stream, const py::object& device) {
        const StreamHandle handle = stream_of(stream);
        const Device where = device.is_none() ? stream_device(stream) : device_of(device);
        const py::gil_scoped_release nogil;
        check(work.join(where, handle));
      },
      py::arg("stream"), py::arg("device") = py::none(),
      "Makes a device's stream wait until the operation is complete, with whatever outcome; returns at once. stream: int, "
      "framework "
      "stream or __cuda_stream__. device: whose it is; a framework's stream says so itself.");
  cls.def(
      "error",
      [](const Work& work) -> py::object {
        if (!work.done() || work.status().ok()) return py::none();
        return make_error(work.status());
      },
      "The exception of a failed operation, else None (also while under way).");
  cls.def("add_done_callback", add_done_callback, py::arg("callback"),
          "Calls callback(work) once after completion, on the dispatcher thread; never inside this call.");
  cls.def("__await__", [](const py::object& self) { return py::module_::import("hmc._aio").attr("await_work")(self); });

  const auto works_of = [](const py::iterable& works) {
    std::vector<Work> all;
    for (const py::handle work : works) all.push_back(work_from(work));
    return all;
  };
  module.def(
      "wait_any",
      [works_of](const py::iterable& works, const std::optional<double>& timeout) {
        const std::vector<Work> all = works_of(works);
        const Deadline deadline = deadline_of(timeout);
        return interruptible([&] { return wait_any(all, deadline); });
      },
      py::arg("works"), py::arg("timeout") = py::none(), "Index of a completed Work, the lowest. The Works belong to one Context.");
  module.def(
      "wait_all",
      [works_of](const py::iterable& works, const std::optional<double>& timeout) {
        const std::vector<Work> all = works_of(works);
        const Deadline deadline = deadline_of(timeout);
        interruptible([&] { return wait_all(all, deadline); });
      },
      py::arg("works"), py::arg("timeout") = py::none(),
      "Waits for every Work; raises the first error by index after all are complete.");

  py::class_<CompletionQueue>(module, "CompletionQueue",
                              "Completed Works as readiness of one descriptor; what awaiting is made of.")
      .def(py::init([] { return check(CompletionQueue::create()); }))
      .def("fileno", &CompletionQueue::fd, "Readable while completed tokens wait.")
      .def("watch", &CompletionQueue::watch, py::arg("work"), py::arg("token"), "Queues token once when work completes.")
      .def("drain", &CompletionQueue::drain, "Takes every queued token.");
}

}  // namespace hmc::bindings
