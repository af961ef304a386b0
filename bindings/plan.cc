// CollectivePlan and Measurement, and the plan(), islands() and measure() of Member and Communicator.
#include <optional>
#include <string>

#include "arguments.h"
#include "element_type.h"
#include "hmc/measurement.h"
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
      [](const T& self, const Text<"call">& call, ByteCount nbytes, const py::object& dtype, const Int<"root">& root,
         const OptionalText<"algorithm">& algorithm, const Flag<"exact">& exact) {
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

// ("in", 0)
py::tuple slice_of(const PlannedSlice& slice) { return py::make_tuple(slice.buffer, slice.offset); }

template <class Slices>
py::tuple slices_of(const Slices& slices) {
  py::tuple all(slices.size());
  for (std::size_t i = 0; i < slices.size(); ++i) all[i] = slice_of(slices[i]);
  return all;
}

py::tuple schedule_of(const CollectivePlan& plan) {
  const auto schedule = check(plan.schedule());
  py::tuple all(schedule.size());
  for (std::size_t r = 0; r < schedule.size(); ++r) all[r] = py::tuple(py::cast(schedule[r]));
  return all;
}

void bind_planned_step(py::module_& module) {
  py::class_<PlannedStep>(module, "PlannedStep", "One of the steps by which a rank carries out its part of a collective.")
      .def_readonly("kind", &PlannedStep::kind, "\"send\", \"receive\", \"copy\" or \"reduce\".")
      .def_readonly("peer", &PlannedStep::peer, "The other rank; own for copies, reductions and messages to itself.")
      .def_readonly("tag", &PlannedStep::tag,
                    "Of messages: alike for a send and its receive, distinct between one pair of ranks in one direction.")
      .def_readonly("bytes", &PlannedStep::bytes, "Of each source, and of the target.")
      .def_property_readonly(
          "sources", [](const PlannedStep& step) { return slices_of(step.sources); },
          "What is read: a (buffer, offset in bytes) for each source, in the order in which they are reduced; buffer is \"in\", "
          "\"out\" or \"scratch\". A receive has none.")
      .def_property_readonly(
          "target",
          [](const PlannedStep& step) -> std::optional<py::tuple> {
            if (!step.target) return std::nullopt;
            return slice_of(*step.target);
          },
          "What is written: a (buffer, offset in bytes); a reduction's may be one of its sources. None: a send.")
      .def_property_readonly(
          "after", [](const PlannedStep& step) { return py::tuple(py::cast(step.after)); },
          "Indices of the steps of this rank that must be complete before.")
      .def("__repr__", [](const PlannedStep& step) {
        return "<hmc.PlannedStep " + step.kind + " of " + std::to_string(step.bytes) + " bytes, peer " + std::to_string(step.peer) +
               ">";
      });
}

void bind_plan_records(py::module_& module) {
  py::class_<PlannedLink>(module, "PlannedLink", "What one rank sends to another in a collective, and the figures of the link.")
      .def_readonly("source", &PlannedLink::source, "Rank.")
      .def_readonly("target", &PlannedLink::target, "Rank.")
      .def_readonly("bytes", &PlannedLink::bytes, "Bytes sent.")
      .def_readonly("latency_us", &PlannedLink::latency_us, "One-way latency of a small message, microseconds.")
      .def_readonly("bandwidth", &PlannedLink::bandwidth, "Bytes per second.")
      .def_readonly(
          "basis", &PlannedLink::basis,
          "What the figures rest on: \"measured\" (by measure()), \"path\" (what Path expects), \"topology\" (written down), "
          "\"alike\" (the measurement or Path of a link like it), \"default\", \"given\".")
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
      .def_readonly(
          "figures", &CollectivePlan::figures,
          "What the prediction rests on: \"measured\" and when, \", from the cache\" if so; \"estimated\" or \"assumed\".")
      .def_readonly("element", &CollectivePlan::element, "Bytes of an element, of calls that reduce; else 0.")
      .def("schedule", schedule_of,
           "The PlannedSteps of every rank: a tuple of tuples, by rank. Steps without `after` are posted in this order. "
           "UnsupportedError: the call goes through shared or mapped memory, not by messages; more than 2^18 steps.")
      .def(
          "export",
          [](const CollectivePlan& plan, const Text<"format">& format, const py::object& path) -> py::tuple {
            return py::module_::import("hmc._exports").attr("export_plan")(plan, *format, path);
          },
          py::arg("format"), py::arg("path"),
          "Writes the schedule for another program, and returns the paths of the files. format \"chakra\": an MLCommons Chakra "
          "execution trace for each rank, path.0.et, path.1.et, ...; requires protobuf (the extra chakra). \"msccl\": "
          "one algorithm in MSCCL's XML, of all_reduce, reduce_scatter, all_gather or all_to_all in equal chunks. path: str or "
          "os.PathLike; files there are replaced. UnsupportedError: what schedule() raises; a plan that the format cannot hold, "
          "and why. OSError; ImportError: protobuf is not installed.")
      .def("__str__", &CollectivePlan::str)
      .def("__repr__", [](const CollectivePlan& plan) {
        return "<hmc.CollectivePlan " + plan.call + " of " + std::to_string(plan.bytes) + " bytes: " + plan.algorithm + ">";
      });
}

void bind_measurement(py::module_& module) {
  py::class_<MeasuredLink>(module, "MeasuredLink", "The figures of a link between two ranks, in one direction.")
      .def_readonly("source", &MeasuredLink::source, "Rank.")
      .def_readonly("target", &MeasuredLink::target, "Rank.")
      .def_readonly("latency_us", &MeasuredLink::latency_us, "One-way latency of a small message, microseconds.")
      .def_readonly("bandwidth", &MeasuredLink::bandwidth,
                    "Bytes per second from source to target, with nothing else on the links.")
      .def("__repr__", [](const MeasuredLink& link) {
        return "<hmc.MeasuredLink " + std::to_string(link.source) + " -> " + std::to_string(link.target) + ">";
      });
  py::class_<Measurement>(module, "Measurement", "Latency and bandwidth of links, as measure() found them. str() is a table.")
      .def_readonly("time", &Measurement::time, "When they were measured, in seconds since 1970 UTC, by rank 0's clock.")
      .def_readonly("cached", &Measurement::cached, "Whether they were read from rank 0's cache file, not measured by this call.")
      .def_property_readonly(
          "links", [](const Measurement& measurement) { return py::tuple(py::cast(measurement.links)); },
          "A MeasuredLink for both directions of every measured pair of ranks.")
      .def("__str__", &Measurement::str)
      .def("__repr__", [](const Measurement& measurement) {
        return "<hmc.Measurement of " + std::to_string(measurement.links.size()) + " links, " + measurement.origin() + ">";
      });
}

}  // namespace

