// Communicator::init: the processes of a job meet at process 0 and tell each other who they are.
#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "base/wire.h"
#include "collective/bootstrap.h"
#include "collective/communicator_state.h"
#include "collective/entering.h"
#include "collective/interruption.h"
#include "collective/launch.h"
#include "collective/records.h"
#include "collective/rendezvous.h"

namespace hmc {
namespace {

constexpr std::uint32_t round_register = 0;  // values: Registration
constexpr std::uint32_t round_ready = 1;     // everybody knows everybody: messages may come

// What `options` ask for, plus where the others of the job must be able to come from.
Result<ContextOptions> context_options(const InitOptions& options, const LaunchInfo& launch) {
  ContextOptions context = options.context;
  if (launch.size == 1 || launch.rendezvous.starts_with("unix:")) return context;
  HMC_ASSIGN(const HostPort meeting, parse_tcp(launch.rendezvous));
  const std::string here = listen_address_for(meeting);
  const bool has_tcp =
      std::any_of(context.listen.begin(), context.listen.end(), [](const auto& address) { return address.starts_with("tcp://"); });
  if (launch.rank == 0) {
    if (std::find(context.listen.begin(), context.listen.end(), here) == context.listen.end()) context.listen.push_back(here);
  } else if (!has_tcp) {
    context.listen.push_back(listen_address_for({meeting.host, "0"}));
  }
  return context;
}

// The devices that this process brings.
Result<std::vector<Device>> own_devices(const InitOptions& options, const LaunchInfo& launch) {
  if (!options.topology) return options.devices.empty() ? std::vector<Device>{Device::cpu()} : options.devices;
  if (!options.devices.empty()) {
    return Status(Code::invalid_argument, "give devices or a topology, not both: the topology says which devices a process brings");
  }
  HMC_TRY(options.topology->check());
  if (options.topology->processes() != launch.size) {
    return Status(Code::invalid_argument, "the topology names " + std::to_string(options.topology->processes()) +
                                              " processes that bring cards, and the job has " + std::to_string(launch.size));
  }
  return options.topology->devices_of(launch.rank);
}

// Others may have been given something else.
Status check_same(const Topology& written, const std::vector<job::Registration>& table) {
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (written.devices_of(static_cast<int>(i)) == table[i].devices) continue;
    std::string brought;
    for (const auto& device : table[i].devices) brought += (brought.empty() ? "" : ", ") + device.str();
    return {Code::invalid_argument, "process " + std::to_string(i) + " (" + table[i].name + ") brings " + brought +
                                        ", which is not what this process's topology says: give every process the same one"};
  }
  return {};
}

// What a process says when it knows all others. bytes = wire{u8 maps the segment of fused calls, u64 hash of its topology}.
struct Ready {
  bool mapped = false;
  std::uint64_t topology = 0;  // of its text; 0: none was given
};

Bytes encode(const Ready& ready) {
  Bytes out;
  WireWriter(out).u8(ready.mapped ? 1 : 0).u64(ready.topology);
  return out;
}

std::optional<Ready> decode_ready(ByteSpan in) {
  WireReader reader(in);
  const Ready ready{reader.u8() == 1, reader.u64()};
  return reader.finish() ? std::optional(ready) : std::nullopt;
}

bool worth_retrying(Code code) {
  // Nobody there yet, or a socket that a dead job left: process 0 may come last.
  return code == Code::peer_lost || code == Code::transport || code == Code::timeout || code == Code::would_block ||
         code == Code::closed;
}

class Gathering {
 public:
  Gathering(Context context, const LaunchInfo& launch, const std::vector<Device>& devices, const std::optional<Topology>& written,
            Deadline deadline)
      : context_(std::move(context)),
        launch_(launch),
        deadline_(deadline),
        world_(std::make_shared<World>(*context_.state(),
                                       registration(context_, devices, launch_.rendezvous, launch_.rank == 0, deadline_), written)),
        bootstrap_(std::make_shared<Bootstrap>(*context_.state(), static_cast<std::uint32_t>(launch.rank),
                                               static_cast<std::uint32_t>(launch.size))) {}

  Result<Communicator> form() {
    world_->set_bootstrap(bootstrap_);
    World::attach(world_);
    const Bytes own = encode(world_->own());
    HMC_ASSIGN(const auto values, launch_.rank == 0 ? host(own) : visit(own));
    std::vector<job::Registration> table;
    for (std::uint32_t i = 0; i < values.size(); ++i) {
      auto registration = job::decode_registration(values[i]);
      if (!registration) return Status(Code::protocol, "rank " + std::to_string(i) + " registered with malformed data");
      table.push_back(std::move(*registration));
    }
    if (const auto& written = world_->written()) HMC_TRY(check_same(*written, table));
    const auto group = make_group(table);
    Communicator communicator = make_communicator(context_, group);
    if (const Status ready = get_ready(*group); !ready.ok()) {
      static_cast<void>(communicator.close(closing_deadline(deadline_)));
      return ready;
    }
    return communicator;
  }

