#include "transport/ipc/server.h"

#include <sched.h>

#include <algorithm>

namespace hmc::ipc {

namespace {

bool within(const std::vector<std::uint64_t>& offsets, std::uint64_t block, std::size_t bytes) {
  return block <= bytes && first_beyond(offsets.data(), offsets.size(), bytes - block) == offsets.size();
}

}  // namespace

Server::Task::Task(Ask asked) : ask(std::move(asked)) {
  run_.local_offsets = ask.region_offsets.data();
  run_.remote_offsets = ask.memory_offsets.data();
  run_.count = ask.memory_offsets.size();
  run_.block = static_cast<std::size_t>(ask.block);
  cursor_ = RunCursor({&run_, 1});
}

Server::Task::~Task() {
  see_out();
  if (region_) std::erase(region_->users, this);
}

// Every number is the peer's word.
Status Server::Task::check(const ServedRegions& served) {
  HMC_ASSIGN(region_, served.hold(ask.region, ask.put));
  region_->users.push_back(this);
  if (!within(ask.region_offsets, ask.block, region_->view.span.bytes)) {
    return {Code::invalid_argument, "blocks outside the region"};
  }
  HMC_ASSIGN(runtime_, runtime_for(region_->view.span.device));
  return {};
}

// Hands over what there is room for; true if anything was.
bool Server::Task::start(Worker& worker) {
  bool handed = false;
  while (!cursor_.at_end() && failure.ok()) {
    const Device& device = region_->view.span.device;
    const auto prepared = memory->prepared(device, worker);
    if (prepared.ok() && !*prepared) break;
    const auto there = prepared.ok() ? memory->on(device, !ask.put) : Result<DeviceSpan>(prepared.status());
    if (!there.ok()) {
      failure = there.status();
    } else if (!within(ask.memory_offsets, ask.block, there->bytes)) {
      failure = Status(Code::invalid_argument, "blocks outside the announced memory");
    } else if (copies_.hand(*runtime_, cursor_, {region_->view.span, *there}, !ask.put, nullptr) == 0) {
      break;
    }
    handed = true;
  }
  return handed;
}

bool Server::Task::advance(Worker& worker, bool& moved) {
  if (copies_.pending() != 0) runtime_->poll();
  if (failure.ok()) failure = copies_.outcome();
  moved = start(worker) || moved;
  if (copies_.pending() != 0 || (!cursor_.at_end() && failure.ok())) return false;
  if (failure.ok()) failure = copies_.outcome();
  return true;
}

// Its region may be about to end: nothing is started afterwards.
void Server::Task::see_out() {
  if (failure.ok() && !cursor_.at_end()) failure = Status(Code::stale, "the region was deregistered");
  while (copies_.pending() != 0) {
    if (!runtime_->poll()) sched_yield();
  }
}

Status Server::on_ask(Ask ask, AnnouncedTable& memories, DescriptorChannel& channel) {
  const auto same = [&](const Task& task) { return task.ask.number == ask.number; };
  if (std::ranges::any_of(tasks_, same)) return {Code::protocol, "the peer asked twice by one number"};
  HMC_ASSIGN(auto memory, memories.find(ask.memory, channel));
  Task& task = tasks_.emplace_back(std::move(ask));
  task.memory = std::move(memory);
  task.failure = task.check(*shared_->served);
  return {};
}

bool Server::poll(std::vector<Finished>& finished) {
  bool moved = false;
  for (auto at = tasks_.begin(); at != tasks_.end();) {
    if (!at->advance(shared_->worker, moved)) {
      ++at;
      continue;
    }
    const Status& outcome = at->failure;
    finished.push_back(
        {{at->ask.number, outcome.code(), std::string(outcome.message())}, outcome.ok() ? std::move(at->ask.signal) : Bytes()});
    at = tasks_.erase(at);
    moved = true;
  }
  return moved;
}

}  // namespace hmc::ipc
