#include "hmc/work.h"

#include <Python.h>
#include <structmember.h>

#include "arguments.h"
#include "blocks.h"
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

struct WorkObject {
  PyObject_HEAD  // clang-format off
  PyObject* weak_references;  // clang-format on
  Work work;
};

// Every instance comes from new_work(), so its Work is valid.
PyObject* refuse_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyErr_Format(PyExc_TypeError, "%s: No constructor defined!", type->tp_name);
  return nullptr;
}

void deallocate(PyObject* self) {
  auto* const object = reinterpret_cast<WorkObject*>(self);
  if (object->weak_references != nullptr) PyObject_ClearWeakRefs(self);
  object->work.~Work();
  PyTypeObject* const type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// `T` as class `name` of the module, a subclass of `base` unless that is null.
template <class T>
py::handle add_type(py::module_& module, const char* name, const char* doc, py::handle base) {
  static const std::string full_name = std::string("hmc._core.") + name;  // the type refers to it
  static PyMemberDef members[] = {{"__weaklistoffset__", T_PYSSIZET, offsetof(WorkObject, weak_references), READONLY, nullptr},
                                  {nullptr, 0, 0, 0, nullptr}};
  PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(refuse_new)},
                         {Py_tp_members, members},
                         {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                         {Py_tp_doc, const_cast<char*>(doc)},
                         {0, nullptr}};
  PyType_Spec spec{full_name.c_str(), sizeof(WorkObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
  const py::object bases = base ? py::object(py::make_tuple(base)) : py::object();
  PyObject* const type = PyType_FromSpecWithBases(&spec, bases.ptr());
  if (type == nullptr) throw py::error_already_set();
  work_type<T> = reinterpret_cast<PyTypeObject*>(type);
  module.attr(name) = py::reinterpret_borrow<py::object>(type);
  return type;
}

// As py::class_::def and def_property_readonly.
template <class Function, class... Extra>
void add_method(py::handle cls, const char* name, Function&& function, const Extra&... extra) {
  cls.attr(name) = py::cpp_function(std::forward<Function>(function), py::name(name), py::is_method(cls), extra...);
}

template <class Function>
void add_property(py::handle cls, const char* name, Function&& function, const char* doc) {
  const py::handle property(reinterpret_cast<PyObject*>(&PyProperty_Type));
  const py::cpp_function getter(std::forward<Function>(function), py::name(name), py::is_method(cls));
  cls.attr(name) = property(getter, py::none(), py::none(), doc);
}

PyObject* wait(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  static const Signature<1> signature("wait", {"timeout"}, 0);
  return guarded([&]() -> py::object {
    const Work& work = work_from(self);
    const auto [timeout] = signature.parse(args, count, keywords);
    const Deadline deadline = deadline_of(timeout);
    // A KeyboardInterrupt leaves the operation going.
    interruptible([&] { return work.wait(deadline); }, Gil::until_waiting);
    drain_if_released();
    return py::none();
  });
}

// Throws ClosedError for a Work of the parent's; one of this process passes, and goes on.
void refuse_if_forked(const Work& work) {
  if (!in_forked_child()) return;
  const Status status = work.done() ? work.cancel() : work.wait(Deadline::after_seconds(0));
  if (status.message().find("fork()") != std::string_view::npos) check(status);
}

void add_done_callback(const py::object& self, const py::object& callback) {
  const Work& work = work_from(self);
  refuse_if_forked(work);
  work.then([function = shared_reference(callable_of(callback, "callback")), held = shared_reference(self)](const Status&) mutable {
    const auto called = std::move(function), argument = std::move(held);
    call_from_foreign_thread(object_of(called), "hmc.Work callback", [&] { return PyTuple_Pack(1, object_of(argument)); });
  });
}

// What an *_async call awaits.
template <class T>
void bind_work_of(py::module_& module, const char* name) {
  const py::handle cls = add_type<WorkOf<T>>(module, name, "A Work that delivers a value.", module.attr("Work"));
  add_method(cls, "_take", [](const WorkOf<T>& work) {
    const ReleasedGil nogil;
    return check(work.take());
  });
}

}  // namespace

py::object new_work(PyTypeObject* type, Work work) {
  PyObject* const object = type->tp_alloc(type, 0);
  if (object == nullptr) throw py::error_already_set();
  new (&reinterpret_cast<WorkObject*>(object)->work) Work(std::move(work));
  return py::reinterpret_steal<py::object>(object);
}

const Work& work_from(py::handle object) {
  if (PyObject_TypeCheck(object.ptr(), work_type<Work>) == 0)
    throw py::type_error(std::string("expected a Work, not a ") + Py_TYPE(object.ptr())->tp_name);
  return reinterpret_cast<const WorkObject*>(object.ptr())->work;
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
  const py::handle cls = add_type<Work>(
      module, "Work",
      "One operation under way: wait for it, await it, or be called back. Completes exactly once by itself; dropping it does "
      "not cancel it. Any thread.",
      {});
  fast_method(cls, "wait", wait,
              "wait($self, timeout=None)\n--\n\nWaits until done; raises the operation's error, or HmcTimeoutError after `timeout` "
              "seconds (the "
              "operation goes on).");
  add_property(cls, "done", [](const Work& work) { return work.done(); }, "True once complete.");
  add_property(cls, "info", [](const Work& work) { return make_info(work.info()); }, "MessageInfo of a completed receive.");
  add_method(
      cls, "cancel",
      [](const Work& work) {
        const ReleasedGil nogil;
        check(work.cancel());
      },
      "Stops the operation: afterwards nothing of it is written. A receive leaves its message to the next receive that fits; where "
      "the sender writes, this waits up to a second for it to stop. UnsupportedError when it is too late (it completes by itself, "
      "also as cancelled), "
      "InvalidArgumentError when it is complete.");
  add_method(
      cls, "join",
      [](const Work& work, const py::object& stream, const py::object& device) {
        const StreamHandle handle = stream_of(stream);
        const Device where = device.is_none() ? stream_device(stream) : device_of(device);
        interruptible([&] { return work.join(where, handle); });
      },
      py::arg("stream"), py::arg("device") = py::none(),
      "Makes a device's stream wait until the operation is complete, with whatever outcome; returns at once, but for a group's "
      "first "
      "collectives of device memory. stream: int, framework stream or __cuda_stream__. device: whose it is; a framework's stream "
      "says so itself.");
  add_method(
      cls, "error",
      [](const Work& work) -> py::object {
        if (!work.done() || work.status().ok()) return py::none();
        return make_error(work.status());
      },
      "The exception of a failed operation, else None (also while under way).");
  add_method(cls, "add_done_callback", add_done_callback, py::arg("callback"),
             "Calls callback(work) once after completion, on the dispatcher thread; never inside this call.");
  add_method(
      cls, "_withdraw",
      [](const Work& work) {
        const ReleasedGil nogil;
        return work.withdraw().code() != Code::unsupported;
      },
      "As cancel(); a wait that is complete also returns what it consumed. False: too late to stop, it completes by itself.");
  add_method(cls, "__await__", [](const py::object& self) { return py::module_::import("hmc._aio").attr("await_work")(self); });

  bind_work_of<Peer>(module, "_PeerWork");
  bind_work_of<RemoteBuffer>(module, "_RemoteBufferWork");
  const py::handle notifications =
      add_type<WorkOf<std::vector<Notification>>>(module, "_NotificationsWork", "A wait for notifications.", cls);
  add_method(notifications, "_take",
             [](const WorkOf<std::vector<Notification>>& work) { return notifications_as_list(check(work.take())); });

  const auto works_of = [](const py::iterable& works) {
    std::vector<Work> all;
    for (const py::handle work : works) all.push_back(work_from(work));
    return all;
  };
  module.def(
      "wait_any",
      [works_of](const Argument<py::iterable, "works">& works, const std::optional<double>& timeout) {
        const std::vector<Work> all = works_of(works);
        const Deadline deadline = deadline_of(timeout);
        return interruptible([&] { return wait_any(all, deadline); });
      },
      py::arg("works"), py::arg("timeout") = py::none(), "Index of a completed Work, the lowest. The Works belong to one Context.");
  module.def(
      "wait_all",
      [](const Argument<py::iterable, "works">& works, const std::optional<double>& timeout) {
        // What has succeeded already needs neither a reference nor a wait.
        std::vector<Work> all;
        for (const py::handle object : *works) {
          if (const Work& work = work_from(object); !work.done() || !work.status().ok()) all.push_back(work);
        }
        const Deadline deadline = deadline_of(timeout);
        if (!all.empty()) interruptible([&] { return wait_all(all, deadline); }, Gil::until_waiting);
        drain_if_released();
      },
      py::arg("works"), py::arg("timeout") = py::none(),
      "Waits for every Work; raises the first error by index after all are complete.");

  py::class_<CompletionQueue>(module, "CompletionQueue",
                              "Completed Works as readiness of one descriptor; what awaiting is made of.")
      .def(py::init([] { return check(CompletionQueue::create()); }))
      .def("fileno", &CompletionQueue::fd, "Readable while completed tokens wait.")
      .def(
          "watch",
          [](const CompletionQueue& queue, const Argument<Work, "work">& work, const Argument<std::uint64_t, "token">& token) {
            refuse_if_forked(*work);
            queue.watch(*work, token);
          },
          py::arg("work"), py::arg("token"),
          "Queues token once when work completes. In a forked child, ClosedError for a Work of the parent's.")
      .def("drain", &CompletionQueue::drain, "Takes every queued token.");
}

}  // namespace hmc::bindings