 private:
  // Everybody is ready. Calls are fused where all have mapped the same memory.
  Status get_ready(Group& group) {
    auto segment = world_->offers().share(group, true, deadline_);
    const auto& written = world_->written();
    const Ready own{segment != nullptr, written ? job_hash(written->str()) : 0};
    HMC_ASSIGN(const auto said, bootstrap_->gather(round_ready, encode(own), board_, deadline_));
    bool all_mapped = true;
    for (std::size_t i = 0; i < said.size(); ++i) {
      const auto theirs = decode_ready(said[i]);
      if (!theirs) return Status(Code::protocol, "rank " + std::to_string(i) + " is ready with malformed data");
      // Collectives divide arrays by it.
      if (theirs->topology != own.topology)
        return Status(Code::invalid_argument,
                      "process " + std::to_string(i) + " was given another topology, or none: give every process the same one");
      all_mapped = all_mapped && theirs->mapped;
    }
    if (all_mapped) group.fused().use(std::move(segment));
    return {};
  }

  Result<std::vector<Bytes>> host(Bytes value) {
    MeetingLink link;  // until everybody has come
    if (launch_.size > 1 && launch_.rendezvous.starts_with("unix:")) {
      for (const auto& address : context_.addresses()) {
        if (!address.starts_with("unix:")) continue;
        HMC_ASSIGN(link, MeetingLink::publish(launch_.rendezvous.substr(5), address.substr(5)));
        break;
      }
    }
    return bootstrap_->gather(round_register, std::move(value), nullptr, deadline_);
  }

  Result<std::vector<Bytes>> visit(const Bytes& value) {
    auto pause = std::chrono::milliseconds(2);
    for (;;) {
      auto outcome = visit_once(value);
      if (outcome || !worth_retrying(outcome.status().code())) return outcome;
      // Process 0 died after it took this process in, or answered that it is over: no use in trying again.
      if (board_ && outcome.status().code() != Code::would_block && outcome.status().code() != Code::closed) return outcome;
      if (board_) Peer(std::exchange(board_, nullptr)).close();
      if (ask_interrupted()) return interrupted_status();
      const Deadline next = Deadline::after(pause);
      if (!deadline_.is_never() && next.when() >= deadline_.when()) {
        return Status(Code::timeout,
                      "rank " + std::to_string(launch_.rank) + " of " + std::to_string(launch_.size) + " did not find rank 0 at " +
                          launch_.rendezvous + " before the deadline (last attempt: " + outcome.status().str() +
                          "); is rank 0 running, with the same rendezvous? HMC_RENDEZVOUS sets that of every process");
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 3 / 2, std::chrono::milliseconds(50));
    }
  }

  Result<std::vector<Bytes>> visit_once(const Bytes& value) {
    const Deadline attempt = Deadline::after_seconds(5);
    HMC_ASSIGN(const Peer peer, context_.connect(launch_.rendezvous,
                                                 deadline_.is_never() || attempt.when() < deadline_.when() ? attempt : deadline_));
    board_ = peer.state();
    return bootstrap_->gather(round_register, value, board_, deadline_);
  }

  std::shared_ptr<Group> make_group(const std::vector<job::Registration>& table) {
    std::vector<RankInfo> ranks;
    std::vector<std::uint32_t> local;
    const auto lock = context_.state()->engine()->lock();
    for (const job::Registration& entry : table) {
      const std::uint32_t number = world_->meet(entry);
      const Process& process = world_->processes()[number];
      for (const auto& device : entry.devices) {
        const auto rank = static_cast<std::uint32_t>(ranks.size());
        if (process.peer->is_self()) local.push_back(rank);
        ranks.push_back({process.peer, number, device, rank, process.identity, static_cast<int>(number)});
      }
    }
    return std::make_shared<Group>(world_, table[0].id[0], world_scope, std::move(ranks), std::move(local), true);
  }

  Context context_;
  const LaunchInfo& launch_;
  const Deadline deadline_;
  std::shared_ptr<World> world_;
  std::shared_ptr<Bootstrap> bootstrap_;
  std::shared_ptr<PeerState> board_;
};

}  // namespace

Result<Communicator> Communicator::init(const InitOptions& options) {
  if (!(options.timeout_seconds >= 0)) return Status(Code::invalid_argument, "timeout_seconds must not be negative");
  const Deadline deadline = Deadline::after_seconds(options.timeout_seconds);
  HMC_ASSIGN(const LaunchInfo launch, resolve_launch(options));
  if (static_cast<std::uint32_t>(launch.size) > max_processes) {
    return Status(Code::invalid_argument,
                  "a job has at most " + std::to_string(max_processes) + " processes, not " + std::to_string(launch.size));
  }
  HMC_ASSIGN(const auto devices, own_devices(options, launch));
  HMC_TRY(check_devices(devices));
  HMC_ASSIGN(const ContextOptions with, context_options(options, launch));
  auto context = Context::create(with);
  if (!context) return context.status().with_context("rank " + std::to_string(launch.rank));
  auto communicator = Gathering(*context, launch, devices, options.topology, deadline).form();
  if (!communicator) static_cast<void>(context->close(closing_deadline(deadline)));
  return communicator;
}

}  // namespace hmc
