// Starting a collective, and waiting for it.
#include <numeric>
#include <utility>
#include <vector>

#include "collective/execute.h"
#include "collective/interruption.h"
#include "comm/onesided/transfer.h"

namespace hmc {
namespace {

Status mark(CollectiveBuffers& buffers) {
  const StreamHandle in = std::exchange(buffers.in.stream, no_stream), out = std::exchange(buffers.out.stream, no_stream);
  HMC_ASSIGN(buffers.after[0], mark_stream(in, buffers.in.device));
  if (out != in || buffers.out.device != buffers.in.device) {
    HMC_ASSIGN(buffers.after[1], mark_stream(out, buffers.out.device));
  }
  return {};
}

// From here on the callers' streams are points: what they queue later may wait for the collective. A device that fails breaks the
// group.
Status mark_streams(CollectiveCall& call) {
  Status marked = mark(call.buffers);
  const bool refused = marked.code() == Code::invalid_argument || marked.code() == Code::unsupported;
  if (marked.ok() || refused) return marked;  // as every argument that is refused: nothing has begun
  marked = marked.with_context(name_of(kind_of(call.call)));
  break_before_start(*call.group, call.rank, marked);
  return marked.with_context(call.group->describe(call.rank));
}

std::shared_ptr<CollectiveWork> make_work(CollectiveCall&& call) { return std::make_shared<CollectiveWork>(std::move(call)); }

}  // namespace

void break_before_start(Group& group, std::uint32_t rank, const Status& reason) {
  std::vector<std::uint32_t> ranks(group.size());
  std::iota(ranks.begin(), ranks.end(), 0U);
  const auto lock = group.engine()->lock();
  if (const auto sequence = group.next_sequence(rank)) group.broke(rank, *sequence, reason, ranks);
}

Result<std::shared_ptr<CollectiveWork>> start_collective(CollectiveCall&& call) {
  HMC_TRY(mark_streams(call));
  auto work = make_work(std::move(call));
  const auto lock = work->engine()->lock();
  HMC_TRY(work->start());
  return work;
}

Status run_collectives(std::vector<CollectiveCall> calls, Deadline deadline) {
  for (CollectiveCall& call : calls) HMC_TRY(mark_streams(call));
  std::vector<std::shared_ptr<CollectiveWork>> works;
  for (CollectiveCall& call : calls) works.push_back(make_work(std::move(call)));
  Status failure;
  if (!works.empty()) {
    const auto lock = works.front()->engine()->lock();
    std::size_t started = 0;
    while (started < works.size() && failure.ok()) {
      failure = works[started]->start();
      if (failure.ok()) ++started;
    }
    works.resize(started);
    for (const auto& work : works) {
      if (!failure.ok()) work->fail(failure);
    }
  }
  const Status ended = finish_collectives(works, deadline);  // with a failure as well: they use the callers' buffers
  return failure.ok() ? ended : failure;
}

Status run_collective(CollectiveCall&& call, Deadline deadline) {
  std::shared_ptr<CollectiveWork> work;
  const std::shared_ptr<Engine>& engine = call.group->engine();
  if (call.fused && !engine->forked()) {
    using AtOnce = fused::Calls::AtOnce;
    std::uint64_t sequence = 0;
    const auto lock = engine->lock();
    auto tried = AtOnce::not_possible;
    if (call.group->context().fenced_peers() == 0) {
      HMC_ASSIGN(tried, call.group->fused().at_once(call.rank, call.call, *call.fused, call.buffers, sequence));
    }
    if (tried == AtOnce::done) return {};
    if (tried == AtOnce::announced) {
      work = make_work(std::move(call));
      HMC_TRY(work->start(sequence));
    }
  }
  if (!work) {
    HMC_ASSIGN(work, start_collective(std::move(call)));
  }
  return finish_collectives(std::span(&work, 1), deadline);
}

Status finish_collectives(std::span<const std::shared_ptr<CollectiveWork>> works, Deadline deadline) {
  Status first;
  for (const auto& work : works) {
    const Status status = work->wait(deadline);
    if (work->done()) {
      if (first.ok()) first = work->status();
      continue;
    }
    if (status.code() != Code::timeout) return status;  // forked
    const auto lock = work->engine()->lock();
    if (!work->done()) {
      const std::string awaited = work->missing();
      work->fail(interrupted() ? Status(Code::cancelled, "interrupted by a signal while waiting for " + awaited)
                               : Status(Code::timeout, "the deadline passed waiting for " + awaited));
    }
    if (first.ok()) {
      first = work->done() ? work->status()
                           : Status(Code::timeout,
                                    std::string(work->what()) +
                                        ": the deadline passed, and messages under way could not be stopped: until they end the "
                                        "output may still be written (missing: " +
                                        work->missing() + ")");
    }
  }
  return first;
}

}  // namespace hmc
