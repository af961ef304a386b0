// Collectives that several Members of a process join in one call, and the layouts of uneven ones.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "blocks.h"

namespace hmc::bindings {

// Calls `take(Member, value)` for each entry of {member: value}.
template <class Value, class Take>
void for_entries(const py::object& members, const char* wanted, Take take) {
  if (!py::isinstance<py::dict>(members)) throw py::type_error(wanted);
  for (const auto& [who, value] : py::reinterpret_borrow<py::dict>(members)) {
    const bool is_list = std::same_as<Value, py::tuple> && py::isinstance<py::list>(value);
    if (!py::isinstance<Member>(who) || !(is_list || py::isinstance<Value>(value))) throw py::type_error(wanted);
    take(who.template cast<Member>(), value.template cast<Value>());
  }
}

// Element counts and displacements of one side of an uneven all-to-all, in bytes.
class LayoutArrays {
 public:
  // `side`: what the arguments' names begin with.
  LayoutArrays(py::handle counts, py::handle displacements, std::size_t item, const std::string& side = "")
      : counts_(bytes_of(counts, side + "counts", item)) {
    if (displacements && !displacements.is_none()) {
      displacements_ = bytes_of(displacements, side + "displacements", item);
    } else {
      std::uint64_t at = 0;
      for (const auto count : counts_) {
        displacements_.push_back(at);
        if (count > most - at) refuse(side + "counts are together more than any buffer has");
        at += count;
      }
    }
  }
  [[nodiscard]] Member::Layout layout() const { return {counts_, displacements_}; }

 private:
  static constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();  // bytes

  static std::vector<std::uint64_t> bytes_of(py::handle elements, const std::string& name, std::size_t item) {
    const Offsets given = offsets_of(elements, name.c_str());
    std::vector<std::uint64_t> bytes(given.values.begin(), given.values.end());
    for (auto& each : bytes) {
      if (item != 0 && each > most / item) refuse(name + " has " + std::to_string(each) + ", more than any buffer has");
      each *= item;
    }
    return bytes;
  }

  std::vector<std::uint64_t> counts_;
  std::vector<std::uint64_t> displacements_;
};

// {member: ...} forms of the Communicator's collectives, and topology().
// The end of either may close the Communicator.
using CommunicatorHolder = std::unique_ptr<Communicator, WithoutGil<Communicator>>;
using MemberHolder = std::unique_ptr<Member, WithoutGil<Member>>;
void bind_members(py::class_<Communicator, CommunicatorHolder>& comm);
// split(), shrink(), grow() and subgroup(), and join().
void bind_groups(py::module_& module, py::class_<Communicator, CommunicatorHolder>& comm);
// The collectives that reduce, and those with a root.
void bind_reductions(py::class_<Member, MemberHolder>& member, py::class_<Communicator, CommunicatorHolder>& comm);
// Batch, and batch().
void bind_batch(py::module_& module, py::class_<Member, MemberHolder>& member, py::class_<Communicator, CommunicatorHolder>& comm);
// plan() and islands().
void bind_plans(py::class_<Member, MemberHolder>& member, py::class_<Communicator, CommunicatorHolder>& comm);

}  // namespace hmc::bindings
