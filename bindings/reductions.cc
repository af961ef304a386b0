// all_reduce, reduce_scatter, reduce, all_gather, broadcast, gather and scatter of Member and Communicator.
#include "arguments.h"
#include "caller_stream.h"
#include "collectives.h"
#include "element_type.h"
#include "members.h"

namespace hmc::bindings {
namespace {

using Timeout = std::optional<double>;
using Root = Int<"root">;
using Algorithm = OptionalText<"algorithm">;  // None: HMC chooses

std::string_view text(const Algorithm& name) { return *name ? std::string_view(**name) : std::string_view(); }

// inp=None: in place.
py::object input_of(const py::object& out, const py::object& inp) { return inp.is_none() ? out : inp; }
// None: a rank that has no such buffer.
MemoryView maybe_view(const py::object& array, bool writable) { return array.is_none() ? MemoryView{} : view_of(array, writable); }

// Of {member: (out, inp)}, or {member: array} in place.
std::vector<MemberBuffers> buffers_of(const py::dict& by_member) {
  std::vector<MemberBuffers> buffers;
  for (const auto& [who, value] : by_member) {
    if (!py::isinstance<Member>(who)) throw py::type_error("the keys must be Members, as in {comm.local[0]: array}");
    if (value.is_none()) throw py::type_error("each Member needs an array, or a pair (out, inp)");
    const bool both = py::isinstance<py::tuple>(value);
    if (both && py::len(value) != 2) refuse("each Member needs an array, or a pair (out, inp)");
    const py::object out = both ? py::object(py::cast<py::tuple>(value)[0]) : py::reinterpret_borrow<py::object>(value);
    const py::object inp = both ? py::object(py::cast<py::tuple>(value)[1]) : out;
    buffers.push_back({who.cast<Member>(), maybe_view(out, true), maybe_view(inp, false)});
  }
  return buffers;
}

// Whether blocks have sizes of their own.
bool uneven(const py::object& counts, const py::object& displacements) {
  if (counts.is_none() && !displacements.is_none()) refuse("displacements= requires counts=");
  return !counts.is_none();
}

// Calls `many(buffers)` for {member: ...}. False: `out` is one array. `others`: arguments that go with one array only.
template <class T, class Many>
bool for_members(const T&, const py::object& out, const Timeout& timeout, const Many& many,
                 std::initializer_list<std::pair<const char*, py::handle>> others = {}) {
  if constexpr (std::is_same_v<T, Communicator>) {
    if (!py::isinstance<py::dict>(out)) return false;
    for (const auto& [name, value] : others) {
      if (value && !value.is_none()) refuse(std::string("pass no ") + name + "= with {member: ...}: a Member's own call takes it");
    }
    const std::vector<MemberBuffers> buffers = buffers_of(out);
    const Deadline deadline = deadline_of(timeout);
    interruptible([&] { return many(buffers, deadline); });
    return true;
  }
  return false;
}

// Of {member: (out, inp)} or {member: array}.
Reduction reduction_of_members(const py::dict& by_member, py::handle inp, std::string_view op, py::handle factor,
                               py::handle dtype) {
  if (inp && !inp.is_none()) refuse("{member: (out, inp)} has the inputs; leave inp out");
  std::optional<Reduction> first;
  for (const auto& [who, value] : by_member) {
    const bool both = py::isinstance<py::tuple>(value) && py::len(value) == 2;
    const py::object to = both ? py::object(py::cast<py::tuple>(value)[0]) : py::reinterpret_borrow<py::object>(value);
    const Reduction one = reduction_of(to, both ? py::object(py::cast<py::tuple>(value)[1]) : to, op, factor, dtype);
    if (first && first->type != one.type) throw py::type_error("the Members' arrays are of different types");
    first = one;
  }
  if (!first) refuse("name every local Member, as in {comm.local[0]: array}");
  return *first;
}

Reduction exactly(bool exact, Reduction reduction) {
  reduction.exact = exact;
  return reduction;
}

template <class T>
Reduction reduction_for(const py::object& out, const py::object& inp, const std::string& op, const py::object& factor,
                        const py::object& dtype) {
  if (std::is_same_v<T, Communicator> && py::isinstance<py::dict>(out)) return reduction_of_members(out, inp, op, factor, dtype);
  return reduction_of(out, input_of(out, inp), op, factor, dtype);
}

constexpr const char* all_reduce_doc =
    "all_reduce($self, out, inp=None, op=\"sum\", factor=None, dtype=None, timeout=None, exact=False, algorithm=None)\n--\n\n"
    "Reduces inp of every rank into out of every rank; without inp, out in place. op: sum, product, min, max, avg, band, bor, "
    "bxor, or premul_sum, which multiplies by factor before (alike on every rank). Every rank gets the same bits. exact: of sum, "
    "avg and premul_sum; each sum is rounded once, so it does not depend on the order of "
    "the ranks. algorithm: one of plan().algorithms, alike on every rank; None: HMC chooses. dtype: for arrays without one. "
    "Several "
    "local Members: {member: (out, inp)} or {member: array}. "
    "Collective.";

// A fast method: with small arrays the call itself would cost the most.
template <class T>
PyObject* all_reduce(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
  static const Signature<8> signature("all_reduce", {"out", "inp", "op", "factor", "dtype", "timeout", "exact", "algorithm"}, 1);
  return guarded([&]() -> py::object {
    const auto [target, input, op, factor, dtype, timeout, exact, named] = signature.parse(args, count, keywords);
    const T& group = self_as<T>(self);
    const bool is_exact = is_set(exact, "exact");
    const std::string_view algorithm = optional_text(named, "algorithm");
    const py::handle source = !input || input.is_none() ? target : input;
    const std::string_view operation = text_or(op, "sum", "op");
    if constexpr (std::is_same_v<T, Communicator>) {
      if (PyDict_Check(target.ptr()) != 0) {
        const auto members = py::reinterpret_borrow<py::dict>(target);
        const auto reduction = exactly(is_exact, reduction_of_members(members, input, operation, factor, dtype));
        const auto buffers = buffers_of(members);
        const Deadline deadline = deadline_of(timeout);
        interruptible([&] { return group.all_reduce(buffers, reduction, deadline, algorithm); });
        return py::none();
      }
    }
    const Reduction reduction = exactly(is_exact, reduction_of(target, source, operation, factor, dtype));
    const BorrowedView to(target, true), from(source, false);
    const Deadline deadline = deadline_of(timeout);
    const Member member = member_of(group);
    interruptible([&] { return member.all_reduce(*to, *from, reduction, deadline, algorithm); }, gil_for(to->bytes));
    return py::none();
  });
}

constexpr const char* iall_reduce_doc =
    "iall_reduce($self, out, inp=None, op=\"sum\", factor=None, dtype=None, exact=False, algorithm=None, stream=None)\n--\n\n"
    "As all_reduce of arrays, but returns a Work at once. stream: of the arrays' device; the call starts after what is queued on "
    "it, and what is queued there later waits for the call, with whatever outcome (default: it starts after the stream that a "
    "framework's arrays are produced on, and Work.join orders what comes later).";

template <class T, class Class>
void bind_reducing(Class& cls) {
  fast_method(cls, "all_reduce", all_reduce<T>, all_reduce_doc);
  fast_method(cls, "iall_reduce", Collectives<T>::iall_reduce, iall_reduce_doc);
  using py::arg;
  cls.def(
         "reduce_scatter",
         [](const T& self, const py::object& out, const py::object& inp, const Text<"op">& op, const py::object& counts,
            const py::object& factor, const py::object& dtype, const Timeout& timeout, const Flag<"exact">& exact,
            const Algorithm& algorithm) {
           const py::object source = input_of(out, inp);
           const Reduction reduction = exactly(exact, reduction_for<T>(out, inp, op, factor, dtype));
           const auto many = [&](const auto& buffers, Deadline deadline) {
             return self.reduce_scatter(buffers, reduction, deadline, text(algorithm));
           };
           if constexpr (std::is_same_v<T, Communicator>) {
             if (for_members(self, out, timeout, many, {{"counts", counts}})) return;
           }
           const BorrowedView to(out, true), from(source, false);
           const Deadline deadline = deadline_of(timeout);
           const Member member = member_of(self);
           if (counts.is_none()) {
             interruptible([&] { return member.reduce_scatter(*to, *from, reduction, deadline, text(algorithm)); });
           } else {
             const LayoutArrays layout(counts, {}, size_of(reduction.type));
             interruptible(
                 [&] { return member.reduce_scatter_v(*to, *from, layout.layout(), reduction, deadline, text(algorithm)); });
           }
         },
         arg("out"), arg("inp") = py::none(), arg("op") = "sum", arg("counts") = py::none(), arg("factor") = py::none(),
         arg("dtype") = py::none(), arg("timeout") = py::none(), arg("exact") = false, arg("algorithm") = py::none(),
         "Reduces block r of every rank's inp into out of rank r. counts: elements of each rank's block; default: equal blocks. "
         "op, factor, dtype, exact, algorithm: as all_reduce. Several local Members: {member: (out, inp)}. Collective.")
      .def(
          "ireduce_scatter",
          [](const T& self, const py::object& out, const py::object& inp, const Text<"op">& op, const py::object& counts,
             const py::object& factor, const py::object& dtype, const Flag<"exact">& exact, const Algorithm& algorithm,
             const py::object& stream) {
            const CallerStream ordered(stream);
            const Reduction reduction = exactly(exact, reduction_of(out, inp, op, factor, dtype));
            const MemoryView to = ordered.of(view_of(out, true)), from = ordered.of(view_of(inp, false));
            if (counts.is_none()) {
              return ordered.start({to, from},
                                   [&] { return member_of(self).ireduce_scatter(to, from, reduction, text(algorithm)); });
            }
            const LayoutArrays layout(counts, {}, size_of(reduction.type));
            return ordered.start({to, from}, [&] {
              return member_of(self).ireduce_scatter_v(to, from, layout.layout(), reduction, text(algorithm));
            });
          },
          arg("out"), arg("inp"), arg("op") = "sum", arg("counts") = py::none(), arg("factor") = py::none(),
          arg("dtype") = py::none(), arg("exact") = false, arg("algorithm") = py::none(), arg("stream") = py::none(),
          "As reduce_scatter of arrays, but returns a Work at once. stream: as in iall_reduce.")
      .def(
          "reduce",
          [](const T& self, const py::object& out, const py::object& inp, const Root& root, const Text<"op">& op,
             const py::object& factor, const py::object& dtype, const Timeout& timeout, const Flag<"exact">& exact,
             const Algorithm& algorithm) {
            const py::object source = input_of(out, inp);
            const Reduction reduction = exactly(exact, reduction_for<T>(out, inp, op, factor, dtype));
            const auto many = [&](const auto& buffers, Deadline deadline) {
              return self.reduce(buffers, root, reduction, deadline, text(algorithm));
            };
            if constexpr (std::is_same_v<T, Communicator>) {
              if (for_members(self, out, timeout, many)) return;
            }
            const MemoryView to = maybe_view(out, true), from = view_of(source, false);
            const Deadline deadline = deadline_of(timeout);
            const Member member = member_of(self);
            interruptible([&] { return member.reduce(to, from, root, reduction, deadline, text(algorithm)); });
          },
          arg("out"), arg("inp") = py::none(), arg("root") = 0, arg("op") = "sum", arg("factor") = py::none(),
          arg("dtype") = py::none(), arg("timeout") = py::none(), arg("exact") = false, arg("algorithm") = py::none(),
          "Reduces inp of every rank into out of root; other ranks may pass None as out. op, factor, dtype, exact, algorithm: as "
          "all_reduce. Several local Members: {member: (out, inp)}. Collective.")
      .def(
          "ireduce",
          [](const T& self, const py::object& out, const py::object& inp, const Root& root, const Text<"op">& op,
             const py::object& factor, const py::object& dtype, const Flag<"exact">& exact, const Algorithm& algorithm,
             const py::object& stream) {
            const CallerStream ordered(stream);
            const py::object source = input_of(out, inp);
            const Reduction reduction = exactly(exact, reduction_of(out, source, op, factor, dtype));
            const MemoryView to = ordered.of(maybe_view(out, true)), from = ordered.of(view_of(source, false));
            return ordered.start({to, from}, [&] { return member_of(self).ireduce(to, from, root, reduction, text(algorithm)); });
          },
          arg("out"), arg("inp") = py::none(), arg("root") = 0, arg("op") = "sum", arg("factor") = py::none(),
          arg("dtype") = py::none(), arg("exact") = false, arg("algorithm") = py::none(), arg("stream") = py::none(),
          "As reduce of arrays, but returns a Work at once. stream: as in iall_reduce.");
}

template <class T, class Class>
void bind_spreading(Class& cls) {
  using py::arg;
  cls.def(
         "all_gather",
         [](const T& self, const py::object& out, const py::object& inp, const py::object& counts, const py::object& displacements,
            const Timeout& timeout, const Algorithm& algorithm) {
           const auto many = [&](const auto& buffers, Deadline deadline) {
             return self.all_gather(buffers, deadline, text(algorithm));
           };
           if constexpr (std::is_same_v<T, Communicator>) {
             if (for_members(self, out, timeout, many, {{"inp", inp}, {"counts", counts}, {"displacements", displacements}}))
               return;
           }
           const BorrowedView to(out, true), from(inp, false);
           const Deadline deadline = deadline_of(timeout);
           const Member member = member_of(self);
           if (!uneven(counts, displacements)) {
             interruptible([&] { return member.all_gather(*to, *from, deadline, text(algorithm)); }, gil_for(to->bytes));
           } else {
             const LayoutArrays layout(counts, displacements, item_size_of(out));
             interruptible([&] { return member.all_gather_v(*to, layout.layout(), *from, deadline, text(algorithm)); });
           }
         },
         arg("out"), arg("inp") = py::none(), arg("counts") = py::none(), arg("displacements") = py::none(),
         arg("timeout") = py::none(), arg("algorithm") = py::none(),
         "inp of rank r becomes block r of out of every rank; inp may be that block. counts, displacements: elements of the blocks "
         "of out; default: equal blocks, packed. algorithm: as all_reduce. Several local Members: {member: (out, inp)}. "
         "Collective.")
      .def(
          "iall_gather",
          [](const T& self, const py::object& out, const py::object& inp, const py::object& counts, const py::object& displacements,
             const Algorithm& algorithm, const py::object& stream) {
            const CallerStream ordered(stream);
            const MemoryView to = ordered.of(view_of(out, true)), from = ordered.of(view_of(inp, false));
            if (!uneven(counts, displacements)) {
              return ordered.start({to, from}, [&] { return member_of(self).iall_gather(to, from, text(algorithm)); });
            }
            const LayoutArrays layout(counts, displacements, item_size_of(out));
            return ordered.start({to, from},
                                 [&] { return member_of(self).iall_gather_v(to, layout.layout(), from, text(algorithm)); });
          },
          arg("out"), arg("inp"), arg("counts") = py::none(), arg("displacements") = py::none(), arg("algorithm") = py::none(),
          arg("stream") = py::none(), "As all_gather of arrays, but returns a Work at once. stream: as in iall_reduce.")
      .def(
          "broadcast",
          [](const T& self, const py::object& array, const Root& root, const Timeout& timeout, const Algorithm& algorithm) {
            const auto many = [&](const auto& buffers, Deadline deadline) {
              return self.broadcast(buffers, root, deadline, text(algorithm));
            };
            if (array.is_none()) throw py::type_error("broadcast() needs an array on every rank");
            if constexpr (std::is_same_v<T, Communicator>) {
              if (for_members(self, array, timeout, many)) return;
            }
            const Member member = member_of(self);
            const BorrowedView view(array, member.rank() != *root);
            const Deadline deadline = deadline_of(timeout);
            interruptible([&] { return member.broadcast(*view, root, deadline, text(algorithm)); }, gil_for(view->bytes));
          },
          arg("array"), arg("root") = 0, arg("timeout") = py::none(), arg("algorithm") = py::none(),
          "array of root becomes array of every rank. algorithm: as all_reduce. Several local Members: {member: array}. "
          "Collective.")
      .def(
          "ibroadcast",
          [](const T& self, const py::object& array, const Root& root, const Algorithm& algorithm, const py::object& stream) {
            const CallerStream ordered(stream);
            const Member member = member_of(self);
            const MemoryView view = ordered.of(view_of(array, member.rank() != *root));
            return ordered.start({view}, [&] { return member.ibroadcast(view, root, text(algorithm)); });
          },
          arg("array"), arg("root") = 0, arg("algorithm") = py::none(), arg("stream") = py::none(),
          "As broadcast of an array, but returns a Work at once. stream: as in iall_reduce.");
}

template <class T, class Class>
void bind_rooted(Class& cls) {
  using py::arg;
  cls.def(
         "gather",
         [](const T& self, const py::object& out, const py::object& inp, const Root& root, const py::object& counts,
            const py::object& displacements, const Timeout& timeout) {
           const auto many = [&](const auto& buffers, Deadline deadline) { return self.gather(buffers, root, deadline); };
           if constexpr (std::is_same_v<T, Communicator>) {
             if (for_members(self, out, timeout, many, {{"inp", inp}, {"counts", counts}, {"displacements", displacements}}))
               return;
           }
           const MemoryView to = maybe_view(out, true), from = view_of(inp, false);
           const Deadline deadline = deadline_of(timeout);
           const Member member = member_of(self);
           const bool is_uneven = uneven(counts, displacements);
           if (!is_uneven || out.is_none()) {
             interruptible([&] {
               return !is_uneven ? member.gather(to, from, root, deadline) : member.gather_v(to, {}, from, root, deadline);
             });
           } else {
             const LayoutArrays layout(counts, displacements, item_size_of(out));
             interruptible([&] { return member.gather_v(to, layout.layout(), from, root, deadline); });
           }
         },
         arg("out"), arg("inp") = py::none(), arg("root") = 0, arg("counts") = py::none(), arg("displacements") = py::none(),
         arg("timeout") = py::none(),
         "inp of rank r becomes block r of out of root; other ranks may pass None as out. counts, displacements: elements of the "
         "blocks of out; default: equal blocks, packed. Several local Members: {member: (out, inp)}. Collective.")
      .def(
          "igather",
          [](const T& self, const py::object& out, const py::object& inp, const Root& root, const py::object& stream) {
            const CallerStream ordered(stream);
            const MemoryView to = ordered.of(maybe_view(out, true)), from = ordered.of(view_of(inp, false));
            return ordered.start({to, from}, [&] { return member_of(self).igather(to, from, root); });
          },
          arg("out"), arg("inp"), arg("root") = 0, arg("stream") = py::none(),
          "As gather of equal blocks, but returns a Work at once. stream: as in iall_reduce.")
      .def(
          "scatter",
          [](const T& self, const py::object& out, const py::object& inp, const Root& root, const py::object& counts,
             const py::object& displacements, const Timeout& timeout) {
            const auto many = [&](const auto& buffers, Deadline deadline) { return self.scatter(buffers, root, deadline); };
            if constexpr (std::is_same_v<T, Communicator>) {
              if (for_members(self, out, timeout, many, {{"inp", inp}, {"counts", counts}, {"displacements", displacements}}))
                return;
            }
            const MemoryView to = view_of(out, true), from = maybe_view(inp, false);
            const Deadline deadline = deadline_of(timeout);
            const Member member = member_of(self);
            const bool is_uneven = uneven(counts, displacements);
            if (!is_uneven || inp.is_none()) {
              interruptible([&] {
                return !is_uneven ? member.scatter(to, from, root, deadline) : member.scatter_v(to, from, {}, root, deadline);
              });
            } else {
              const LayoutArrays layout(counts, displacements, item_size_of(inp));
              interruptible([&] { return member.scatter_v(to, from, layout.layout(), root, deadline); });
            }
          },
          arg("out"), arg("inp") = py::none(), arg("root") = 0, arg("counts") = py::none(), arg("displacements") = py::none(),
          arg("timeout") = py::none(),
          "Block r of inp of root becomes out of rank r; other ranks may leave inp out. counts, displacements: elements of the "
          "blocks of inp; default: equal blocks, packed. Several local Members: {member: (out, inp)}. Collective.")
      .def(
          "iscatter",
          [](const T& self, const py::object& out, const py::object& inp, const Root& root, const py::object& stream) {
            const CallerStream ordered(stream);
            const MemoryView to = ordered.of(view_of(out, true)), from = ordered.of(maybe_view(inp, false));
            return ordered.start({to, from}, [&] { return member_of(self).iscatter(to, from, root); });
          },
          arg("out"), arg("inp") = py::none(), arg("root") = 0, arg("stream") = py::none(),
          "As scatter of equal blocks, but returns a Work at once. stream: as in iall_reduce.");
}

}  // namespace

void bind_reductions(py::class_<Member, MemberHolder>& member, py::class_<Communicator, CommunicatorHolder>& comm) {
  bind_reducing<Member>(member);
  bind_spreading<Member>(member);
  bind_rooted<Member>(member);
  bind_reducing<Communicator>(comm);
  bind_spreading<Communicator>(comm);
  bind_rooted<Communicator>(comm);
}

}  // namespace hmc::bindings
