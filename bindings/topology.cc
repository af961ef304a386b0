#include <algorithm>

#include "arguments.h"
#include "common.h"

namespace hmc::bindings {
namespace {

void use_host(Topology& topology, const std::string& host) {
  if (std::ranges::find(topology.hosts, host) == topology.hosts.end()) topology.hosts.push_back(host);
}

std::string add_card(Topology& self, const Text<"host">& host, const py::object& device, const OptionalInt<"process">& process,
                     const Text<"name">& name, const Text<"model">& model, const Text<"pci">& pci,
                     const OptionalInt<"numa_node">& numa_node, const Argument<std::uint64_t, "memory_bytes">& memory_bytes,
                     const Number<"host_bandwidth">& host_bandwidth, const Text<"bus">& bus) {
  Topology changed = self;
  use_host(changed, host);
  const Device which = device_of(device);
  const std::string called = name->empty() ? *host + "/" + which.str() : *name;
  changed.cards.push_back(
      {called, host, which, process->value_or(-1), model, pci, numa_node->value_or(-1), memory_bytes, host_bandwidth, "", bus});
  // Process numbers may have gaps until the last card is there.
  for (const auto& card : changed.cards) {
    if (&card != &changed.cards.back() && card.name == called)
      refuse("topology: card \"" + called + "\" is there twice; give a name");
  }
  self = std::move(changed);
  return called;
}

void bind_records(py::module_& module) {
  py::class_<TopologyCard>(module, "TopologyCard", "A card, or a host's CPU memory. Facts that are not known are empty, 0 or None.")
      .def_readonly("name", &TopologyCard::name, "Unique in its Topology.")
      .def_readonly("host", &TopologyCard::host, "Name of its host.")
      .def_property_readonly(
          "device", [](const TopologyCard& card) { return card.device.str(); }, "As the process that brings it counts: \"cuda:0\".")
      .def_property_readonly(
          "process", [](const TopologyCard& card) { return card.process < 0 ? std::nullopt : std::optional(card.process); },
          "Number of the process that brings it into a job; None: it takes no part.")
      .def_readonly("model", &TopologyCard::model, "What the vendor calls it.")
      .def_readonly("pci", &TopologyCard::pci, "PCI address.")
      .def_property_readonly(
          "numa_node", [](const TopologyCard& card) { return card.numa_node < 0 ? std::nullopt : std::optional(card.numa_node); },
          "Of its host.")
      .def_readonly("memory_bytes", &TopologyCard::memory_bytes, "Size of its memory.")
      .def_readonly("host_bandwidth", &TopologyCard::host_bandwidth, "To and from host memory, bytes per second and direction.")
      .def_readonly("provenance", &TopologyCard::provenance, "\"hardware\", \"simulated\", \"facade\"; empty: written down.")
      .def_readonly("bus", &TopologyCard::bus, "The PCI root and bridges above it.")
      .def("__repr__", [](const TopologyCard& card) { return "<hmc.TopologyCard " + card.name + ">"; });
  py::class_<TopologyNic>(module, "TopologyNic", "A network card.")
      .def_readonly("name", &TopologyNic::name, "Unique on its host.")
      .def_readonly("host", &TopologyNic::host, "Name of its host.")
      .def_readonly("kind", &TopologyNic::kind, "\"ethernet\", \"infiniband\", \"roce\".")
      .def_readonly("pci", &TopologyNic::pci, "PCI address.")
      .def_property_readonly(
          "numa_node", [](const TopologyNic& nic) { return nic.numa_node < 0 ? std::nullopt : std::optional(nic.numa_node); },
          "Of its host.")
      .def_readonly("bandwidth", &TopologyNic::bandwidth, "Bytes per second and direction; 0: not known.")
      .def_readonly("bus", &TopologyNic::bus, "The PCI root and bridges above it.")
      .def("__repr__", [](const TopologyNic& nic) { return "<hmc.TopologyNic " + nic.host + "/" + nic.name + ">"; });
  py::class_<TopologyLink>(module, "TopologyLink", "Two cards that reach each other without host memory, in both directions.")
      .def_readonly("a", &TopologyLink::a, "Name of a card.")
      .def_readonly("b", &TopologyLink::b, "Name of a card.")
      .def_readonly("kind", &TopologyLink::kind, "\"nvlink\", \"peer\", \"same card\", or the application's word.")
      .def_readonly("bandwidth", &TopologyLink::bandwidth, "Bytes per second and direction; 0: not known.")
      .def("__repr__", [](const TopologyLink& link) { return "<hmc.TopologyLink " + link.a + " - " + link.b + ">"; });
}

}  // namespace

void bind_topology(py::module_& module) {
  bind_records(module);
  py::class_<Topology>(module, "Topology",
                       "Hosts, the cards in them, what joins them, and which process of a job brings which card: discovered, or "
                       "written down. Not to be changed by two threads at once.")
      .def(py::init<>())
      .def_static(
          "discover",
          [] {
            const ReleasedGil nogil;
            return Topology::discover();
          },
          "This host, with every device and network card. Opens vendor libraries.")
      .def_static(
          "parse", [](const Text<"text">& text) { return check(Topology::parse(text)); }, py::arg("text"),
          "Reads what str() writes. InvalidArgumentError with the line.")
      .def_static(
          "load",
          [](const py::object& file) {
            const std::string path = file_of(file, "file");
            const ReleasedGil nogil;
            return check(Topology::load(path));
          },
          py::arg("file"), "Reads a file.")
      .def(
          "save",
          [](const Topology& self, const py::object& file) {
            const std::string path = file_of(file, "file");
            const Topology copy = self;  // another thread may change this one meanwhile
            const ReleasedGil nogil;
            check(copy.save(path));
          },
          py::arg("file"),
          "Writes a file that load() reads, also meanwhile: it finds all of the new file, or what was there before.")
      .def("add_card", add_card, py::arg("host"), py::arg("device"), py::arg("process") = py::none(), py::kw_only(),
           py::arg("name") = "", py::arg("model") = "", py::arg("pci") = "", py::arg("numa_node") = py::none(),
           py::arg("memory_bytes") = 0, py::arg("host_bandwidth") = 0.0, py::arg("bus") = "",
           "Adds a card, and its host where that is new. process: which process of the job brings it; ranks go by process, then in "
           "the order of adding. Returns its name, default \"host/device\".")
      .def(
          "add_nic",
          [](Topology& self, const Text<"host">& host, const Text<"name">& name, const Text<"kind">& kind,
             const Number<"bandwidth">& bandwidth, const Text<"pci">& pci, const OptionalInt<"numa_node">& numa_node,
             const Text<"bus">& bus) {
            use_host(self, host);
            self.nics.push_back({name, host, kind, pci, numa_node->value_or(-1), bandwidth, bus});
          },
          py::arg("host"), py::arg("name"), py::kw_only(), py::arg("kind") = "ethernet", py::arg("bandwidth") = 0.0,
          py::arg("pci") = "", py::arg("numa_node") = py::none(), py::arg("bus") = "",
          "Adds a network card, and its host where that is new.")
      .def(
          "add_link",
          [](Topology& self, const Text<"a">& a, const Text<"b">& b, const Text<"kind">& kind,
             const Number<"bandwidth">& bandwidth) {
            if (self.card(*a) == nullptr || self.card(*b) == nullptr) {
              refuse("topology: a link ends at \"" + (self.card(*a) == nullptr ? *a : *b) +
                     "\", which is no card; add the cards first");
            }
            self.links.push_back({a, b, kind, bandwidth});
          },
          py::arg("a"), py::arg("b"), py::kw_only(), py::arg("kind") = "peer", py::arg("bandwidth") = 0.0,
          "Says that two cards reach each other without host memory.")
      .def_property_readonly(
          "hosts", [](const Topology& self) { return self.hosts; }, "Names of the hosts.")
      .def_property_readonly(
          "cards", [](const Topology& self) { return self.cards; }, "Every card, as TopologyCards.")
      .def_property_readonly(
          "nics", [](const Topology& self) { return self.nics; }, "Every network card, as TopologyNics.")
      .def_property_readonly(
          "links", [](const Topology& self) { return self.links; }, "Every link, as TopologyLinks.")
      .def(
          "near",
          [](const Topology& self, const Argument<TopologyNic, "nic">& nic) {
            std::vector<std::string> names;
            for (const auto* card : self.near(nic)) names.push_back(card->name);
            return names;
          },
          py::arg("nic"), "Names of the cards nearest to a network card; none where nothing is known of it.")
      .def_static(
          "distance",
          [](const Argument<TopologyCard, "card">& card, const Argument<TopologyNic, "nic">& nic) {
            return std::string(Topology::distance(card, nic));
          },
          py::arg("card"), py::arg("nic"),
          "\"switch\" (a PCIe switch joins them), \"root\" (the same PCIe root), \"node\" (the same NUMA node), \"system\" "
          "(farther), "
          "or empty: not known, or not on one host.")
      .def_property_readonly("processes", &Topology::processes, "How many processes bring cards.")
      .def(
          "members",
          [](const Topology& self) {
            std::vector<TopologyCard> cards;
            for (const auto* card : self.members()) cards.push_back(*card);
            return cards;
          },
          "The cards that take part, by rank.")
      .def(
          "check", [](const Topology& self) { check(self.check()); }, "InvalidArgumentError naming what does not fit together.")
      .def("__eq__",
           [](const Topology& a, const py::object& b) { return py::isinstance<Topology>(b) && a == b.cast<const Topology&>(); })
      .def("__str__", &Topology::str)
      .def("__repr__",
           [](const Topology& self) {
             return "<hmc.Topology of " + std::to_string(self.hosts.size()) + " hosts, " + std::to_string(self.cards.size()) +
                    " cards>";
           })
      .attr("__hash__") = py::none();  // it can change
}

}  // namespace hmc::bindings