void bind_plan(py::module_& module) {
  bind_planned_step(module);
  bind_measurement(module);
  bind_plan_records(module);
  const UniformLinks usual;
  module.def(
      "plan_collective",
      [](const Text<"call">& call, ByteCount nbytes, const Int<"ranks">& ranks, const Number<"latency">& latency,
         const Number<"bandwidth">& bandwidth, const Number<"injection">& injection, const Number<"reduction">& reduction,
         const Number<"overhead">& overhead, const py::object& dtype, const Int<"root">& root,
         const OptionalText<"algorithm">& algorithm, const Flag<"exact">& exact) {
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

void bind_plans(py::class_<Member, MemberHolder>& member, py::class_<Communicator, CommunicatorHolder>& comm) {
  bind_plan_of<Member>(member);
  bind_plan_of<Communicator>(comm);
  comm.def("islands", islands_of,
           "Tuples of ranks whose devices are of one vendor and on one host, as the topology given to init() or the hosts' kernels "
           "say. Not collective.");
  comm.def(
      "measure",
      [](const Communicator& self, const Flag<"refresh">& refresh, const std::optional<double>& timeout) {
        const Deadline deadline = deadline_of(timeout);
        return interruptible([&] { return self.measure({refresh}, deadline); });
      },
      py::kw_only(), py::arg("refresh") = false, py::arg("timeout") = 60.0,
      "Measures latency and bandwidth of links with messages between the Members' devices, and plans with them from then on; "
      "returns "
      "a Measurement, the same on every rank. Hierarchical calls divide their work in proportion to measured bandwidth. refresh: "
      "measure even if rank 0 has figures in its cache file. Measured are every pair of ranks of two islands (of more than 64, "
      "fewer) and three pairs of each island, 40 ms and at most 170 MB each, one after the other. Collective, one call per "
      "process; "
      "not within a batch. OutOfMemoryError: a rank has no 8 MiB on its device; UnsupportedError: more than 256 ranks.");
}

}  // namespace hmc::bindings
