#include "collective/batch.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "collective/interruption.h"
#include "collective/member_calls.h"
#include "collective/reducer.h"
#include "comm/onesided/transfer.h"
#include "hmc/communicator.h"

namespace hmc {
namespace {

bool overlap(const MemoryView& a, const MemoryView& b) {
  if (a.device != b.device || a.bytes == 0 || b.bytes == 0) return false;
  const auto x = reinterpret_cast<std::uintptr_t>(a.data), y = reinterpret_cast<std::uintptr_t>(b.data);
  return x < y + b.bytes && y < x + a.bytes;
}

// Whether the two calls depend on their order: one writes what the other reads or writes.
bool conflict(const CollectiveBuffers& a, const CollectiveBuffers& b) {
  return overlap(a.out, b.out) || overlap(a.out, b.in) || overlap(a.in, b.out);
}

// The calls and messages of a batch as one. Complete when all of them are.
class BatchWork final : public WorkState {
 public:
  struct Part {
    std::shared_ptr<WorkState> work;
    std::vector<PackedPiece> results;
    std::vector<MemoryView> views;
  };
  BatchWork(std::vector<Part> parts, std::size_t calls)
      : WorkState(parts.front().work->engine()), parts_(std::move(parts)), calls_(calls), left_(parts_.size() + 1) {}

  // ---- engine lock held ----
  // `failure`: of a call that could not be started, perhaps because one of those that were has failed.
  void start(const Status& failure) {
    accepted();
    const auto self = std::static_pointer_cast<BatchWork>(shared_from_this());
    not_started_ = failure.with_context("batch");
    for (std::size_t i = 0; i < parts_.size(); ++i)
      parts_[i].work->on_complete_locked([self, i](const Status& status) { self->on_part(i, status); });
    if (!failure.ok()) cancel_messages();
    part_done({});  // the start
  }
  Status cancel_locked() override {
    if (done()) return {Code::invalid_argument, "the batch is already complete"};
    const auto self = shared_from_this();
    bool stopping = false;  // a receive
    for (const Part& part : parts_) {
      if (!part.work->done()) stopping = part.work->cancel_locked().code() == Code::would_block || stopping;
    }
    if (done()) return {};
    return {stopping ? Code::would_block : Code::unsupported,
            "batch: parts of it cannot be stopped; it will end as cancelled, and until then outputs may be written"};
  }

 private:
  void on_part(std::size_t index, const Status& status) {
    if (index >= calls_ && !not_started_.ok()) return part_done({});  // cancelled for that reason
    const std::vector<PackedPiece>& results = parts_[index].results;
    if (!status.ok() || results.empty()) return part_done(status);
    const auto unpack_all = [&results] {
      for (const PackedPiece& piece : results) HMC_TRY(unpack(piece));
      return Status();
    };
    if (std::ranges::all_of(results, [](const PackedPiece& piece) { return piece.caller.device.is_cpu(); }))
      return part_done(unpack_all());
    const auto self = std::static_pointer_cast<BatchWork>(shared_from_this());
    run_in_background(engine(), unpack_all)->on_complete_locked([self](const Status& copied) { self->part_done(copied); });
  }
  void part_done(const Status& status) {
    if (!status.ok()) fail(status);
    if (--left_ == 0) complete(outcome_.ok() ? not_started_ : outcome_);
  }
  // Collectives that cannot go on end by themselves, as their group is broken. Messages are cancelled.
  void fail(const Status& reason) {
    if (!outcome_.ok()) return;
    outcome_ = reason.with_context("batch");
    cancel_messages();
  }
  void cancel_messages() {
    for (std::size_t i = calls_; i < parts_.size(); ++i) {
      if (!parts_[i].work->done()) static_cast<void>(parts_[i].work->cancel_locked());
    }
  }
  void released() noexcept override {
    for (Part& part : parts_) {
      for (MemoryView& view : part.views) {
        if (view.owner) engine()->retire(std::move(view.owner));
      }
    }
  }

