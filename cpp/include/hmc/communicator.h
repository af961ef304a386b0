// Communicator: a fixed, ranked group of Members.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hmc/batch.h"
#include "hmc/buffer.h"
#include "hmc/context.h"
#include "hmc/deadline.h"
#include "hmc/export.h"
#include "hmc/measurement.h"
#include "hmc/peer.h"
#include "hmc/plan.h"
#include "hmc/reduce.h"
#include "hmc/status.h"
#include "hmc/topology.h"
#include "hmc/work.h"

namespace hmc {

class CommunicatorState;  // collective layer

// How processes of one job find each other. Fields left at their defaults come from the launcher's environment
// (hmc run, torchrun, Open MPI, MPICH, Slurm), and failing that mean a job of one process.
struct InitOptions {
  int rank = -1;                // of this process
  int size = -1;                // number of processes
  std::string rendezvous;       // "unix:/path" or "tcp://host:port" where process 0 listens; default from the launcher
  std::vector<Device> devices;  // the Members this process brings, in rank order; default: one CPU Member
  // Who brings what, written down: then `devices` stays empty, every process is given the same Topology, and there are as many
  // processes as it names.
  std::optional<Topology> topology;
  ContextOptions context;
  double timeout_seconds = 60;  // for everybody to arrive
};

// How a process joins a Communicator that grows.
struct JoinOptions {
  std::vector<Device> devices;  // the Members that this process brings; default: one CPU Member
  ContextOptions context;       // the job key, if the job has one, is not in the invitation
  double timeout_seconds = 60;  // for the others to arrive
};

// One card (or the CPU) in a Communicator: every rank-addressed call. Buffer sizes are in bytes.
// Blocking calls take a deadline; after a timeout of a collective the Communicator is unusable on this rank (error: closed).
// Errors besides those named: invalid_argument (a rank, tag, size or buffer that does not fit, an empty handle), peer_lost (a rank
// that the call needs is dead), closed. Collectives also: the error of a rank that failed in the same call, with its number.
// `algorithm` of a collective: one of CollectivePlan::algorithms, or any name that a plan prints; empty: HMC chooses. Alike on
// every rank, else invalid_argument that names both. Errors: invalid_argument, of one that cannot carry out the call, with those
// that can; unsupported, on every rank, of one over shared memory where a rank passed device memory or has no pages left. Thread
// rules: any thread; collectives of one Communicator must be called in the same order by every Member.
class HMC_API Member {
 public:
  Member() noexcept = default;
  Member(std::shared_ptr<CommunicatorState> state, int rank) noexcept;
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept;
  [[nodiscard]] Device device() const;
  // Zero-filled memory on this Member's device, registered. Errors: as Context::buffer.
  [[nodiscard]] Result<ConnBuffer> buffer(std::size_t bytes) const;

