// Point-to-point calls, once for Peer, Member and Communicator. A Caller says how a Python object is called upon:
//   using Self = ...;                       the pybind11 type
//   static constexpr bool ranked;           whether calls name a rank
//   send(self, view, rank, tag, deadline) ...   as in the public headers
#pragma once

#include <cstring>

#include "arguments.h"
#include "fastcall.h"

namespace hmc::bindings {

inline constexpr const char* notify_doc =
    "Raises a notification without data: an int (counted) or bytes. Returns once it is queued; waits while thousands before it are "
    "not accepted by a peer that is stopped or does not read. HmcTimeoutError: nothing was sent.";

// Id and count of a counted notification.
inline std::pair<std::uint64_t, std::uint64_t> counted_of(py::handle id, py::handle times) {
  const std::int64_t number = integer_or(id, 0, "id"), n = integer_or(times, 1, "count");
  if (number < 0) refuse("a notification id must be from 0 to 2**63 - 1, not " + std::to_string(number));
  if (n < 0) refuse("wait_notify: count must not be negative, and is " + std::to_string(n));
  return {static_cast<std::uint64_t>(number), static_cast<std::uint64_t>(n)};
}

// Arguments of send(array, [rank], tag=0, timeout=None) and its kin.
template <class Caller>
struct P2P {
  using Self = typename Caller::Self;
  struct Arguments {
    py::handle array;
    int rank;
    std::int64_t tag;
    Deadline deadline;
    py::handle stream;
  };
  static PyObject* send(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    return guarded([&]() -> py::object {
      const Arguments a = parse<SendTag>("send", "dst", args, count, keywords);
      const BorrowedView view(a.array, false);
      interruptible([&] { return Caller::send(self_as<Self>(self), *view, a.rank, a.tag, a.deadline); }, gil_for(view->bytes));
      return py::none();
    });
  }

  static PyObject* recv(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    return guarded([&]() -> py::object {
      const Arguments a = parse<RecvTag>("recv", "src", args, count, keywords);
      const BorrowedView view(a.array, true);
      return make_info(
          interruptible([&] { return Caller::recv(self_as<Self>(self), *view, a.rank, a.tag, a.deadline); }, gil_for(view->bytes)));
    });
  }

  static PyObject* isend(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    return guarded([&]() -> py::object {
      const Arguments a = parse_posted<IsendTag>("isend", "dst", args, count, keywords);
      const BorrowedView view(a.array, false, a.stream);
      return make_work(
          interruptible([&] { return Caller::isend(self_as<Self>(self), *view, a.rank, a.tag); }, gil_for(view->bytes)));
    });
  }

  static PyObject* irecv(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    return guarded([&]() -> py::object {
      const Arguments a = parse_posted<IrecvTag>("irecv", "src", args, count, keywords);
      const BorrowedView view(a.array, true, a.stream);
      return make_work(
          interruptible([&] { return Caller::irecv(self_as<Self>(self), *view, a.rank, a.tag); }, gil_for(view->bytes)));
    });
  }

  static PyObject* put(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    static const Signature<5> signature("put", {"source", "target", "notify", "complete", "stream"}, 2);
    return guarded([&]() -> py::object {
      const auto [source, target, notify, complete, stream] = signature.parse(args, count, keywords);
      std::string payload;
      PutOptions options;
      options.notify = notify_of(notify, payload);
      options.complete = complete_of(complete);
      options.stream = stream_of(stream);
      const auto& from = buffer_of<ConnBuffer>(source, "put() takes a ConnBuffer as source");
      const auto& to = buffer_of<RemoteBuffer>(target, "put() takes a RemoteBuffer as target");
      return make_work(interruptible([&] { return Caller::put(self_as<Self>(self), from, to, options); }, gil_for(from.size())));
    });
  }

  static PyObject* get(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    static const Signature<3> signature("get", {"target", "source", "stream"}, 2);
    return guarded([&]() -> py::object {
      const auto [target, source, stream] = signature.parse(args, count, keywords);
      const auto& to = buffer_of<ConnBuffer>(target, "get() takes a ConnBuffer as target");
      const auto& from = buffer_of<RemoteBuffer>(source, "get() takes a RemoteBuffer as source");
      const StreamHandle after = stream_of(stream);
      return make_work(interruptible([&] { return Caller::get(self_as<Self>(self), to, from, after); }, gil_for(to.size())));
    });
  }

  static PyObject* wait_notify(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    return guarded([&]() -> py::object {
      py::handle rank, id, times, timeout;
      if constexpr (Caller::ranked) {
        static const Signature<4> signature("wait_notify", {"src", "id", "count", "timeout"}, 2);
        std::tie(rank, id, times, timeout) = std::tuple_cat(signature.parse(args, count, keywords));
      } else {
        static const Signature<3> signature("wait_notify", {"id", "count", "timeout"}, 1);
        std::tie(id, times, timeout) = std::tuple_cat(signature.parse(args, count, keywords));
      }
      const auto [number, n] = counted_of(id, times);
      const int src = rank_of(rank, "src");
      const Deadline deadline = deadline_of(timeout);
      interruptible([&, number = number, n = n] { return Caller::wait_notify(self_as<Self>(self), src, number, n, deadline); },
                    Gil::until_waiting);
      return py::none();
    });
  }

