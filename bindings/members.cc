#include "members.h"

#include <list>
#include <string_view>

namespace hmc::bindings {
namespace {

void exchange_members(py::class_<Communicator, CommunicatorHolder>& comm) {
  comm.def(
      "exchange",
      [](const Communicator& self, const py::object& members, const std::optional<double>& timeout) {
        std::vector<MemberBuffer> given;
        for_entries<ConnBuffer>(members, "exchange takes a ConnBuffer as buffer, or {Member: ConnBuffer}",
                                [&](const Member& who, const ConnBuffer& buffer) { given.push_back({who, buffer}); });
        const Deadline deadline = deadline_of(timeout);
        return interruptible([&] { return self.exchange(given, deadline); });
      },
      py::arg("members"), py::arg("timeout") = py::none(), "As exchange of {member: buffer} for every local Member. Collective.");
  comm.def(
      "exchange_bytes",
      [](const Communicator& self, const py::object& members, const std::optional<double>& timeout) {
        std::vector<MemberBytes> given;
        std::vector<py::bytes> kept;  // another thread may change the dict
        for_entries<py::bytes>(members, "exchange_bytes takes bytes as data, or {Member: bytes}",
                               [&](const Member& who, const py::bytes& data) {
                                 const std::string_view text = kept.emplace_back(data);
                                 given.push_back({who, std::as_bytes(std::span(text.data(), text.size()))});
                               });
        const Deadline deadline = deadline_of(timeout);
        return bytes_list(interruptible([&] { return self.exchange_bytes(given, deadline); }));
      },
      py::arg("members"), py::arg("timeout") = py::none(),
      "As exchange_bytes of {member: bytes} for every local Member. Collective.");
}

// One Member's (out, out_counts, inp, in_counts[, out_displacements, in_displacements]).
struct Uneven {
  explicit Uneven(const py::tuple& entry)
      : out(entry[0], true),
        in(entry[2], false),
        out_layout(entry[1], optional(entry, 4), item_size_of(entry[0]), "out_"),
        in_layout(entry[3], optional(entry, 5), item_size_of(entry[2]), "in_") {}
  static py::object optional(const py::tuple& entry, std::size_t at) {
    return at < entry.size() ? py::object(entry[at]) : py::object(py::none());
  }
  BorrowedView out, in;
  LayoutArrays out_layout, in_layout;
};

void all_to_all_v_members(py::class_<Communicator, CommunicatorHolder>& comm) {
  comm.def(
      "all_to_all_v",
      [](const Communicator& self, const py::object& members, const std::optional<double>& timeout) {
        std::list<Uneven> entries;
        std::vector<MemberBuffersV> given;
        constexpr const char* wanted = "all_to_all_v takes out, out_counts, inp and in_counts, or {Member: tuple of them}";
        for_entries<py::tuple>(members, wanted, [&](const Member& who, const py::tuple& entry) {
          if (entry.size() != 4 && entry.size() != 6) {
            refuse("each Member needs (out, out_counts, inp, in_counts), optionally with (out_displacements, in_displacements)");
          }
          const Uneven& one = entries.emplace_back(entry);
          given.push_back({who, *one.out, one.out_layout.layout(), *one.in, one.in_layout.layout()});
        });
        const Deadline deadline = deadline_of(timeout);
        interruptible([&] { return self.all_to_all_v(given, deadline); });
      },
      py::arg("members"), py::arg("timeout") = py::none(),
      "As all_to_all_v of {member: (out, out_counts, inp, in_counts)} for every local Member. Collective.");
}

}  // namespace

void bind_members(py::class_<Communicator, CommunicatorHolder>& comm) {
  exchange_members(comm);
  all_to_all_v_members(comm);
  comm.def(
      "topology",
      [](const Communicator& self, const std::optional<double>& timeout) {
        const Deadline deadline = deadline_of(timeout);
        return interruptible([&] { return self.topology(deadline); });
      },
      py::arg("timeout") = 60.0,
      "The Members' hosts, cards and links, as every process sees its own host. Opens vendor libraries. Collective, one call per "
      "process.");
}

}  // namespace hmc::bindings
