#include "collective/invitations.h"

#include <algorithm>
#include <utility>

#include "base/random.h"

namespace hmc {
namespace {

// Takes the same time wherever they differ.
bool same(const job::Ticket& a, const job::Ticket& b) {
  std::byte differences{};
  for (std::size_t i = 0; i < a.size(); ++i) differences |= a[i] ^ b[i];
  return differences == std::byte{0};
}

}  // namespace

job::Ticket Invitations::issue(std::uint64_t group_id, std::uint32_t count) {
  Open& open = open_[group_id];
  open.count = count;
  random_bytes(open.ticket);
  return open.ticket;
}

std::optional<std::uint64_t> Invitations::group_of(const job::Ticket& ticket) const noexcept {
  for (const auto& [group_id, open] : open_) {
    if (same(open.ticket, ticket)) return group_id;
  }
  return std::nullopt;
}

std::vector<std::uint64_t> Invitations::groups_of(const PeerState& applicant) const {
  std::vector<std::uint64_t> groups;
  for (const auto& [group_id, open] : open_) {
    if (std::ranges::any_of(open.applicants, [&](const Applicant& one) { return one.peer.get() == &applicant; }))
      groups.push_back(group_id);
  }
  return groups;
}

void Invitations::withdraw(std::uint64_t group_id, const PeerState& applicant) {
  const auto found = open_.find(group_id);
  if (found == open_.end()) return;
  std::erase_if(found->second.applicants, [&](const Applicant& one) {
    if (one.peer.get() != &applicant) return false;
    if (one.timer != 0) engine_.cancel_timer(one.timer);
    return true;
  });
}

std::vector<Applicant> Invitations::take(std::uint64_t group_id) {
  auto taken = open_.extract(group_id);
  if (!taken) return {};
  for (Applicant& applicant : taken.mapped().applicants) {
    if (applicant.timer != 0) engine_.cancel_timer(std::exchange(applicant.timer, 0));
  }
  return std::move(taken.mapped().applicants);
}

}  // namespace hmc
