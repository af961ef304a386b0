#include "hmc/islands.h"

#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "common.h"

namespace hmc::bindings {

void bind_islands(py::module_& module) {
  const IslandCards usual;
  const IslandOptions options;
  py::class_<IslandCards>(module, "IslandCards", "Equal cards of one vendor, for plan_islands.")
      .def(py::init([](const Text<"name">& name, const Int<"cards">& cards, const Number<"inside">& inside,
                       const Number<"nic">& nic, const Number<"memory">& memory,
                       const Int<"per_host">& per_host) { return IslandCards{name, cards, per_host, inside, nic, memory}; }),
           py::arg("name"), py::arg("cards"), py::kw_only(), py::arg("inside"), py::arg("nic"), py::arg("memory"),
           py::arg("per_host") = usual.per_host,
           "cards: of all hosts together, per_host of them on each. Bytes per second of one card: inside: in one direction to the "
           "other cards of its host together; nic: in one direction to cards of other hosts; memory: reads and writes.")
      .def_readonly("name", &IslandCards::name, "For reports.")
      .def_readonly("cards", &IslandCards::cards, "Cards of all hosts together.")
      .def_readonly("per_host", &IslandCards::per_host, "Cards of a host.")
      .def_readonly("inside", &IslandCards::inside, "Bytes per second and direction to the other cards of its host together.")
      .def_readonly("nic", &IslandCards::nic, "Bytes per second and direction to cards of other hosts.")
      .def_readonly("memory", &IslandCards::memory, "Bytes per second read and written.")
      .def("__repr__", [](const IslandCards& cards) { return "<hmc.IslandCards " + cards.name + ">"; });
  py::class_<IslandLoad>(module, "IslandLoad", "What the hierarchical algorithm takes of an island's busiest card.")
      .def_readonly("name", &IslandLoad::name, "Of the island.")
      .def_readonly("cards", &IslandLoad::cards, "Of the island.")
      .def_readonly("share", &IslandLoad::share,
                    "Part of the array that the island reduces for all, or passes on; of calls with blocks, its own blocks.")
      .def_readonly("inside_seconds", &IslandLoad::inside_seconds, "Time of its links within a host.")
      .def_readonly("between_seconds", &IslandLoad::between_seconds, "Time of its NIC or border link.")
      .def_readonly("memory_seconds", &IslandLoad::memory_seconds, "Time of its memory.")
      .def("__repr__", [](const IslandLoad& load) { return "<hmc.IslandLoad " + load.name + ">"; });
  py::class_<IslandPlan>(module, "IslandPlan", "What a collective over islands of unequal cards takes. str() is a table.")
      .def_readonly("call", &IslandPlan::call, "Name of the collective.")
      .def_readonly("bytes", &IslandPlan::bytes, "Size of each card's array.")
      .def_readonly("cards", &IslandPlan::cards, "Cards of all islands.")
      .def_readonly("algorithm", &IslandPlan::algorithm, "The faster one, \"hierarchical\" or \"flat\".")
      .def_readonly("seconds", &IslandPlan::seconds, "Predicted.")
      .def_readonly("lower_bound", &IslandPlan::lower_bound, "Seconds that any algorithm takes.")
      .def_readonly("busiest", &IslandPlan::busiest, "The resource that takes longest, such as \"NICs of 8xH200\".")
      .def_property_readonly(
          "runner_up", [](const IslandPlan& plan) { return std::pair(plan.runner_up.algorithm, plan.runner_up.seconds); },
          "The other algorithm, and its predicted seconds.")
      .def_readonly("even_seconds", &IslandPlan::even_seconds,
                    "Predicted for the hierarchical algorithm with equal shares of all islands and border links.")
      .def_property_readonly(
          "islands", [](const IslandPlan& plan) { return py::tuple(py::cast(plan.islands)); }, "An IslandLoad for each island.")
      .def("__str__", &IslandPlan::str)
      .def("__repr__", [](const IslandPlan& plan) {
        return "<hmc.IslandPlan of " + std::to_string(plan.cards) + " cards: " + plan.algorithm + ">";
      });
  module.def(
      "plan_islands",
      [](ByteCount nbytes, const Argument<std::vector<IslandCards>, "islands">& islands, const Text<"call">& call,
         const Argument<std::vector<double>, "border">& border, const Number<"inside_latency">& inside_latency,
         const Number<"nic_latency">& nic_latency) {
        IslandOptions given;
        given.call = call;
        given.border = border;
        given.inside_latency = inside_latency;
        given.nic_latency = nic_latency;
        return check(plan_islands(nbytes.value, islands, given));
      },
      py::arg("nbytes"), py::arg("islands"), py::kw_only(), py::arg("call") = options.call,
      py::arg("border") = std::vector<double>(), py::arg("inside_latency") = options.inside_latency,
      py::arg("nic_latency") = options.nic_latency,
      "Estimates a collective over islands (IslandCards): hierarchical, with shares in proportion to bandwidth, and flat. "
      "nbytes: size of the largest array of a card. call: \"all_reduce\", \"reduce_scatter\", \"reduce\", \"all_gather\" or "
      "\"broadcast\"; a root is in the first island. border: bandwidths of the links that each island, of one host, has to the "
      "others; default: the cards' NICs. Latencies in seconds. UnsupportedError: the call has no hierarchical plan.");
}

}  // namespace hmc::bindings
