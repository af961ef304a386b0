// Invitation: what a newcomer is given to join a group, as text. It says where to come and has the ticket; the job key it has not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "collective/records.h"
#include "hmc/status.h"

namespace hmc {

struct Invitation {
  job::Ticket ticket{};
  std::string name;                    // of the process that invites
  std::string kernel;                  // of its host
  std::vector<std::string> addresses;  // where it listens

  [[nodiscard]] std::string str() const;
  // Errors: invalid_argument.
  static Result<Invitation> parse(std::string_view text);
};

}  // namespace hmc
