// Communicators made from a Communicator: split(), shrink(), grow(), join() and subgroup().
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "context_options.h"
#include "members.h"

namespace hmc::bindings {
namespace {

// An int counts for all local Members, a list has one for each. None: the fallback.
std::vector<int> one_per_member(const py::object& value, const char* name, int fallback, std::size_t members) {
  if (value.is_none()) return std::vector<int>(members, fallback);
  if (!py::isinstance<py::sequence>(value)) return std::vector<int>(members, int_of<int>(value, name));
  std::vector<int> all;
  for (const py::handle one : value) all.push_back(one.is_none() ? fallback : int_of<int>(one, name));
  return all;
}

py::object join(const Text<"invitation">& invitation, const py::object& devices, double timeout, const py::kwargs& settings) {
  JoinOptions options;
  Callbacks callbacks;
  if (!devices.is_none()) {
    for (const py::handle device : devices) options.devices.push_back(device_of(device));
  }
  options.timeout_seconds = timeout;
  options.context = context_options(settings, callbacks);
  py::object made = py::cast(interruptible([&] { return Communicator::join(*invitation, options); }));
  show_callbacks(made, std::move(callbacks));
  return made;
}

}  // namespace

void bind_groups(py::module_& module, py::class_<Communicator, CommunicatorHolder>& comm) {
  module.def("join", join, py::arg("invitation"), py::arg("devices") = py::none(), py::arg("timeout") = 60.0);
  comm.def(
          "split",
          [](const Communicator& self, const py::object& color, const py::object& key,
             const std::optional<double>& timeout) -> py::object {
            const std::vector<int> colors = one_per_member(color, "color", -1, self.local().size());
            const std::vector<int> keys = one_per_member(key, "key", 0, self.local().size());
            const Deadline deadline = deadline_of(timeout);
            const Communicator result = interruptible([&] { return self.split(colors, keys, deadline); });
            return result.valid() ? py::cast(result) : py::object(py::none());
          },
          py::arg("color"), py::arg("key") = py::none(), py::arg("timeout") = py::none(),
          "Members of equal color form a new Communicator, ranked by (key, old rank); a negative color or None joins none and "
          "returns None. Lists "
          "give one entry per local Member. Collective.")
      .def(
          "shrink",
          [](const Communicator& self, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            return interruptible([&] { return self.shrink(deadline); });
          },
          py::arg("timeout") = py::none(),
          "After a loss or an abort: the ranks that are left form a new Communicator, ranked as before. Each of them calls it, "
          "once "
          "per process, and gets the same ranks or an error. HmcTimeoutError names a rank that did not come.")
      .def_property_readonly("old_ranks", &Communicator::old_ranks,
                             "By rank: the rank in the Communicator that this one was made from by shrink(), split(), "
                             "subgroup() or grow(), -1 for newcomers.")
      .def(
          "invite",
          [](const Communicator& self, const py::object& processes) {
            const int count = int_of<int>(processes, "processes");
            const ReleasedGil nogil;
            return check(self.invite(count));
          },
          py::arg("processes") = 1,
          "The text that this many processes pass to hmc.join(), for the next grow(). A secret; the job key is not in it. It ends "
          "with grow(), or with another invite(). Rank 0 only.")
      .def(
          "grow",
          [](const Communicator& self, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            return interruptible([&] { return self.grow(deadline); });
          },
          py::arg("timeout") = py::none(),
          "Newcomers join: rank 0 has called invite(), every rank calls grow(), once per process, and each invited process calls "
          "hmc.join(). All get the same new Communicator, or an error: the ranks of this one as before, then the newcomers, in the "
          "order in which they came. HmcTimeoutError names what is missing; PeerLostError: a rank or a newcomer died.")
      .def(
          "subgroup",
          [](const Communicator& self, const Argument<std::vector<int>, "ranks">& ranks,
             const Argument<std::uint32_t, "number">& number) {
            const ReleasedGil nogil;
            return check(self.subgroup(ranks, number));
          },
          py::arg("ranks"), py::arg("number"),
          "The Communicator of these ranks of this one, in this order, made by its members alone, each with the same ranks and the "
          "same number (2 to 2147483647), which no other group of theirs has or had. Sends nothing and waits for nobody: use it "
          "once "
          "all members have made it, and call share_memory() first. InvalidArgumentError: ranks, or a number that is taken here.")
      .def(
          "share_memory",
          [](const Communicator& self, const std::optional<double>& timeout) {
            const Deadline deadline = deadline_of(timeout);
            interruptible([&] { return self.share_memory(deadline); });
          },
          py::arg("timeout") = py::none(),
          "Where all ranks are on one host (2 to 32), they map the same memory, through which collectives then go, and which "
          "kernels of devices require. Only a Communicator of subgroup() needs it: without, it uses messages. "
          "Collective, one call per process, before any other collective (InvalidArgumentError). Does nothing where the ranks "
          "cannot share memory.");
}

}  // namespace hmc::bindings
