#include "collective/launch.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <utility>

#include "base/env.h"
#include "progress/listener.h"

namespace hmc {
namespace {

constexpr std::string_view how_to_meet =
    "set HMC_RENDEZVOUS=tcp://<host of rank 0>:<port> for every process (and HMC_JOB_KEY, made by `hmc keygen`), or pass "
    "rendezvous=";

struct Numbers {
  std::string_view rank, size, local_rank, local_size;  // names of variables
};

class Reader {
 public:
  Reader(const EnvReader& env, const std::function<Result<std::string>()>& sockets_in, const std::string& starter)
      : env_(env), sockets_in_(sockets_in), starter_(starter) {}

  Result<LaunchInfo> read() const {
    if (any({"HMC_RANK", "HMC_SIZE"})) return hmc_run();
    if (any({"RANK", "WORLD_SIZE"})) return torchrun();
    if (any({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"})) return openmpi();
    // Slurm's own PMI sets PMI_RANK too, but says nothing about this host.
    if (any({"PMI_RANK", "PMI_SIZE"}) && !(srun() && !env_("MPI_LOCALNRANKS"))) return mpich();
    if (srun()) return slurm();
    return LaunchInfo{"none", 0, 1, 0, 1, ""};
  }

 private:
  [[nodiscard]] bool any(std::initializer_list<std::string_view> names) const {
    for (const auto name : names) {
      if (env_(name)) return true;
    }
    return false;
  }
  // A batch script sees the numbers of its job too, but only srun starts tasks of a step.
  [[nodiscard]] bool srun() const { return env_("SLURM_PROCID") && (env_("SLURM_STEP_ID") || env_("SLURM_STEPID")); }

  [[nodiscard]] Result<int> number(std::string_view name, std::string_view beside) const {
    const auto text = env_(name);
    if (!text) {
      return Status(Code::invalid_argument,
                    std::string(beside) + " is set but " + std::string(name) +
                        " is not: the launcher's environment is incomplete; set both, or unset both, or pass rank= "
                        "and size=");
    }
    int value = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc() || end != text->data() + text->size() || value < 0) {
      return Status(Code::invalid_argument, std::string(name) + "=" + *text + " is not a number from 0 on");
    }
    return value;
  }

  // Rank and size, and the local ones where their variables are set (-1: unknown).
  [[nodiscard]] Result<LaunchInfo> numbers(std::string launcher, const Numbers& names) const {
    LaunchInfo info{std::move(launcher), 0, 0, -1, -1, ""};
    HMC_ASSIGN(info.rank, number(names.rank, names.size));
    HMC_ASSIGN(info.size, number(names.size, names.rank));
    if (info.size < 1 || info.rank >= info.size) {
      return Status(Code::invalid_argument, std::string(names.rank) + "=" + std::to_string(info.rank) + " is not a rank of " +
                                                std::string(names.size) + "=" + std::to_string(info.size));
    }
    if (!names.local_rank.empty() && !names.local_size.empty() && any({names.local_rank, names.local_size})) {
      HMC_ASSIGN(info.local_rank, number(names.local_rank, names.local_size));
      HMC_ASSIGN(info.local_size, number(names.local_size, names.local_rank));
      if (info.local_size < 1 || info.local_rank >= info.local_size || info.local_size > info.size) {
        return Status(Code::invalid_argument, std::string(names.local_rank) + "=" + std::to_string(info.local_rank) + " and " +
                                                  std::string(names.local_size) + "=" + std::to_string(info.local_size) +
                                                  " do not fit a job of " + std::to_string(info.size));
      }
    }
    return info;
  }

  // Where to meet: what HMC_RENDEZVOUS says; nothing alone; a Unix socket named after the job on one host; else `elsewhere`.
  [[nodiscard]] Result<LaunchInfo> meet(LaunchInfo info, const std::string& job, const Result<std::string>& elsewhere) const {
    if (info.local_rank >= info.size) {
      return Status(Code::invalid_argument, "the launcher's environment says local rank " + std::to_string(info.local_rank) +
                                                ", and that the job has " + std::to_string(info.size) +
                                                " processes; correct it, or pass rank= and size=");
    }
    if (const auto given = env_("HMC_RENDEZVOUS")) {
      info.rendezvous = *given;
    } else if (info.size == 1) {
      info.rendezvous.clear();
    } else if (info.local_size == info.size) {
      HMC_ASSIGN(const std::string folder, sockets_in_());
      info.rendezvous = "unix:" + folder + "/job-" + hex(job_hash(info.launcher + "\n" + job + "\n" + std::to_string(getuid())));
    } else {
      HMC_ASSIGN(info.rendezvous, elsewhere);
    }
    info.local_rank = std::max(info.local_rank, 0);
    if (info.local_size < 0) info.local_size = info.local_rank + 1;
    return info;
  }

  static std::string hex(std::uint64_t value) {
    char text[17];
    for (int i = 15; i >= 0; --i, value >>= 4) text[i] = "0123456789abcdef"[value & 15];
    return {text, 16};
  }
  [[nodiscard]] std::string text(std::string_view name) const { return env_(name).value_or(""); }

  static Status nowhere(std::string_view launcher) {
    return {Code::invalid_argument, "the job spans several hosts, and " + std::string(launcher) +
                                        " does not say where rank 0 can be met; " + std::string(how_to_meet)};
  }

  [[nodiscard]] Result<LaunchInfo> hmc_run() const {
    HMC_ASSIGN(auto info, numbers("hmc", {"HMC_RANK", "HMC_SIZE", "HMC_LOCAL_RANK", "HMC_LOCAL_SIZE"}));
    if (info.size > 1 && !env_("HMC_RENDEZVOUS")) {
      return Status(Code::invalid_argument,
                    "HMC_RANK and HMC_SIZE are set but HMC_RENDEZVOUS is not; set it to unix:/path (one host) or "
                    "tcp://host:port, where rank 0 will listen");
    }
    return meet(std::move(info), "", nowhere("hmc run"));
  }

  [[nodiscard]] Result<LaunchInfo> torchrun() const {
    // Scripts that set torch's variables themselves often leave LOCAL_WORLD_SIZE out.
    const bool local = env_("LOCAL_WORLD_SIZE").has_value();
    HMC_ASSIGN(auto info, numbers("torchrun", {"RANK", "WORLD_SIZE", local ? "LOCAL_RANK" : "", local ? "LOCAL_WORLD_SIZE" : ""}));
    if (!local && env_("LOCAL_RANK")) {
      HMC_ASSIGN(info.local_rank, number("LOCAL_RANK", "RANK"));
    }
    const auto address = env_("MASTER_ADDR");
    const std::string job = text("TORCHELASTIC_RUN_ID") + "\n" + text("MASTER_ADDR") + ":" + text("MASTER_PORT") + "\n" +
                            text("TORCHELASTIC_RESTART_COUNT");
    if (info.size == 1 || info.local_size == info.size || env_("HMC_RENDEZVOUS"))
      return meet(std::move(info), job, nowhere("torchrun"));
    if (!address) {
      return Status(Code::invalid_argument, "RANK and WORLD_SIZE are set but MASTER_ADDR is not; " + std::string(how_to_meet));
    }
    HMC_ASSIGN(const int port, number("MASTER_PORT", "MASTER_ADDR"));
    if (port < 1 || port > 65534) {
      return Status(Code::invalid_argument, "MASTER_PORT=" + std::to_string(port) + " leaves no port above it, where HMC meets; " +
                                                std::string(how_to_meet));
    }
    // torch's own store listens on MASTER_PORT.
    const std::string host = address->find(':') != std::string::npos && address->front() != '[' ? "[" + *address + "]" : *address;
    return meet(std::move(info), job, "tcp://" + host + ":" + std::to_string(port + 1));
  }

  [[nodiscard]] Result<LaunchInfo> openmpi() const {
    HMC_ASSIGN(auto info, numbers("openmpi", {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                                              "OMPI_COMM_WORLD_LOCAL_SIZE"}));
    std::string job = starter_;
    for (const auto name : {"PMIX_NAMESPACE", "OMPI_MCA_orte_ess_jobid", "OMPI_MCA_ess_base_jobid"}) {
      if (const auto id = env_(name)) {
        job = *id;
        break;
      }
    }
    return meet(std::move(info), job, nowhere("Open MPI"));
  }

  [[nodiscard]] Result<LaunchInfo> mpich() const {
    HMC_ASSIGN(auto info, numbers("mpich", {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}));
    return meet(std::move(info), env_("PMI_PORT") ? "port " + text("PMI_PORT") : starter_, nowhere("MPICH"));
  }

  [[nodiscard]] Result<LaunchInfo> slurm() const {
    const std::string_view size = env_("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
    HMC_ASSIGN(auto info, numbers("slurm", {"SLURM_PROCID", size, "", ""}));
    if (env_("SLURM_LOCALID")) {
      HMC_ASSIGN(info.local_rank, number("SLURM_LOCALID", "SLURM_PROCID"));
      const std::string nodes = env_("SLURM_STEP_NUM_NODES") ? text("SLURM_STEP_NUM_NODES") : text("SLURM_NNODES");
      const std::string tasks =
          env_("SLURM_STEP_TASKS_PER_NODE") ? text("SLURM_STEP_TASKS_PER_NODE") : text("SLURM_TASKS_PER_NODE");
      if (nodes == "1") {
        info.local_size = info.size;
      } else if (env_("SLURM_NODEID")) {
        HMC_ASSIGN(const int node, number("SLURM_NODEID", "SLURM_PROCID"));
        info.local_size = slurm_tasks_on(tasks, node).value_or(-1);
      }
    }
    const std::string job = text("SLURM_JOB_ID") + "." + (env_("SLURM_STEP_ID") ? text("SLURM_STEP_ID") : text("SLURM_STEPID"));
    std::string host = first_slurm_host(env_("SLURM_STEP_NODELIST") ? text("SLURM_STEP_NODELIST") : text("SLURM_JOB_NODELIST"));
    if (host.empty()) host = text("SLURM_LAUNCH_NODE_IPADDR");
    if (host.empty()) host = text("SLURM_SRUN_COMM_HOST");
    if (host.empty()) return meet(std::move(info), job, nowhere("Slurm"));
    // Below the range from which Linux takes ports for outgoing connections.
    const auto port = 16384 + job_hash(job) % 16384;
    return meet(std::move(info), job, "tcp://" + host + ":" + std::to_string(port));
  }

  const EnvReader& env_;
  const std::function<Result<std::string>()>& sockets_in_;
  const std::string& starter_;
};

std::optional<std::string> process_env(std::string_view name) {
  if (name.starts_with("HMC_")) return env_text(name);
  const char* text = std::getenv(std::string(name).c_str());
  return text == nullptr || *text == '\0' ? std::nullopt : std::optional<std::string>(text);
}

}  // namespace

std::uint64_t job_hash(std::string_view text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

std::string first_slurm_host(std::string_view list) {
  const std::size_t bracket = list.find_first_of("[,");
  if (bracket == std::string_view::npos || list[bracket] == ',') return std::string(list.substr(0, bracket));
  const std::string_view numbers = list.substr(bracket + 1);
  const std::string_view first = numbers.substr(0, numbers.find_first_of("-,]"));
  const std::size_t close = numbers.find(']');
  std::string_view suffix = close == std::string_view::npos ? std::string_view() : numbers.substr(close + 1);
  suffix = suffix.substr(0, suffix.find(','));
  return std::string(list.substr(0, bracket)) + std::string(first) + std::string(suffix);
}

std::optional<int> slurm_tasks_on(std::string_view tasks_per_node, int node) {
  const char* at = tasks_per_node.data();
  const char* const end = at + tasks_per_node.size();
  while (at < end) {
    int tasks = 0, times = 1;
    auto read = std::from_chars(at, end, tasks);
    if (read.ec != std::errc()) return std::nullopt;
    at = read.ptr;
    if (end - at > 2 && at[0] == '(' && at[1] == 'x') {
      read = std::from_chars(at + 2, end, times);
      if (read.ec != std::errc() || read.ptr == end || *read.ptr != ')') return std::nullopt;
      at = read.ptr + 1;
    }
    if (tasks < 1 || times < 1) return std::nullopt;
    if (node < times) return tasks;
    node -= times;
    if (at < end && *at++ != ',') return std::nullopt;
  }
  return std::nullopt;
}

Result<LaunchInfo> read_launch(const EnvReader& env, const std::function<Result<std::string>()>& sockets_in,
                               const std::string& starter) {
  return Reader(env, sockets_in, starter).read();
}

std::string starter_of_this_host() {
  pid_t pid = getppid();
  int fd = -1;
  const std::string text = process_env("PMI_FD").value_or("");
  if (std::from_chars(text.data(), text.data() + text.size(), fd).ec == std::errc()) {
    ucred made_by{};
    socklen_t size = sizeof made_by;
    // A pair of sockets has the credentials of the process that made it, whoever inherited them. The number may be another's by
    // now.
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &made_by, &size) == 0 && size == sizeof made_by && made_by.pid > 0 &&
        made_by.pid != getpid()) {
      pid = made_by.pid;
    }
  }
  std::array<char, 64> space{};  // containers that share a directory number their processes alike
  const ssize_t length = readlink("/proc/self/ns/pid", space.data(), space.size());
  return std::to_string(pid) + " " + std::string(space.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
}

Result<LaunchInfo> detect_launch() { return read_launch(process_env, private_directory, starter_of_this_host()); }

Result<LaunchInfo> resolve_launch(const InitOptions& options) {
  if ((options.rank < 0) != (options.size < 0)) {
    return Status(Code::invalid_argument, "rank and size are given together or not at all: rank=" + std::to_string(options.rank) +
                                              ", size=" + std::to_string(options.size));
  }
  if (options.rank < 0) {
    const auto env = [&](std::string_view name) {
      return name == "HMC_RENDEZVOUS" && !options.rendezvous.empty() ? std::optional(options.rendezvous) : process_env(name);
    };
    HMC_ASSIGN(auto info, read_launch(env, private_directory, starter_of_this_host()));
    if (!options.rendezvous.empty()) info.rendezvous = options.rendezvous;  // of a process that no launcher started, too
    return info;
  }
  if (options.size < 1 || options.rank >= options.size) {
    return Status(Code::invalid_argument, "rank " + std::to_string(options.rank) + " is not a rank of a job of " +
                                              std::to_string(options.size) + " processes");
  }
  LaunchInfo info{"none", options.rank, options.size, 0, 1, options.rendezvous};
  if (info.size == 1 || !info.rendezvous.empty()) return info;
  if (const auto given = env_text("HMC_RENDEZVOUS")) {
    info.rendezvous = *given;
    return info;
  }
  // From inside a launched job (mpi4py, torch.distributed) its meeting point serves, when the numbers are the same.
  const auto detected = detect_launch();
  if (detected && detected->rank == info.rank && detected->size == info.size) return *detected;
  return Status(Code::invalid_argument,
                "rank and size are given but not where to meet; pass rendezvous=\"unix:/path\" (one host) or "
                "\"tcp://host:port\", where rank 0 will listen, or set HMC_RENDEZVOUS");
}

}  // namespace hmc
