#include "hmc/communicator.h"

#include "arguments.h"
#include "blocks.h"
#include "caller_stream.h"
#include "collectives.h"
#include "context_options.h"
#include "members.h"
#include "p2p.h"

namespace hmc::bindings {
namespace {

template <class T>
struct RankedCaller {
  using Self = T;
  static constexpr bool ranked = true;
  static Status send(const T& self, const MemoryView& view, int dst, std::int64_t tag, Deadline deadline) {
    return member_of(self).send(view, dst, tag, deadline);
  }
  static Result<MessageInfo> recv(const T& self, const MemoryView& view, int src, std::int64_t tag, Deadline deadline) {
    return member_of(self).recv(view, src, tag, deadline);
  }
  static Result<Work> isend(const T& self, const MemoryView& view, int dst, std::int64_t tag) {
    return member_of(self).isend(view, dst, tag);
  }
  static Result<Work> irecv(const T& self, const MemoryView& view, int src, std::int64_t tag) {
    return member_of(self).irecv(view, src, tag);
  }
  static Result<Work> put(const T& self, const ConnBuffer& s, const RemoteBuffer& t, const PutOptions& o) {
    return member_of(self).put(s, t, o);
  }
  static Result<Work> get(const T& self, const ConnBuffer& t, const RemoteBuffer& s, StreamHandle after) {
    return member_of(self).get(t, s, after);
  }
  static Status wait_notify(const T& self, int src, std::uint64_t id, std::uint64_t count, Deadline deadline) {
    return member_of(self).wait_notify(src, id, count, deadline);
  }
};

// Of a call that has another form for the Members of a Communicator.
template <class T, class Value, ArgumentName name>
using SingleForm = std::conditional_t<std::same_as<T, Member>, Argument<Value, name>, SingleArgument<Value, name>>;

template <class T, class Class>
void bind_ranked(Class& cls) {
  P2P<RankedCaller<T>>::bind(cls);
  cls.def(
         "prepare_blocks",
         [](const T& self, const Argument<py::iterable, "pairs">& pairs, const Argument<std::size_t, "block">& block) {
           const Member member = member_of(self);
           return prepare_from(pairs, block, [&](auto all, std::size_t size) { return member.prepare_blocks(all, size); });
         },
         py::arg("pairs"), py::arg("block"),
         "Checks scattered blocks of `block` bytes: pairs of (local buffer, offsets, remote buffer, offsets), offsets as integer "
         "arrays; all "
         "remote buffers of one rank.")
      .def(
          "put_blocks",
          [](const T& self, const Argument<BlockBatch, "batch">& batch, const py::object& notify, const Text<"complete">& complete,
             const py::object& stream) {
            std::string payload;
            PutOptions options = put_options(notify, complete, payload);
            options.stream = stream_of(stream);
            const ReleasedGil nogil;
            return check(member_of(self).put_blocks(batch, options));
          },
          py::arg("batch"), py::arg("notify") = py::none(), py::arg("complete") = "remote", py::arg("stream") = py::none(),
          "Puts every block; one notification covers all. stream: as in put.")
      .def(
          "get_blocks",
          [](const T& self, const Argument<BlockBatch, "batch">& batch, const py::object& stream) {
            const StreamHandle after = stream_of(stream);
            const ReleasedGil nogil;
            return check(member_of(self).get_blocks(batch, after));
          },
          py::arg("batch"), py::arg("stream") = py::none(), "Gets every block. stream: as in get.")
      .def(
          "notify",
          [](const T& self, const Int<"dst">& dst, const py::object& what, const std::optional<double>& timeout) {
            std::string payload;
            const Notify notify = notify_of(what, payload);
            const Deadline deadline = deadline_of(timeout);
            const Member member = member_of(self);
            interruptible([&] { return member.notify(dst, notify, deadline); }, Gil::until_waiting);
          },
          py::arg("dst"), py::arg("notify"), py::arg("timeout") = py::none(), notify_doc)
      .def(
          "_inotify",
          [](const T& self, const Int<"dst">& dst, const py::object& what, const std::optional<double>& timeout) {
            std::string payload;
            const Notify notify = notify_of(what, payload);
            return check(member_of(self).inotify(dst, notify, deadline_of(timeout)));
          },
          py::arg("dst"), py::arg("notify"), py::arg("timeout"))
      .def(
          "_iwait_notify",
          [](const T& self, const Int<"src">& src, const py::object& id, const py::object& count,
             const std::optional<double>& timeout) {
            const auto [number, times] = counted_of(id, count);
            return check(member_of(self).iwait_notify(src, number, times, deadline_of(timeout)));
          },
          py::arg("src"), py::arg("id"), py::arg("count"), py::arg("timeout"))
      .def(
          "_inotifications",
          [](const T& self, const std::optional<double>& timeout) {
            return check(member_of(self).inotifications(deadline_of(timeout)));
          },
          py::arg("timeout"))
      .def(
          "_ibarrier",
          [](const T& self, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            const ReleasedGil nogil;
            return check(self.ibarrier(deadline));
          },
          py::arg("timeout"))
      .def(
          "abort",
          [](const T& self, const Text<"reason">& reason) {
            const ReleasedGil nogil;
            check(self.abort(reason));
          },
          py::arg("reason") = "",
          "Ends every collective of the Communicator on every rank, those in flight and all later ones, with HmcCancelledError, "
          "which "
          "has this rank and the reason (at most 1 KiB of it on other ranks). Does not wait. Any thread, also while another one "
          "waits "
          "in a collective. Point-to-point goes on.")
      .def(
          "fence", [](const T& self, const Int<"dst">& dst) { check(member_of(self).fence(dst)); }, py::arg("dst"),
          "What is posted to dst afterwards becomes visible only after everything posted before.")
      .def(
          "notifications",
          [](const T& self, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            const Member member = member_of(self);
            return notifications_as_list(interruptible([&] { return member.notifications(deadline); }, Gil::until_waiting));
          },
          py::arg("timeout") = 0.0, "Payload notifications as (source, bytes) in arrival order; waits up to timeout for the first.")
      .def(
          "exchange",
          [](const T& self, const SingleForm<T, ConnBuffer, "buffer">& buffer, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            const Member member = member_of(self);
            return interruptible([&] { return member.exchange(buffer, deadline); });
          },
          py::arg("buffer"), py::arg("timeout") = py::none(),
          "Every rank's buffer as a list of RemoteBuffers, the own one included. Collective.")
      .def(
          "exchange_bytes",
          [](const T& self, const SingleForm<T, py::bytes, "data">& data, const std::optional<double>& timeout) {
            const std::string_view text = data;
            const Deadline deadline = deadline_of(timeout);
            const Member member = member_of(self);
            return bytes_list(
                interruptible([&] { return member.exchange_bytes(std::as_bytes(std::span(text.data(), text.size())), deadline); }));
          },
          py::arg("data"), py::arg("timeout") = py::none(), "Every rank's bytes (at most 64 KiB each) as a list. Collective.")
      .def(
          "iall_to_all",
          [](const T& self, const py::object& out, const py::object& inp, const OptionalText<"algorithm">& algorithm,
             const py::object& stream) {
            const CallerStream ordered(stream);
            const MemoryView to = ordered.of(view_of(out, true)), from = ordered.of(view_of(inp, false));
            const std::string_view name = *algorithm ? std::string_view(**algorithm) : std::string_view();
            return ordered.start({to, from}, [&] { return member_of(self).iall_to_all(to, from, name); });
          },
          py::arg("out"), py::arg("inp"), py::arg("algorithm") = py::none(), py::arg("stream") = py::none(),
          "As all_to_all of arrays, but returns a Work at once. stream: as in iall_reduce.")
      .def(
          "iall_to_all_v",
          [](const T& self, const py::object& out, const py::object& out_counts, const py::object& inp, const py::object& in_counts,
             const py::object& out_displacements, const py::object& in_displacements, const py::object& stream) {
            const CallerStream ordered(stream);
            const MemoryView to = ordered.of(view_of(out, true)), from = ordered.of(view_of(inp, false));
            const LayoutArrays out_layout(out_counts, out_displacements, item_size_of(out), "out_");
            const LayoutArrays in_layout(in_counts, in_displacements, item_size_of(inp), "in_");
            return ordered.start({to, from},
                                 [&] { return member_of(self).iall_to_all_v(to, out_layout.layout(), from, in_layout.layout()); });
          },
          py::arg("out"), py::arg("out_counts"), py::arg("inp"), py::arg("in_counts"), py::arg("out_displacements") = py::none(),
          py::arg("in_displacements") = py::none(), py::arg("stream") = py::none(),
          "As all_to_all_v, but returns a Work at once. stream: as in iall_reduce.")
      .def(
          "all_to_all_v",
          [](const T& self, const py::object& out, const py::object& out_counts, const py::object& inp, const py::object& in_counts,
             const py::object& out_displacements, const py::object& in_displacements, const std::optional<double>& timeout) {
            const MemoryView to = view_of(out, true);
            const MemoryView from = view_of(inp, false);
            const LayoutArrays out_layout(out_counts, out_displacements, item_size_of(out), "out_");
            const LayoutArrays in_layout(in_counts, in_displacements, item_size_of(inp), "in_");
            const Deadline deadline = deadline_of(timeout);
            const Member member = member_of(self);
            interruptible([&] { return member.all_to_all_v(to, out_layout.layout(), from, in_layout.layout(), deadline); });
          },
          py::arg("out"), py::arg("out_counts"), py::arg("inp"), py::arg("in_counts"), py::arg("out_displacements") = py::none(),
          py::arg("in_displacements") = py::none(), py::arg("timeout") = py::none(),
          "Uneven all-to-all: in_counts[r] elements of inp go to rank r, out_counts[r] elements of out come from it; counts and "
          "displacements in "
          "elements of each array's dtype (bytes for Memory and ConnBuffer). Displacements default to packed. InvalidArgumentError "
          "where a peer "
          "sent another amount than expected. Collective.");
}

py::dict launch_dict() {
  const LaunchInfo info = check(detect_launch());
  py::dict row;
  row["launcher"] = info.launcher;
  row["rank"] = info.rank;
  row["size"] = info.size;
  row["local_rank"] = info.local_rank;
  row["local_size"] = info.local_size;
  row["rendezvous"] = info.rendezvous;
  return row;
}

py::object init(int rank, int size, const Text<"rendezvous">& rendezvous, const py::object& devices,
                const std::optional<Topology>& topology, double timeout, const py::kwargs& settings) {
  InitOptions options;
  Callbacks callbacks;
  options.rank = rank;
  options.size = size;
  options.rendezvous = *rendezvous;
  if (!devices.is_none()) {
    for (const py::handle device : devices) options.devices.push_back(device_of(device));
  }
  options.topology = topology;
  options.timeout_seconds = timeout;
  options.context = context_options(settings, callbacks);
  py::object made = py::cast(interruptible([&] { return Communicator::init(options); }));
  show_callbacks(made, std::move(callbacks));
  return made;
}

}  // namespace

void bind_communicator(py::module_& module) {
  module.def("detect_launch", launch_dict);
  module.def("init", init, py::arg("rank") = -1, py::arg("size") = -1, py::arg("rendezvous") = "", py::arg("devices") = py::none(),
             py::arg("topology") = py::none(), py::arg("timeout") = 60.0);

  py::class_<Member, MemberHolder> member(
      module, "Member",
      "A card (or the CPU) in a Communicator: every rank-addressed call. Any thread; collectives in the same order everywhere.");
  member.def_property_readonly("rank", &Member::rank, "Rank of this Member.")
      .def_property_readonly("size", &Member::size, "Number of ranks.")
      .def_property_readonly(
          "device", [](const Member& self) { return self.device().str(); }, "Its device.")
      .def(
          "path",
          [](const Member& self, const Int<"dst">& dst, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            return interruptible([&] { return self.path(dst, deadline); });
          },
          py::arg("dst"), py::arg("timeout") = 30.0, "The Path to another rank; connects if need be.")
      .def(
          "buffer",
          [](const Member& self, ByteCount nbytes) {
            const ReleasedGil nogil;
            return check(self.buffer(nbytes.value));
          },
          py::arg("nbytes"), "Allocates and registers zero-filled memory on this Member's device.")
      .def("__eq__",
           [](const Member& a, const py::object& b) {
             return py::isinstance<Member>(b) && a.rank() == b.cast<const Member&>().rank() &&
                    a.state() == b.cast<const Member&>().state();
           })
      .def("__hash__", [](const Member& self) { return self.rank(); })
      .def("__repr__", [](const Member& self) {
        return "<hmc.Member rank " + std::to_string(self.rank()) + " of " + std::to_string(self.size()) + ">";
      });
  bind_ranked<Member>(member);
  fast_method(member, "barrier", Collectives<Member>::barrier,
              "barrier($self, timeout=None)\n--\n\nReturns when every rank has arrived. Collective.");
  fast_method(member, "all_to_all", Collectives<Member>::all_to_all,
              "all_to_all($self, out, inp, timeout=None, algorithm=None)\n--\n\nBlock r of inp goes to rank r, block r of out "
              "comes from it. "
              "algorithm: one of plan().algorithms, alike on every rank; None: HMC chooses. "
              "Collective.");

  py::class_<Communicator, CommunicatorHolder> comm(
      module, "Communicator",
      "A fixed, ranked group. Rank-addressed calls go to the only local Member; with several, call them on comm.local[i]. "
      "Use it as a context manager. Any thread; collectives in the same order on every rank.",
      collectable_callbacks());
  comm.def_property_readonly(
          "rank", [](const Communicator& self) { return member_of(self).rank(); }, "Rank of the only local Member.")
      .def_property_readonly("size", &Communicator::size, "Number of ranks.")
      .def_property_readonly(
          "local", [](const Communicator& self) { return self.local(); }, "This process's Members, by rank.")
      .def_property_readonly("context", &Communicator::context, "The Context underneath.")
      .def_property_readonly(
          "lost",
          [](const Communicator& self) {
            refuse_if_forked(self.context());
            return self.lost();
          },
          "Ranks known to be dead.")
      .def(
          "peer",
          [](const Communicator& self, const Int<"rank">& rank, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            return interruptible([&] { return self.peer(rank, deadline); });
          },
          py::arg("rank"), py::arg("timeout") = 30.0, "The Peer of a rank; connects if need be.")
      .def(
          "device",
          [](const Communicator& self, const Int<"rank">& rank) {
            if (*rank < 0 || *rank >= self.size()) refuse("rank " + std::to_string(*rank) + " is outside this Communicator");
            return self.device(*rank).str();
          },
          py::arg("rank"), "Device name of a rank.")
      .def(
          "buffer",
          [](const Communicator& self, ByteCount nbytes, const py::object& device) {
            const Device where = device_of(device);
            const ReleasedGil nogil;
            return check(self.buffer(nbytes.value, where));
          },
          py::arg("nbytes"), py::arg("device") = "cpu", "Allocates and registers zero-filled memory.")
      .def(
          "register",
          [](const Communicator& self, const py::object& array, const Text<"access">& access) {
            return py::cast(self.context()).attr("register")(array, *access);
          },
          py::arg("array"), py::arg("access") = "rw",
          "Registers an array or Memory in place; keeps it alive. A read-only array needs access=\"r\".")
      .def(
          "path",
          [](const Communicator& self, const Int<"dst">& dst, const py::object& source, const py::object& target,
             const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            if (source.is_none() && target.is_none()) {
              const Member own = member_of(self);
              return interruptible([&] { return own.path(dst, deadline); });
            }
            const Device from = device_of(source);
            const Device to = device_of(target);
            const Peer peer = interruptible([&] { return self.peer(dst, deadline); });
            return interruptible([&] { return peer.path(from, to, deadline); });
          },
          py::arg("dst"), py::arg("source") = py::none(), py::arg("target") = py::none(), py::arg("timeout") = 30.0,
          "The Path to a rank, or between two devices; connects if need be.")
      .def(
          "close",
          [](const Communicator& self, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            interruptible([&] { return self.close(deadline); });
          },
          py::arg("timeout") = 5.0,
          "Leaves the group. The Context closes with the Communicator of init() or join(), or with the last of those that shrink() "
          "and grow() made from it; HmcTimeoutError then, as of Context.close(). Idempotent.")
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](const Communicator& self, const py::args&) { interruptible([&] { return self.close(); }); })
      .def("__repr__", [](const Communicator& self) { return "<hmc.Communicator of " + std::to_string(self.size()) + " ranks>"; });
  bind_ranked<Communicator>(comm);
  bind_members(comm);
  fast_method(
      comm, "barrier", Collectives<Communicator>::barrier,
      "barrier($self, timeout=None)\n--\n\nReturns when every rank has arrived; joins with every local Member. Collective.");
  fast_method(comm, "all_to_all", Collectives<Communicator>::all_to_all,
              "all_to_all($self, out, inp=None, timeout=None, algorithm=None)\n--\n\nBlock r of inp goes to rank r, block r of out "
              "comes from it. "
              "algorithm: one of plan().algorithms, alike on every rank; None: HMC chooses. "
              "Several local Members: all_to_all({member: (out, inp), ...}). Collective.");
  bind_groups(module, comm);
  bind_reductions(member, comm);
  bind_plans(member, comm);
  bind_batch(module, member, comm);
}

}  // namespace hmc::bindings
