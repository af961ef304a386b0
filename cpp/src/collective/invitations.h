// Invitations: the tickets that this process has given out, one for each group, and the newcomers that have come with them. Owned
// by Growths. Engine lock held throughout.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "collective/records.h"
#include "comm/context_state.h"
#include "progress/engine.h"

namespace hmc {

struct Applicant {
  std::shared_ptr<PeerState> peer;
  job::Registration registration;
  Engine::TimerId timer = 0;  // when it gives up; cancelled with its place
};

class Invitations {
 public:
  explicit Invitations(Engine& engine) noexcept : engine_(engine) {}

  // The last one of the group has been taken.
  job::Ticket issue(std::uint64_t group_id, std::uint32_t count);
  [[nodiscard]] std::size_t open() const noexcept { return open_.size(); }
  [[nodiscard]] bool has(std::uint64_t group_id) const noexcept { return open_.contains(group_id); }
  // The group that the ticket admits to.
  [[nodiscard]] std::optional<std::uint64_t> group_of(const job::Ticket& ticket) const noexcept;
  [[nodiscard]] std::vector<std::uint64_t> groups_of(const PeerState& applicant) const;
  [[nodiscard]] std::size_t count(std::uint64_t group_id) const { return open_.at(group_id).count; }
  // In the order in which they came.
  [[nodiscard]] const std::vector<Applicant>& applicants(std::uint64_t group_id) const { return open_.at(group_id).applicants; }
  [[nodiscard]] bool full(std::uint64_t group_id) const { return applicants(group_id).size() == count(group_id); }
  void admit(std::uint64_t group_id, Applicant applicant) { open_.at(group_id).applicants.push_back(std::move(applicant)); }
  // Its place is free.
  void withdraw(std::uint64_t group_id, const PeerState& applicant);
  // Ends the invitation, if there is one: those who have come.
  std::vector<Applicant> take(std::uint64_t group_id);

 private:
  struct Open {
    job::Ticket ticket{};
    std::uint32_t count = 0;
    std::vector<Applicant> applicants;
  };

  Engine& engine_;
  std::map<std::uint64_t, Open> open_;
};

}  // namespace hmc
