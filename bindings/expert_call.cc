#include "expert_call.h"

#include <string>

#include "collectives.h"

namespace hmc::bindings {
namespace {

// Calls `step` with every rank, and returns the errors. An exception of a Python signal handler is not caught.
template <class Step>
py::list for_each(const ExpertCall::Ranks& ranks, Step step) {
  std::vector<std::pair<std::int64_t, Status>> failures;
  for (const std::int64_t rank : ranks) {
    try {
      step(rank);
    } catch (const StatusError& error) {
      failures.emplace_back(rank, error.status());
    }
  }
  return as_exceptions(failures);
}

MemoryView words_of(py::handle memory, const ExpertLayout& layout) {
  MemoryView view = view_of(memory, true);
  if (!view.device.is_cpu() || view.bytes < static_cast<std::size_t>(8 * layout.total_words())) {
    refuse("headers need " + std::to_string(8 * layout.total_words()) + " bytes of CPU memory");
  }
  return view;
}

}  // namespace

py::list as_exceptions(const std::vector<std::pair<std::int64_t, Status>>& failures) {
  py::list all;
  for (const auto& [rank, status] : failures) all.append(py::make_tuple(rank, make_error(status)));
  return all;
}

ExpertCall::ExpertCall(const ExpertLayout& layout, ExpertStep step, std::int64_t number, py::handle outbox, py::handle window)
    : layout_(layout),
      step_(step),
      number_(number),
      outbox_(words_of(outbox, layout)),
      window_(words_of(window, layout)),
      progress_(static_cast<std::size_t>(layout.ranks)) {
  if (number < 0) refuse("calls are numbered from 0 on, not " + std::to_string(number));
}

ExpertCall::Progress& ExpertCall::at(std::int64_t rank) {
  if (rank < 0 || rank >= layout_.ranks) refuse("rank " + std::to_string(rank) + " is none of " + std::to_string(layout_.ranks));
  return progress_[static_cast<std::size_t>(rank)];
}

std::span<std::int64_t> ExpertCall::words(const MemoryView& memory, std::int64_t rank) const {
  return {static_cast<std::int64_t*>(memory.data) + layout_.place(step_, number_, rank),
          static_cast<std::size_t>(layout_.words(step_))};
}

void ExpertCall::write(const Ranks& ranks) {
  for (const std::int64_t rank : ranks) {
    if (Progress& here = at(rank); !here.sent) here.words = write_header(rank, words(outbox_, rank));
  }
}

py::list ExpertCall::send(const Communicator& comm, const ConnBuffer& outbox, const std::vector<RemoteBuffer>& windows,
                          const Ranks& ranks) {
  const Member& member = member_of(comm);
  PutOptions options;
  options.notify = Notify(ExpertLayout::notification(step_, number_));
  const auto target = static_cast<std::size_t>(8 * layout_.place(step_, number_, layout_.rank));
  return for_each(ranks, [&](std::int64_t rank) {
    Progress& here = at(rank);
    if (rank == layout_.rank) here.sent = true;  // it reads its own header in the outbox
    if (here.sent) return;
    const std::size_t source = static_cast<std::size_t>(8 * layout_.place(step_, number_, rank)), size = 8 * here.words;
    const ConnBuffer from = check(outbox.slice(source, size));
    const RemoteBuffer to = check(windows.at(static_cast<std::size_t>(rank)).slice(target, size));
    interruptible([&] { return member.put(from, to, options); }, gil_for(size));
    here.sent = true;
  });
}

py::list ExpertCall::take(const Communicator& comm, const Ranks& ranks, const std::optional<double>& timeout) {
  const Member& member = member_of(comm);
  const Deadline deadline = deadline_of(timeout);
  const std::uint64_t id = ExpertLayout::notification(step_, number_);
  return for_each(ranks, [&](std::int64_t rank) {
    Progress& here = at(rank);
    if (here.taken || rank == layout_.rank) return;
    interruptible([&] { return member.wait_notify(static_cast<int>(rank), id, 1, deadline); }, Gil::until_waiting);
    here.taken = true;
  });
}

py::list ExpertCall::read(const Ranks& ranks) {
  return for_each(ranks, [&](std::int64_t rank) {
    Progress& here = at(rank);
    if (here.read) return;
    check(read_header(rank, words(rank == layout_.rank ? outbox_ : window_, rank)));
    here.read = true;
  });
}

py::list ExpertCall::wait(const Ranks& ranks, const std::optional<double>& timeout) {
  const Deadline deadline = deadline_of(timeout);
  return for_each(ranks, [&](std::int64_t rank) {
    for (const Work& work : at(rank).works) interruptible([&] { return work.wait(deadline); }, Gil::until_waiting);
    if (rank == layout_.rank) check(wait_for_loads(deadline));
  });
}

ExpertCall::Ranks ExpertCall::sent(const Ranks& ranks) const {
  Ranks found;
  for (const std::int64_t rank : ranks) {
    if (at(rank).sent) found.push_back(rank);
  }
  return found;
}

ExpertCall::Ranks ExpertCall::came(const Ranks& ranks) const {
  Ranks found;
  for (const std::int64_t rank : ranks) {
    if (at(rank).read) found.push_back(rank);
  }
  return found;
}

ExpertCall::Ranks ExpertCall::not_got(const Ranks& ranks) const {
  Ranks found;
  for (const std::int64_t rank : ranks) {
    if (!got(rank)) found.push_back(rank);
  }
  return found;
}

void ExpertCall::acknowledge(const Communicator& comm, const Ranks& ranks, std::uint64_t notification) {
  const Member& member = member_of(comm);
  for (const std::int64_t rank : ranks) {
    Progress& here = at(rank);
    if (here.acknowledged || rank == layout_.rank) continue;
    const auto notify = [&] { return member.notify(static_cast<int>(rank), Notify(notification), Deadline::after_seconds(0)); };
    try {
      interruptible(notify, Gil::until_waiting);
      here.acknowledged = true;
    } catch (const StatusError&) {  // a rank that is gone needs none
    }
  }
}

void ExpertCall::check_not_masked(const Ranks& ranks) const {
  const auto* const all = static_cast<const std::int64_t*>(window_.data);
  for (const std::int64_t rank : ranks) {
    for (const ExpertStep step : {ExpertStep::dispatch, ExpertStep::combine}) {
      for (std::int64_t slot = 0; slot < ExpertLayout::slots; ++slot) {
        if (all[layout_.place(step, slot, rank)] == ExpertLayout::masked) check(masked_by(rank));
      }
    }
  }
}

Status ExpertCall::get(const Member& member, std::int64_t rank, const Plan& plan) {
  Progress& here = at(rank);
  for (std::size_t i = here.works.size(); i < plan.size(); ++i) {
    const Blocks& blocks = plan[i];
    const BlockPair pair{blocks.into, blocks.from, blocks.targets, blocks.sources};
    HMC_ASSIGN(const BlockBatch batch, member.prepare_blocks({&pair, 1}, blocks.bytes));
    HMC_ASSIGN(Work work, member.get_blocks(batch));
    here.works.push_back(std::move(work));
  }
  here.got = true;
  return {};
}

}  // namespace hmc::bindings
