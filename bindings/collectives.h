// barrier(), all_to_all() and iall_reduce() of Communicator and Member, as fast methods: with small blocks the call itself would
// cost the most.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "caller_stream.h"
#include "element_type.h"
#include "fastcall.h"
#include "members.h"

namespace hmc::bindings {

// Calls on a Communicator go to its only local Member; with several, the core's error says to call on a Member.
inline const Member& member_of(const Member& self) { return self; }
inline const Member& member_of(const Communicator& self) {
  const std::vector<Member>& local = self.local();
  if (local.size() != 1) check(self.self().status());
  return local.front();
}

template <class T>
struct Collectives {
  static PyObject* barrier(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    static const Signature<1> signature("barrier", {"timeout"}, 0);
    return guarded([&]() -> py::object {
      const auto [timeout] = signature.parse(args, count, keywords);
      const Deadline deadline = deadline_of(timeout);
      interruptible([&] { return self_as<T>(self).barrier(deadline); }, Gil::until_waiting);
      return py::none();
    });
  }

  static PyObject* all_to_all(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    static const Signature<4> signature("all_to_all", {"out", "inp", "timeout", "algorithm"}, several ? 1 : 2);
    return guarded([&]() -> py::object {
      const auto [out, inp, timeout, named] = signature.parse(args, count, keywords);
      const Deadline deadline = deadline_of(timeout);
      const std::string_view algorithm = optional_text(named, "algorithm");
      const T& group = self_as<T>(self);
      if constexpr (several) {
        if (PyDict_Check(out.ptr()) != 0) {
          if (inp && !inp.is_none()) refuse("all_to_all takes {member: (out, inp)} or out and inp, not both");
          const std::vector<MemberBuffers> buffers = buffers_of(py::reinterpret_borrow<py::dict>(out));
          interruptible([&] { return group.all_to_all(buffers, deadline, algorithm); });
          return py::none();
        }
        if (!inp || inp.is_none()) throw py::type_error("all_to_all() misses the argument 'inp'");
      }
      const BorrowedView to(out, true), from(inp, false);
      const Member member = member_of(group);
      interruptible([&] { return member.all_to_all(*to, *from, deadline, algorithm); }, gil_for(to->bytes));
      return py::none();
    });
  }

  static PyObject* iall_reduce(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    static const Signature<8> signature("iall_reduce", {"out", "inp", "op", "factor", "dtype", "exact", "algorithm", "stream"}, 1);
    return guarded([&]() -> py::object {
      const auto [out, inp, op, factor, dtype, exact, named, stream] = signature.parse(args, count, keywords);
      const T& group = self_as<T>(self);
      const bool is_exact = is_set(exact, "exact");
      const std::string_view algorithm = optional_text(named, "algorithm");
      const CallerStream ordered(stream);
      const py::handle source = !inp || inp.is_none() ? out : inp;
      Reduction reduction = reduction_of(out, source, text_or(op, "sum", "op"), factor, dtype);
      reduction.exact = is_exact;
      const BorrowedView target(out, true);
      std::optional<BorrowedView> apart;  // to look at a tensor of a device takes microseconds: once, in place
      if (!source.is(out)) apart.emplace(source, false);
      const MemoryView to = ordered.of(*target), from = apart ? ordered.of(**apart) : to;
      return make_work(ordered.start({to, from}, [&] { return member_of(group).iall_reduce(to, from, reduction, algorithm); }));
    });
  }

 private:
  static constexpr bool several = std::is_same_v<T, Communicator>;  // may have several local Members

  static std::vector<MemberBuffers> buffers_of(const py::dict& by_member) {
    std::vector<MemberBuffers> buffers;
    constexpr const char* wanted = "all_to_all takes out and inp, or {Member: (out, inp)}";
    for_entries<py::tuple>(by_member, wanted, [&](const Member& who, const py::tuple& both) {
      if (both.size() != 2) refuse("each Member needs a pair (out, inp)");
      buffers.push_back({who, view_of(both[0], true), view_of(both[1], false)});
    });
    return buffers;
  }
};

}  // namespace hmc::bindings
