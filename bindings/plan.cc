// CollectivePlan, and the plan() and islands() of Member and Communicator.
#include <optional>
#include <string>

#include "element_type.h"
#include "hmc/plan.h"
#include "members.h"

namespace hmc::bindings {
namespace {

constexpr const char* plan_doc =
    "How a collective (\"all_reduce\", \"broadcast\", ...) on memory of the Members' devices is carried out, why, and how long it "
    "should take: a CollectivePlan. nbytes: size of the largest array of a rank. dtype: of calls that reduce; root: of calls that "
    "have one; algorithm, exact: as the call takes them. Neither collective nor blocking.";

PlanOptions plan_options(const py::object& dtype, int root, const std::optional<std::string>& algorithm, bool exact) {
  return {element_type_of(py::none(), dtype), root, algorithm.value_or(""), exact};
}

template <class T, class Class>
void bind_plan_of(Class& cls) {
  cls.def(
      "plan",
      [](const T& self, const std::string& call, ByteCount nbytes, const py::object& dtype, int root,
         const std::optional<std::string>& algorithm, bool exact) {
        const PlanOptions options = plan_options(dtype, root, algorithm, exact);
        const ReleasedGil nogil;
        return check(self.plan(call, nbytes.value, options));
      },
      py::arg("call"), py::arg("nbytes"), py::kw_only(), py::arg("dtype") = "float32", py::arg("root") = 0,
      py::arg("algorithm") = py::none(), py::arg("exact") = false, plan_doc);
}

py::tuple islands_of(const Communicator& self) {
  const auto found = check(self.islands());
  py::tuple all(found.size());
  for (std::size_t i = 0; i < found.size(); ++i) all[i] = py::tuple(py::cast(found[i]));
  return all;
}

void bind_plan_records(py::module_& module) {
  py::class_<PlannedLink>(module, "PlannedLink", "What one rank sends to another in a collective, and the figures of the link.")
      .def_readonly("source", &PlannedLink::source, "Rank.")
      .def_readonly("target", &PlannedLink::target, "Rank.")
      .def_readonly("bytes", &PlannedLink::bytes, "Bytes sent.")
      .def_readonly("latency_us", &PlannedLink::latency_us, "One-way latency of a small message, microseconds.")
      .def_readonly("bandwidth", &PlannedLink::bandwidth, "Bytes per second.")
      .def_readonly("basis", &PlannedLink::basis,
                    "What the figures rest on: \"path\" (what Path expects), \"topology\" (written down), \"alike\" (the Path of a "
                    "link like it), \"default\", \"given\".")
      .def("__repr__", [](const PlannedLink& link) {
        return "<hmc.PlannedLink " + std::to_string(link.source) + " -> " + std::to_string(link.target) + ", " +
               std::to_string(link.bytes) + " bytes>";
      });
  py::class_<CollectivePlan>(module, "CollectivePlan",
                             "How a collective is carried out, why, and how long it should take. str() is a table.")
      .def_readonly("call", &CollectivePlan::call, "Name of the collective.")
      .def_readonly("bytes", &CollectivePlan::bytes, "Size of the largest array of a rank.")
      .def_readonly("ranks", &CollectivePlan::ranks, "Number of ranks.")
      .def_readonly("algorithm", &CollectivePlan::algorithm, "Such as \"reduce-scatter + all-gather, chunks of 256 KiB\".")
      .def_readonly("reason", &CollectivePlan::reason, "Why this algorithm, in sentences.")
      .def_property_readonly(
          "algorithms", [](const CollectivePlan& plan) { return py::tuple(py::cast(plan.algorithms)); },
          "Names of all that can carry out the call, for algorithm=.")
      .def_property_readonly(
          "links", [](const CollectivePlan& plan) { return py::tuple(py::cast(plan.links)); },
          "A PlannedLink for every ordered pair of ranks with messages, by source, then target.")
      .def_readonly("seconds", &CollectivePlan::seconds, "Predicted, from the start of all ranks to the end of the last.")
      .def_readonly("lower_bound", &CollectivePlan::lower_bound, "Seconds that any algorithm takes over these links.")
      .def_property_readonly(
          "runner_up",
          [](const CollectivePlan& plan) -> std::optional<std::pair<std::string, double>> {
            if (!plan.runner_up) return std::nullopt;
            return std::pair(plan.runner_up->algorithm, plan.runner_up->seconds);
          },
          "Another algorithm, and its predicted seconds; beside one that was named, HMC's choice. None: there is no other.")
      .def_readonly("figures", &CollectivePlan::figures, "What the prediction rests on.")
      .def("__str__", &CollectivePlan::str)
      .def("__repr__", [](const CollectivePlan& plan) {
        return "<hmc.CollectivePlan " + plan.call + " of " + std::to_string(plan.bytes) + " bytes: " + plan.algorithm + ">";
      });
}

}  // namespace

void bind_plan(py::module_& module) {
  bind_plan_records(module);
  const UniformLinks usual;
  module.def(
      "plan_collective",
      [](const std::string& call, ByteCount nbytes, int ranks, double latency, double bandwidth, double injection, double reduction,
         double overhead, const py::object& dtype, int root, const std::optional<std::string>& algorithm, bool exact) {
        const PlanOptions options = plan_options(dtype, root, algorithm, exact);
        const ReleasedGil nogil;
        return check(plan_collective(call, nbytes.value, {ranks, latency, bandwidth, injection, reduction, overhead}, options));
      },
      py::arg("call"), py::arg("nbytes"), py::arg("ranks"), py::kw_only(), py::arg("latency") = usual.latency,
      py::arg("bandwidth") = usual.bandwidth, py::arg("injection") = usual.injection, py::arg("reduction") = usual.reduction,
      py::arg("overhead") = usual.overhead, py::arg("dtype") = "float32", py::arg("root") = 0, py::arg("algorithm") = py::none(),
      py::arg("exact") = false,
      "The CollectivePlan of a call among ranks that are all alike, without a job. nbytes: size of the largest array of a rank. "
      "latency: seconds, one way; bandwidth: bytes per second of a link in one direction; injection: of all links of a rank "
      "together, 0: as bandwidth; reduction: bytes of inputs per second that a rank reduces; overhead: seconds that a rank spends "
      "on each message; algorithm, exact: as the call takes them. At most 256 ranks.");
}

void bind_plans(py::class_<Member>& member, py::class_<Communicator, CommunicatorHolder>& comm) {
  bind_plan_of<Member>(member);
  bind_plan_of<Communicator>(comm);
  comm.def("islands", islands_of,
           "Tuples of ranks whose devices are of one vendor and on one host, as the topology given to init() or the hosts' kernels "
           "say. Not collective.");
}

}  // namespace hmc::bindings
