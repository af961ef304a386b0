// Streams of devices as Python has them: numbers, frameworks' objects, the __cuda_stream__ protocol.
#include <algorithm>
#include <vector>

#include "common.h"

namespace hmc::bindings {
namespace {

// A framework's null handle is its default stream, not the absence of one.
StreamHandle handle_of(const py::object& number) {
  const auto integer = py::reinterpret_steal<py::object>(PyNumber_Long(number.ptr()));
  const StreamHandle handle = integer ? PyLong_AsSize_t(integer.ptr()) : 0;
  if (PyErr_Occurred() != nullptr) {
    if (PyErr_ExceptionMatches(PyExc_TypeError) == 0 && PyErr_ExceptionMatches(PyExc_OverflowError) == 0)
      throw py::error_already_set();
    PyErr_Clear();
    refuse("stream is " + written(py::repr(number)) + ", which is no handle of a stream");
  }
  return handle == 0 ? default_stream : handle;
}

// torch.cuda.Stream.cuda_stream and its namesakes of other torch devices; cupy.cuda.Stream.ptr.
constexpr const char* handle_attributes[] = {"cuda_stream", "mlu_stream", "musa_stream", "ptr"};

// A handle that is more than an int: of NumPy, or a stream of cuda.bindings or hip-python. What has a fraction is none.
bool numeric(py::handle object) {
  return PyIndex_Check(object.ptr()) != 0 || (py::hasattr(object, "__int__") && !py::hasattr(object, "__float__"));
}

std::string module_root(py::handle object) {
  const auto name = written(py::type::of(object).attr("__module__"));
  return name.substr(0, name.find('.'));
}

// What an array is produced by, or nothing where it is ready.
std::optional<StreamMark> mark_of(Device device, StreamHandle stream) {
  if (stream == no_stream || device.is_cpu()) return std::nullopt;
  return check(StreamMark::of(device, stream));
}

std::optional<StreamMark> mark_of_array(const py::object& array) {
  const MemoryView view = view_of(array, false);
  return mark_of(view.device, view.stream);
}

std::pair<Memory, std::optional<StreamMark>> marked_memory(const py::object& array) {
  const auto [memory, stream] = memory_and_stream_of(array);
  return {memory, mark_of(memory.device(), stream)};
}

struct QueuedCopies {
  std::vector<bool> queued;
  std::vector<StreamMark> marks;
  py::object error = py::none();  // of the first that failed: those before it may still write
};

QueuedCopies queue_copies(const std::vector<std::pair<py::object, Memory>>& copies) {
  std::vector<std::pair<Memory, StreamHandle>> sources;
  for (const auto& [array, target] : copies) {
    sources.push_back(memory_and_stream_of(array));
    const std::size_t bytes = sources.back().first.size();
    if (bytes != target.size())
      refuse("a copy of " + std::to_string(bytes) + " bytes into " + std::to_string(target.size()) + ": sizes must be equal");
  }
  QueuedCopies found;
  std::vector<std::pair<Device, StreamHandle>> streams;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const auto& [source, stream] = sources[i];
    Status status;
    {
      const ReleasedGil nogil;
      status = copies[i].second.queue_copy_from(source, stream);
    }
    found.queued.push_back(status.ok());
    if (status.code() == Code::unsupported) continue;
    if (!status.ok()) {
      found.error = make_error(status);
      break;
    }
    const std::pair where(source.device(), stream);
    if (std::ranges::find(streams, where) == streams.end()) streams.push_back(where);
  }
  for (const auto& [device, stream] : streams) {
    Result<StreamMark> mark = StreamMark::of(device, stream);
    if (mark.ok()) {
      found.marks.push_back(std::move(*mark));
    } else {
      found.error = make_error(mark.status());
    }
  }
  return found;
}

}  // namespace

void bind_streams(py::module_& module) {
  py::class_<StreamMark>(module, "StreamMark",
                         "What is queued on a stream when this is made, and no later work. stream: int, framework stream or "
                         "__cuda_stream__. device: whose it is; a framework's stream says so itself. Any thread.")
      .def(py::init([](const py::object& stream, const py::object& device) {
             return check(StreamMark::of(device.is_none() ? stream_device(stream) : device_of(device), stream_of(stream)));
           }),
           py::arg("stream"), py::arg("device") = py::none())
      .def_static("of", mark_of_array, py::arg("array"),
                  "Of the stream that an array of a device is produced on (torch's or CuPy's current one, or what its "
                  "__cuda_array_interface__ names); None where nothing says so, and for CPU memory.")
      .def_property_readonly(
          "reached", [](const StreamMark& self) { return check(self.reached()); }, "True once that work is over.");
  module.def("marked_memory", marked_memory, py::arg("array"),
             "(Memory.from_array(array), StreamMark.of(array)): to look at an array of a device takes microseconds.");
  module.def(
      "queue_copies",
      [](const std::vector<std::pair<py::object, Memory>>& copies) {
        QueuedCopies found = queue_copies(copies);
        return std::tuple(std::move(found.queued), std::move(found.marks), std::move(found.error));
      },
      py::arg("copies"),
      "Copies each array of a device into a Memory of as many bytes, on the stream that the array is produced on, and does "
      "not wait. (whether each copy was queued, marks behind them, the error of the first that failed or None): not queued where "
      "no stream is known, and not into memory of "
      "another device. The memories stay until the marks are reached.");
}

StreamHandle stream_of(py::handle object) {
  if (!object || object.is_none()) return no_stream;
  if (PyLong_Check(object.ptr()) != 0) return handle_of(py::reinterpret_borrow<py::object>(object));
  if (py::hasattr(object, "__cuda_stream__")) {
    const auto told = call_python(attribute_of(object, "__cuda_stream__")).cast<py::tuple>();
    if (told.size() < 2) refuse("__cuda_stream__ did not give two things, the version of the protocol and the handle");
    return handle_of(told[1]);
  }
  for (const char* name : handle_attributes) {
    if (const py::object handle = attribute_or_null(object, name)) return handle_of(handle);
  }
  if (numeric(object)) return handle_of(py::int_(py::reinterpret_borrow<py::object>(object)));
  refuse("a stream is an int, an object with __cuda_stream__, or a stream of torch, CuPy, cuda-python or hip-python");
}

Device stream_device(py::handle object) {
  if (object && py::hasattr(object, "device")) {
    const py::object device = object.attr("device");
    if (py::hasattr(device, "type") && py::hasattr(device, "index")) {  // torch.device
      const py::object index = device.attr("index");
      return check(Device::parse(written(device.attr("type")) + ":" + std::to_string(index.is_none() ? 0 : index.cast<int>())));
    }
  }
  refuse("this stream does not say whose it is: name its device, as in join(stream, \"cuda:0\")");
}

// What is queued on it produces the array. A framework's current stream; else what __cuda_array_interface__ says (`declared`).
StreamHandle producer_stream(py::handle array, py::handle declared) {
  const std::string root = module_root(array);
  if (root == "torch") {
    const py::object device = array.attr("device");
    const auto kind = written(device.attr("type"));
    const py::object torch = py::module_::import("torch");
    if (kind != "cpu" && py::hasattr(torch, kind.c_str())) {
      const py::object backend = torch.attr(kind.c_str());
      if (py::hasattr(backend, "current_stream"))
        return stream_of(call_python(backend.attr("current_stream"), py::make_tuple(device)));
    }
  } else if (root == "cupy") {
    return stream_of(call_python(py::module_::import("cupy.cuda").attr("get_current_stream")));
  }
  return stream_of(declared);
}

}  // namespace hmc::bindings
