// What init() and join() have in common: a process enters a job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collective/records.h"
#include "hmc/context.h"
#include "hmc/deadline.h"
#include "hmc/device.h"
#include "hmc/status.h"

namespace hmc {

// Errors: invalid_argument (too many), unsupported (there is no such device).
Status check_devices(const std::vector<Device>& devices);

// What the process with `context` says of itself, with the addresses at which those who met at `rendezvous` reach it.
job::Registration registration(const Context& context, std::vector<Device> devices, const std::string& rendezvous, bool process_0,
                               Deadline deadline);

// Of the close() after a job that did not form. Closing notifies the others, which a stopped one does not acknowledge: so it ends
// with the job's deadline, or shortly after.
Deadline closing_deadline(Deadline deadline);

// How long the receiver of a request may take for its answer, which arrives a little before the deadline. In ms; 0: for ever.
std::uint32_t wait_ms(Deadline deadline);

}  // namespace hmc
