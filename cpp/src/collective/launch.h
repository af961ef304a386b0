// Who this process is in its job: from explicit options, else from the launcher's environment.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "hmc/communicator.h"

namespace hmc {

// Reads a variable; nullopt when unset or empty.
using EnvReader = std::function<std::optional<std::string>(std::string_view name)>;

// Precedence: hmc run, torchrun, Open MPI, MPICH, Slurm, none. `sockets_in`: directory for rendezvous of processes of one host.
// `starter`: as starter_of_this_host().
// Errors: invalid_argument for a half-set environment, and where processes of several hosts have no address to meet at.
Result<LaunchInfo> read_launch(const EnvReader& env, const std::function<Result<std::string>()>& sockets_in,
                               const std::string& starter);
// What stands for the job among the jobs of this host where its launcher gives it no name: the process that started those of this
// host. That is the parent, or MPICH's proxy also behind a shell, where the parents of the ranks differ.
std::string starter_of_this_host();

// The launch that `options` ask for, with what they leave open taken from the environment.
Result<LaunchInfo> resolve_launch(const InitOptions& options);

// ---- pieces of read_launch, one per concept ----
// The first host of a Slurm node list ("gpu[07-09,12],x" -> "gpu07").
std::string first_slurm_host(std::string_view list);
// Tasks on node `node` of "4(x2),3"; nullopt when malformed or out of range.
std::optional<int> slurm_tasks_on(std::string_view tasks_per_node, int node);
// A number that every process of a job computes alike (FNV-1a).
std::uint64_t job_hash(std::string_view text) noexcept;

}  // namespace hmc