  [[nodiscard]] Status send(const MemoryView& view, int dst, std::int64_t tag = 0, Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Result<MessageInfo> recv(const MemoryView& view, int src, std::int64_t tag = 0,
                                         Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Result<Work> isend(const MemoryView& view, int dst, std::int64_t tag = 0) const;
  [[nodiscard]] Result<Work> irecv(const MemoryView& view, int src, std::int64_t tag = 0) const;  // src: rank or any_source

  // The RemoteBuffer says whose it is, so one-sided calls name no rank.
  [[nodiscard]] Result<Work> put(const ConnBuffer& source, const RemoteBuffer& target, const PutOptions& options = {}) const;
  [[nodiscard]] Result<Work> get(const ConnBuffer& target, const RemoteBuffer& source, StreamHandle stream = no_stream) const;
  [[nodiscard]] Result<BlockBatch> prepare_blocks(std::span<const BlockPair> pairs, std::size_t block) const;  // one target rank
  [[nodiscard]] Result<Work> put_blocks(const BlockBatch& batch, const PutOptions& options = {}) const;
  [[nodiscard]] Result<Work> get_blocks(const BlockBatch& batch, StreamHandle stream = no_stream) const;
  [[nodiscard]] Status notify(int dst, const Notify& notify, Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Result<Work> inotify(int dst, const Notify& notify, Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Status fence(int dst) const;
  [[nodiscard]] Status wait_notify(int src, std::uint64_t id, std::uint64_t count = 1, Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Result<Work> iwait_notify(int src, std::uint64_t id, std::uint64_t count = 1,
                                          Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Result<std::vector<Notification>> notifications(Deadline deadline = Deadline::after_seconds(0)) const;
  [[nodiscard]] Result<WorkOf<std::vector<Notification>>> inotifications(Deadline deadline = Deadline::never()) const;

  // One RemoteBuffer per rank (own rank included). Collective.
  [[nodiscard]] Result<std::vector<RemoteBuffer>> exchange(const ConnBuffer& buffer, Deadline deadline = Deadline::never()) const;
  // One byte string per rank; at most 64 KiB each. Collective.
  [[nodiscard]] Result<std::vector<std::vector<std::byte>>> exchange_bytes(std::span<const std::byte> bytes,
                                                                           Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Status barrier(Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Result<Work> ibarrier(Deadline deadline = Deadline::never()) const;
  // `in` and `out` are size() equal blocks each; block r of `in` goes to rank r, block r of `out` comes from rank r.
  [[nodiscard]] Status all_to_all(const MemoryView& out, const MemoryView& in, Deadline deadline = Deadline::never(),
                                  std::string_view algorithm = {}) const;
  [[nodiscard]] Result<Work> iall_to_all(const MemoryView& out, const MemoryView& in, std::string_view algorithm = {}) const;
  // Uneven: counts and displacements in bytes, one per rank; what r sends here must equal what this rank expects from r
  // (else invalid_argument on the rank that sees it).
  struct Layout {
    std::span<const std::uint64_t> counts;
    std::span<const std::uint64_t> displacements;
  };
  [[nodiscard]] Status all_to_all_v(const MemoryView& out, const Layout& out_layout, const MemoryView& in, const Layout& in_layout,
                                    Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Result<Work> iall_to_all_v(const MemoryView& out, const Layout& out_layout, const MemoryView& in,
                                           const Layout& in_layout) const;

  // Reductions. The result has the same bits on every rank and in every run (hmc/reduce.h has the arithmetic). `out` may be `in`.
  // Memory of devices that cannot reduce is reduced by the CPU, in host memory.
  // Errors besides those above: invalid_argument (sizes, also no whole number of elements; an operation that the type does not
  // have; on every rank: another type, operation, size or root than another rank's, in all but 1 of 256 cases of sizes and roots).
  // `in` of every rank to `out` of every rank; both have the same size.
  [[nodiscard]] Status all_reduce(const MemoryView& out, const MemoryView& in, const Reduction& reduction,
                                  Deadline deadline = Deadline::never(), std::string_view algorithm = {}) const;
  [[nodiscard]] Result<Work> iall_reduce(const MemoryView& out, const MemoryView& in, const Reduction& reduction,
                                         std::string_view algorithm = {}) const;
  // `in` is size() equal blocks; block r of every rank goes to `out` of rank r, which may be its block of `in`.
  [[nodiscard]] Status reduce_scatter(const MemoryView& out, const MemoryView& in, const Reduction& reduction,
                                      Deadline deadline = Deadline::never(), std::string_view algorithm = {}) const;
  [[nodiscard]] Result<Work> ireduce_scatter(const MemoryView& out, const MemoryView& in, const Reduction& reduction,
                                             std::string_view algorithm = {}) const;
  // Uneven: the blocks of `in` in bytes, alike on every rank.
  [[nodiscard]] Status reduce_scatter_v(const MemoryView& out, const MemoryView& in, const Layout& in_layout,
                                        const Reduction& reduction, Deadline deadline = Deadline::never(),
                                        std::string_view algorithm = {}) const;
  [[nodiscard]] Result<Work> ireduce_scatter_v(const MemoryView& out, const MemoryView& in, const Layout& in_layout,
                                               const Reduction& reduction, std::string_view algorithm = {}) const;
  // `in` of every rank to `out` of `root`; other ranks' `out` is not looked at.
  [[nodiscard]] Status reduce(const MemoryView& out, const MemoryView& in, int root, const Reduction& reduction,
                              Deadline deadline = Deadline::never(), std::string_view algorithm = {}) const;
  [[nodiscard]] Result<Work> ireduce(const MemoryView& out, const MemoryView& in, int root, const Reduction& reduction,
                                     std::string_view algorithm = {}) const;

  // `in` of rank r to block r of `out` of every rank; `in` may be that block.
  [[nodiscard]] Status all_gather(const MemoryView& out, const MemoryView& in, Deadline deadline = Deadline::never(),
                                  std::string_view algorithm = {}) const;
  [[nodiscard]] Result<Work> iall_gather(const MemoryView& out, const MemoryView& in, std::string_view algorithm = {}) const;
  // Uneven: the blocks of `out` in bytes, the counts alike on every rank.
  [[nodiscard]] Status all_gather_v(const MemoryView& out, const Layout& out_layout, const MemoryView& in,
                                    Deadline deadline = Deadline::never(), std::string_view algorithm = {}) const;
  [[nodiscard]] Result<Work> iall_gather_v(const MemoryView& out, const Layout& out_layout, const MemoryView& in,
                                           std::string_view algorithm = {}) const;
  // `view` of `root` to `view` of every rank.
  [[nodiscard]] Status broadcast(const MemoryView& view, int root, Deadline deadline = Deadline::never(),
                                 std::string_view algorithm = {}) const;
  [[nodiscard]] Result<Work> ibroadcast(const MemoryView& view, int root, std::string_view algorithm = {}) const;
  // `in` of rank r to block r of `out` of `root`; other ranks' `out` and layout are not looked at.
  [[nodiscard]] Status gather(const MemoryView& out, const MemoryView& in, int root, Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Result<Work> igather(const MemoryView& out, const MemoryView& in, int root) const;
  [[nodiscard]] Status gather_v(const MemoryView& out, const Layout& out_layout, const MemoryView& in, int root,
                                Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Result<Work> igather_v(const MemoryView& out, const Layout& out_layout, const MemoryView& in, int root) const;
  // Block r of `in` of `root` to `out` of rank r; other ranks' `in` and layout are not looked at.
  [[nodiscard]] Status scatter(const MemoryView& out, const MemoryView& in, int root, Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Result<Work> iscatter(const MemoryView& out, const MemoryView& in, int root) const;
  [[nodiscard]] Status scatter_v(const MemoryView& out, const MemoryView& in, const Layout& in_layout, int root,
                                 Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Result<Work> iscatter_v(const MemoryView& out, const MemoryView& in, const Layout& in_layout, int root) const;

  // As Communicator::batch.
  [[nodiscard]] Result<Batch> batch() const;

  // As Communicator::abort, in the name of this rank.
  [[nodiscard]] Status abort(std::string_view reason = {}) const;

  // From this Member's device to that one's; connects if need be. Errors: as Peer::path.
  [[nodiscard]] Result<Path> path(int dst, Deadline deadline = Deadline::after_seconds(30)) const;
  // As Communicator::plan.
  [[nodiscard]] Result<CollectivePlan> plan(std::string_view call, std::uint64_t bytes, const PlanOptions& options = {}) const;
  [[nodiscard]] const std::shared_ptr<CommunicatorState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<CommunicatorState> state_;
  int rank_ = -1;
};

// One local Member's share of a collective in which several join by one call.
struct MemberBuffers {
  Member member;
  MemoryView out;
  MemoryView in;
};
struct MemberBuffersV {
  Member member;
  MemoryView out;
  Member::Layout out_layout;
  MemoryView in;
  Member::Layout in_layout;
};
struct MemberBuffer {
  Member member;
  ConnBuffer buffer;
};
struct MemberBytes {
  Member member;
  std::span<const std::byte> bytes;
};

// Thread rules: any thread; collectives as for Member. Errors besides those named: as for Member.
class HMC_API Communicator {
 public:
  Communicator() noexcept = default;
  explicit Communicator(std::shared_ptr<CommunicatorState> state) noexcept;
  // Forms the job's world. Collective over all processes. Errors: timeout (naming the ranks that did not come), authentication
  // (another key, or none where one is needed), invalid_argument (options, or a half-set environment of a launcher), unsupported
  // (no such device), transport (e.g. the rendezvous port is taken), protocol (another version).
  static Result<Communicator> init(const InitOptions& options = {});
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }

  [[nodiscard]] int size() const noexcept;                          // Members of all processes
  [[nodiscard]] const std::vector<Member>& local() const noexcept;  // this process's Members, by rank
  // The only local Member; rank-addressed calls are made on it. Errors: invalid_argument when this process has several.
  [[nodiscard]] Result<Member> self() const;
  [[nodiscard]] Context context() const;
  // Connects if need be. Errors: timeout.
  [[nodiscard]] Result<Peer> peer(int rank, Deadline deadline = Deadline::after_seconds(30)) const;
  [[nodiscard]] Device device(int rank) const;  // the CPU for a number that is no rank
  [[nodiscard]] std::vector<int> lost() const;  // ranks known to be dead

  // As Context's calls of these names.
  [[nodiscard]] Result<ConnBuffer> buffer(std::size_t bytes, Device device = Device::cpu()) const;
  [[nodiscard]] Result<ConnBuffer> register_memory(const Memory& memory, Access access = Access::read_write) const;

  // Every local Member in one call: each is named once. Where a process has several, their blocking calls one after the other would
  // wait for each other.
  [[nodiscard]] Status barrier(Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Result<Work> ibarrier(Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Status all_to_all(std::span<const MemberBuffers> members, Deadline deadline = Deadline::never(),
                                  std::string_view algorithm = {}) const;
  [[nodiscard]] Status all_to_all_v(std::span<const MemberBuffersV> members, Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Status all_reduce(std::span<const MemberBuffers> members, const Reduction& reduction,
                                  Deadline deadline = Deadline::never(), std::string_view algorithm = {}) const;
  [[nodiscard]] Status reduce_scatter(std::span<const MemberBuffers> members, const Reduction& reduction,
                                      Deadline deadline = Deadline::never(), std::string_view algorithm = {}) const;
  [[nodiscard]] Status reduce(std::span<const MemberBuffers> members, int root, const Reduction& reduction,
                              Deadline deadline = Deadline::never(), std::string_view algorithm = {}) const;
  [[nodiscard]] Status all_gather(std::span<const MemberBuffers> members, Deadline deadline = Deadline::never(),
                                  std::string_view algorithm = {}) const;
  [[nodiscard]] Status broadcast(std::span<const MemberBuffers> members, int root,  // of each one's `out`
                                 Deadline deadline = Deadline::never(), std::string_view algorithm = {}) const;
  [[nodiscard]] Status gather(std::span<const MemberBuffers> members, int root, Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Status scatter(std::span<const MemberBuffers> members, int root, Deadline deadline = Deadline::never()) const;
  // One RemoteBuffer per rank, for all of this process's Members.
  [[nodiscard]] Result<std::vector<RemoteBuffer>> exchange(std::span<const MemberBuffer> members,
                                                           Deadline deadline = Deadline::never()) const;
  [[nodiscard]] Result<std::vector<std::vector<std::byte>>> exchange_bytes(std::span<const MemberBytes> members,
                                                                           Deadline deadline = Deadline::never()) const;
  // The Members' hosts, cards and links as each process sees its own host, over what InitOptions::topology says; `process` counts
  // the processes of this group. Collective over all local Members. Opens vendor libraries.
  [[nodiscard]] Result<Topology> topology(Deadline deadline = Deadline::never()) const;

  // Measures latency and bandwidth of links with messages between the Members' devices, and plans with them from then on: shares of
  // hierarchical calls are in proportion to measured bandwidth, and plan() predicts with it. All ranks take the same figures. Where
  // rank 0 has some of the same ranks, devices, settings and version in its cache file, nothing is measured. Measured are every
  // pair of ranks of two islands and three pairs of each island, one after the other; of more than 64 pairs between islands,
  // fewer. A pair takes about 40 ms and at most 170 MB of messages, a rank 8 MiB of its device's memory. Figures belong to this
  // Communicator alone. Collective over all local Members; not within a batch. Errors: out_of_memory (of any rank), unsupported
  // (more than 256 ranks), protocol.
  [[nodiscard]] Result<Measurement> measure(const MeasureOptions& options = {}, Deadline deadline = Deadline::never()) const;

  // How a call on memory of the Members' devices is carried out, why, and how long it should take (hmc/plan.h). `bytes`: of the
  // largest buffer of a rank. Neither collective nor blocking: figures of links that this process has not connected are assumed to
  // be like those of others, so processes may predict different times; algorithm and bytes are the same.
  // Errors: as plan_collective.
  [[nodiscard]] Result<CollectivePlan> plan(std::string_view call, std::uint64_t bytes, const PlanOptions& options = {}) const;
  // Ranks whose devices are of one vendor (CPUs among themselves) and on one host, as InitOptions::topology or the hosts' kernels
  // say: each set ascending, the sets by their first ranks. Not collective.
  [[nodiscard]] Result<std::vector<std::vector<int>>> islands() const;

  // Members with equal `color` form a new group, ranked by (key, old rank); a negative color joins none (empty Communicator).
  // colors and keys hold one entry per local Member. Collective.
  [[nodiscard]] Result<Communicator> split(std::span<const int> colors, std::span<const int> keys,
                                           Deadline deadline = Deadline::never()) const;
  // The group of these ranks of this one, in this order. Not collective: its members alone call it, each with the same ranks and
  // the same `number` (2 to 2147483647), which no other group of theirs has, one that was closed included; one drawn at random will
  // do. Sends nothing and waits for nobody. Use the group once all members have made it, which they learn by other means, and call
  // share_memory() first. Errors: invalid_argument (ranks, none of this process's among them, a number that is taken here), closed.
  [[nodiscard]] Result<Communicator> subgroup(std::span<const int> ranks, std::uint32_t number) const;
  // Where all ranks are on one host (2 to 32 of them), they map the same memory, through which collectives then go, and which
  // kernels of devices require. Communicators of init(), split(), shrink(), grow() and join() have done
  // so; those of subgroup() use messages until all their ranks have called this, as their first collective. ok where the ranks
  // cannot share memory. Collective over all local Members. Errors: invalid_argument (a collective has begun).
  [[nodiscard]] Status share_memory(Deadline deadline = Deadline::never()) const;

  // Collects what this thread calls from now on, to be carried out together (hmc/batch.h). Errors: invalid_argument (the thread has
  // another batch), closed.
  [[nodiscard]] Result<Batch> batch() const;

  // Ends every collective of the Communicator on every rank, those in flight and all later ones, with `cancelled`, this rank and
  // `reason` (at most 1 KiB of it reaches the others). Does not wait: other ranks end theirs when the news arrives. A collective
  // whose messages with a stopped rank cannot be withdrawn ends with that rank, which may still access its memory.
  // Point-to-point calls and Communicators made by split() go on. Of several aborts, a rank gets the first that it learns of.
  [[nodiscard]] Status abort(std::string_view reason = {}) const;

  // The ranks that are left, after a loss or an abort, form a new Communicator, ranked as before: all whose process is neither dead
  // nor closed. Every one of them calls it, once per process. All get the same ranks, or an error; docs/explanation/failures.md has
  // the protocol. A rank that dies meanwhile is left out, or counts as lost in the new Communicator. This one is unchanged, and the
  // two are closed in any order. Errors: timeout, which names a rank that did not come (all ranks that wait for it fail), cancelled
  // (another rank was interrupted), peer_lost (the others count this rank as lost).
  [[nodiscard]] Result<Communicator> shrink(Deadline deadline = Deadline::never()) const;

  // Newcomers join: rank 0 invites, every rank calls grow(), and as many processes as were invited call join(). All get the same
  // new Communicator: the ranks of this one in their order, then those of the newcomers, each process's together, in the order in
  // which they came. This one is unchanged, and the two are closed in any order.
  // For the next grow(): the text that newcomers pass to join(). How it reaches them is the caller's choice. A secret: a process
  // that has it, and the job key, is taken for one of the `processes` that may come. It ends with grow(), or with another invite().
  // Rank 0 only. Errors: invalid_argument (another rank, the number), closed.
  [[nodiscard]] Result<std::string> invite(int processes = 1) const;
  // Every rank calls it, once per process; waits for the newcomers. All get the same group, or an error. Errors: timeout, which
  // names what is missing (the first deadline of a rank ends it on all), peer_lost (a rank or a newcomer died; shrink() first),
  // cancelled (another rank was interrupted, or this Communicator was aborted), invalid_argument (no invitation).
  // A Topology of InitOptions does not hold for the new Communicator; islands are found from devices and hosts.
  [[nodiscard]] Result<Communicator> grow(Deadline deadline = Deadline::never()) const;
  // Of a newcomer. Its Context closes as that of init(). Errors: those of grow(); authentication (no such invitation, another job
  // key, or none where one is needed), invalid_argument (no invitation's text), unsupported (no such device), protocol (another
  // version).
  static Result<Communicator> join(std::string_view invitation, const JoinOptions& options = {});
  // By rank: the rank in the Communicator that this one was made from by shrink(), split(), subgroup() or grow(), -1 for newcomers;
  // of init(), the rank itself.
  [[nodiscard]] std::vector<int> old_ranks() const;

  // Leaves the group. The Context closes with the Communicator of init() or join(), or with the last of those that shrink() and
  // grow() made from it.
  // Idempotent. Errors: timeout.
  Status close(Deadline deadline = Deadline::after_seconds(5)) const;
  [[nodiscard]] const std::shared_ptr<CommunicatorState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<CommunicatorState> state_;
};

// What the launcher's environment says; also used by `hmc info`. launcher: "hmc", "torchrun", "openmpi", "mpich", "slurm", "none".
struct LaunchInfo {
  std::string launcher;
  int rank;
  int size;
  int local_rank;  // on this host
  int local_size;  // processes of the job on this host, as far as the launcher says
  std::string rendezvous;
};
// Errors: invalid_argument (a half-set environment, or several hosts and no address to meet at). Any thread.
HMC_API Result<LaunchInfo> detect_launch();

}  // namespace hmc