  template <class Class>
  static void bind(Class& cls) {
    const std::string to = Caller::ranked ? ", dst" : "";
    const std::string from = Caller::ranked ? ", src" : "";
    install(cls, "send", send,
            "send($self, array" + to +
                ", tag=0, timeout=None)\n--\n\nSends an array's bytes; returns when it may be reused. tag: 0 to 2**62.");
    install(cls, "recv", recv,
            "recv($self, array" + from +
                ", tag=0, timeout=None)\n--\n\nReceives into a writable contiguous array; returns MessageInfo(source, tag, bytes). "
                "tag may be ANY_TAG" +
                (Caller::ranked ? ", src ANY_SOURCE" : "") +
                ". A message longer than the array raises InvalidArgumentError; a shorter one is fine. A timeout withdraws the "
                "receive; the message says "
                "whether the array may have been written.");
    install(cls, "isend", isend,
            "isend($self, array" + to +
                ", tag=0, stream=None)\n--\n\nAs send, but returns a Work at once. stream: of the array's device; the transfer "
                "starts after what "
                "is queued on it (default: the stream that a framework's array is produced on).");
    install(
        cls, "irecv", irecv,
        "irecv($self, array" + from +
            ", tag=0, stream=None)\n--\n\nAs recv, but returns a Work at once; work.info tells what came. stream: as in isend.");
    install(cls, "put", put,
            "put($self, source, target, notify=None, complete=\"remote\", stream=None)\n--\n\nWrites a ConnBuffer slice into a "
            "RemoteBuffer "
            "slice of equal size; returns a Work. "
            "notify: an int (counted) or bytes (at most 1024), raised at the target once the bytes are visible there. complete: "
            "\"remote\" or \"local\". stream: of the source's device (int, framework stream, __cuda_stream__); the transfer starts "
            "after what is queued on it.");
    install(
        cls, "get", get,
        "get($self, target, source, stream=None)\n--\n\nReads a RemoteBuffer slice into a ConnBuffer slice of equal size; returns "
        "a Work. stream: of the target's device, as in put.");
    install(cls, "wait_notify", wait_notify,
            std::string("wait_notify($self, ") + (Caller::ranked ? "src, " : "") +
                "id, count=1, timeout=None)\n--\n\nWaits until notification `id` was raised `count` times and consumes them. "
                "HmcTimeoutError consumes nothing.");
  }

 private:
  template <class Class>
  static void install(Class& cls, const char* name, FastFunction function, const std::string& doc) {
    fast_method(cls, name, function, strdup(doc.c_str()));  // as long as the type
  }

  // A rank as Python gives it; what does not fit an int is no rank of any group.
  static int rank_of(py::handle value, const char* name) { return value ? int_of<int>(value, name) : any_source; }

  template <class Buffer>
  static const Buffer& buffer_of(py::handle object, const char* wanted) {
    if (py::isinstance<Buffer>(object)) return object.cast<const Buffer&>();
    throw py::type_error(std::string(wanted) + ", not a " + Py_TYPE(object.ptr())->tp_name +
                         "; buffer() and register() make ConnBuffers, exchange(), lookup() and import_buffer() RemoteBuffers");
  }

  static Complete complete_of(py::handle value) {
    if (!value) return Complete::remote;
    const std::string_view text = text_of(value, "complete");
    if (text == "remote") return Complete::remote;
    if (text == "local") return Complete::local;
    refuse("complete must be \"remote\" or \"local\", not \"" + std::string(text) + "\"");
  }

  // One Signature per function name, made at its first call.
  template <class Tag>
  static Arguments parse(const char* function, const char* rank_name, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    if constexpr (Caller::ranked) {
      static const Signature<4> signature(function, {"array", rank_name, "tag", "timeout"}, 2);
      const auto [array, rank, tag, timeout] = signature.parse(args, count, keywords);
      return {array, rank_of(rank, rank_name), integer_or(tag, 0, "tag"), deadline_of(timeout), {}};
    } else {
      static const Signature<3> signature(function, {"array", "tag", "timeout"}, 1);
      const auto [array, tag, timeout] = signature.parse(args, count, keywords);
      return {array, 0, integer_or(tag, 0, "tag"), deadline_of(timeout), {}};
    }
  }
  // The same without a timeout: a Work has its own.
  template <class Tag>
  static Arguments parse_posted(const char* function, const char* rank_name, PyObject* const* args, Py_ssize_t count,
                                PyObject* keywords) {
    if constexpr (Caller::ranked) {
      static const Signature<4> signature(function, {"array", rank_name, "tag", "stream"}, 2);
      const auto [array, rank, tag, stream] = signature.parse(args, count, keywords);
      return {array, rank_of(rank, rank_name), integer_or(tag, 0, "tag"), Deadline::never(), stream};
    } else {
      static const Signature<3> signature(function, {"array", "tag", "stream"}, 1);
      const auto [array, tag, stream] = signature.parse(args, count, keywords);
      return {array, 0, integer_or(tag, 0, "tag"), Deadline::never(), stream};
    }
  }
  struct SendTag;
  struct RecvTag;
  struct IsendTag;
  struct IrecvTag;
};

}  // namespace hmc::bindings