  std::vector<Part> parts_;  // calls, then messages
  const std::size_t calls_;
  std::size_t left_;  // parts, and the start
  Status outcome_;    // of the parts
  Status not_started_;
};

Status wait_for(StreamPoint& point, Deadline deadline) {
  for (;;) {
    HMC_ASSIGN(const bool reached, point.reached());
    if (reached) return {};
    if (deadline.passed())
      return {Code::timeout, "the deadline passed waiting for the streams that its inputs are produced on; no call was started"};
    if (ask_interrupted()) return interrupted_status();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace

struct BatchState::Slot {
  std::mutex mutex;
  BatchState* open = nullptr;  // guarded by mutex, as are the calls and messages of a batch that is open
};
constinit thread_local BatchState::Slot* BatchState::here = nullptr;
constinit std::atomic<std::uint32_t> BatchState::opened{0};

struct BatchState::Started {
  std::vector<std::shared_ptr<CollectiveWork>> calls;
  std::shared_ptr<WorkState> all;
  Status not_started;  // why a collective, and those after it, were not
};

Result<std::unique_ptr<BatchState>> BatchState::open(std::shared_ptr<CommunicatorState> communicator) {
  static thread_local std::shared_ptr<Slot> slot;
  if (!slot) slot = std::make_shared<Slot>();
  here = slot.get();
  HMC_TRY(check(communicator));
  std::unique_ptr<BatchState> batch(new BatchState(std::move(communicator), slot));
  const std::lock_guard lock(slot->mutex);
  if (slot->open != nullptr) {
    return Status(Code::invalid_argument, "batch: this thread has another one; batches do not nest, end that one before");
  }
  slot->open = batch.get();
  opened.fetch_add(1, std::memory_order_relaxed);
  return batch;
}

BatchState::BatchState(std::shared_ptr<CommunicatorState> communicator, std::shared_ptr<Slot> slot)
    : communicator_(std::move(communicator)), slot_(std::move(slot)), packs_(all_on_host(*communicator_->group)) {}

BatchState::~BatchState() { close(); }

void BatchState::close() noexcept {
  const std::lock_guard lock(slot_->mutex);
  if (slot_->open != this) return;
  slot_->open = nullptr;
  opened.fetch_sub(1, std::memory_order_relaxed);
}

BatchState::Open BatchState::own_on(const Group& group) noexcept {
  if (here == nullptr) return {};
  std::unique_lock lock(here->mutex);
  BatchState* const open = here->open;
  if (open == nullptr || open->communicator_->group.get() != &group) return {};
  return {*open, std::move(lock)};
}

std::size_t BatchState::size() const noexcept {
  const std::lock_guard lock(slot_->mutex);
  return calls_.size() + messages_.size();
}

Status BatchState::refuse(const Group& group, std::string_view call, std::string_view instead) {
  if (!on(group)) return {};
  return {Code::invalid_argument,
          std::string(call) + " in a batch: it cannot be put off to the batch's end; " + std::string(instead)};
}

Status BatchState::fits(const CollectiveCall& call) const {
  const MemoryView &in = call.buffers.in, &out = call.buffers.out;
  if (!written_.overlap(out) && !read_.overlap(out) && !written_.overlap(in)) return {};
  const std::string_view name = name_of(kind_of(call.call));
  const auto conflicts = [&](const CollectiveCall& earlier) { return conflict(earlier.buffers, call.buffers); };
  const auto found = std::ranges::find_if(calls_, conflicts);
  if (found != calls_.end()) {
    return {Code::invalid_argument, std::string(name) + " in a batch: one of its buffers overlaps one of call " +
                                        std::to_string(found - calls_.begin()) + " (" + std::string(name_of(kind_of(found->call))) +
                                        "), and one of the two is written; a batch's calls are carried out in any order"};
  }
  return {};
}

Status BatchState::add(std::span<CollectiveCall> shares) {
  for (const CollectiveCall& share : shares) HMC_TRY(fits(share));
  for (const CollectiveCall& share : shares) {
    const Status marked = mark_streams(share);
    if (marked.code() == Code::device)
      break_before_start(*share.group, share.rank, marked.with_context("batch"));  // the batch may never run
    HMC_TRY(marked);
  }
  for (const CollectiveCall& share : shares) {
    read_.add(share.buffers.in);
    written_.add(share.buffers.out);
  }
  std::ranges::move(shares, std::back_inserter(calls_));
  return {};
}

Status BatchState::mark_streams(const CollectiveCall& call) {
  for (const MemoryView* view : {&call.buffers.in, &call.buffers.out}) {
    if (!packs_ || view->device.is_cpu()) continue;
    HMC_ASSIGN(auto point, mark_stream(view->stream, view->device));
    if (point) streams_.push_back(std::move(point));
  }
  return {};
}

Result<std::vector<Launch>> BatchState::ready_launches(Deadline deadline) {
  for (const auto& point : streams_) HMC_TRY(wait_for(*point, deadline));
  return launches_of(std::move(calls_), packs_);
}

Result<BatchState::Started> BatchState::launch(Deadline deadline) {
  close();
  const auto& engine = communicator_->group->engine();
  if (size() == 0) return Started{{}, completed_work(engine), {}};
  Started started;
  std::vector<BatchWork::Part> parts;
  Group& group = *communicator_->group;
  const bool has_calls = !calls_.empty();
  const std::uint32_t first_rank = has_calls ? calls_.front().rank : 0;
  auto ready = ready_launches(deadline);
  Status failure = ready.status();
  std::vector<Launch> launches;
  if (ready) {
    launches = std::move(ready).value();
  } else if (has_calls) {
    break_before_start(group, first_rank, failure.with_context("batch"));
  }
  for (Launch& each : launches) {
    const std::uint32_t rank = each.call.rank;
    auto work = start_collective(std::move(each.call));
    if (!work) {
      failure = work.status();
      break_before_start(group, rank, failure.with_context("batch"));
      break;
    }
    started.calls.push_back(*work);
    parts.push_back({std::move(work).value(), std::move(each.results), std::move(each.views)});
  }
  for (auto& message : messages_) parts.push_back({std::move(message), {}, {}});
  if (parts.empty()) return failure.with_context("batch");
  const auto all = std::make_shared<BatchWork>(std::move(parts), started.calls.size());
  started.all = all;
  started.not_started = failure;
  const auto lock = engine->lock();
  all->start(failure);
  return started;
}

Result<std::shared_ptr<WorkState>> BatchState::start() {
  HMC_ASSIGN(Started started, launch(Deadline::never()));
  return std::move(started.all);
}

Status BatchState::run(Deadline deadline) {
  HMC_ASSIGN(const Started started, launch(deadline));
  // A collective that its deadline ends breaks the group; after that, messages have no time left.
  const Status calls = finish_collectives(started.calls, deadline);
  const Status all = started.all->wait(deadline);
  if (started.all->done()) return calls.ok() ? started.all->status() : calls;
  const Status stopped = started.all->cancel();
  if (!calls.ok()) return calls;
  if (const Status& failure = started.not_started; !failure.ok()) {
    if (started.all->done()) return failure.with_context("batch");
    return {failure.code(),
            "batch: " + std::string(failure.message()) +
                "; its messages are in flight and their memory may still be used: " + std::string(stopped.message())};
  }
  if (all.code() != Code::timeout) return all.with_context("batch");
  const bool over = started.all->done();
  // What ended meanwhile has ended as it did, unless by this cancel().
  if (over && !stopped.ok() && started.all->status().code() != Code::cancelled) return started.all->status();
  const std::string passed = "batch: the deadline passed waiting for its messages; its collectives are complete, its messages ";
  if (over) return {Code::timeout, passed + "were cancelled"};
  return {Code::timeout, passed + "are in flight and their memory may still be used: " + std::string(stopped.message())};
}

Batch::Batch() noexcept = default;
Batch::Batch(std::unique_ptr<BatchState> state) noexcept : state_(std::move(state)) {}
Batch::~Batch() = default;
Batch::Batch(Batch&&) noexcept = default;
Batch& Batch::operator=(Batch&&) noexcept = default;

std::size_t Batch::size() const noexcept { return state_ ? state_->size() : 0; }

void Batch::discard() noexcept { state_.reset(); }

Result<Work> Batch::start() {
  if (!state_) return Status(Code::invalid_argument, "the batch is empty, has been started, or discarded");
  const auto state = std::exchange(state_, nullptr);
  HMC_ASSIGN(auto work, state->start());
  return Work(std::move(work));
}

Status Batch::run(Deadline deadline) {
  if (!state_) return {Code::invalid_argument, "the batch is empty, has been started, or discarded"};
  const auto state = std::exchange(state_, nullptr);
  return state->run(deadline);
}

Result<Batch> Member::batch() const {
  HMC_ASSIGN(auto state, BatchState::open(state_));
  return Batch(std::move(state));
}

Result<Batch> Communicator::batch() const {
  HMC_ASSIGN(auto state, BatchState::open(state_));
  return Batch(std::move(state));
}

}  // namespace hmc
