#include "collective/execute.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "collective/reducer.h"
#include "comm/messages/messenger.h"

namespace hmc {
namespace {

// Of a call whose algorithm was named.
Status shared_memory_refused(std::uint32_t call) {
  return {Code::unsupported,
          describe_call(call) +
              ": a rank passed device memory that the others do not map, or CPU memory where others passed device "
              "memory, or has no memory left for its share, or could not load its kernel while something else on its device "
              "waited; pass CPU memory, or name no algorithm"};
}

}  // namespace

Status library_refused(Group& group, std::uint32_t call, const Status& elsewhere) {
  const Status here = group.fused().natives().obstacle();
  const Status& why = here.ok() ? elsewhere : here;
  return {Code::unsupported, describe_call(call) +
                                 ": a rank does not load the library, or passed CPU memory, memory that is not aligned to its "
                                 "elements, uneven blocks, or a type or operation that the library does not have" +
                                 (why.ok() ? "" : " (" + std::string(why.message()) + ")") + "; name no algorithm"};
}

// Stands among the one-sided operations to one peer, behind its fences.
class CollectiveWork::Gate final : public PendingOp {
 public:
  explicit Gate(std::shared_ptr<CollectiveWork> work) : work_(std::move(work)) {}
  Outcome post() override {
    work_->fence_passed();
    return Outcome::posted;
  }
  void abandon(const Status&) override { work_->fence_passed(); }  // what is posted to the peer now fails by itself
  [[nodiscard]] bool ends_at_close() const noexcept override { return true; }

 private:
  std::shared_ptr<CollectiveWork> work_;
};

CollectiveWork::CollectiveWork(CollectiveCall&& call)
    : WorkState(call.group->engine()),
      group_(std::move(call.group)),
      rank_(call.rank),
      call_(call.call),
      run_(call.library ? std::make_shared<const Schedule>() : call.schedule),
      areas_(std::move(call.buffers), run_.schedule()->scratch),
      fused_{std::move(call.fused), nullptr},
      withdrawal_{OneShotTimer(*group_->engine()), {}} {
  if (!call.library) return;
  library_ = std::make_unique<LibraryCall>(*this, std::move(*call.library), std::move(areas_));
  areas_ = Areas({}, 0);
}

CollectiveWork::~CollectiveWork() = default;

Status CollectiveWork::start(std::optional<std::uint64_t> announced) {
  if (announced) {
    sequence_ = *announced;
  } else {
    HMC_ASSIGN(sequence_, group_->next_sequence(rank_));
  }
  group_->running().add(*this);
  accepted();
  if (!fused_.way) run_.begin();  // else messages are sent if that way turns out to be closed
  if (library_) library_->begin();
  if (announced) {
    start_fused(true);
  } else {
    if (!fused_.way) group_->fused().announce(rank_, sequence_, call_);
    if (group_->context().fenced_peers() != 0) [[unlikely]]
      wait_for_fences();
    if (fences_ == 0) advance();
  }
  group_->compare_early(*this);
  // The rank's earlier calls may have been announced by all by now. Another thread that launched them would share the lock, and the
  // vendor's, with this one. Last, as it may end this one.
  if (fused_.call && fused_.call->may_be_launched()) engine()->posting().look();
  return {};
}

void CollectiveWork::wait_for_fences() {
  std::vector<PeerState*> fenced;
  for (std::uint32_t r = 0; r < group_->size(); ++r) {
    PeerState* peer = group_->rank(r).peer.get();
    if (peer->fenced() && std::ranges::find(fenced, peer) == fenced.end()) fenced.push_back(peer);
  }
  fences_ = static_cast<std::uint32_t>(fenced.size());
  const auto self = std::static_pointer_cast<CollectiveWork>(shared_from_this());
  for (PeerState* peer : fenced) peer->posts().add(std::make_shared<Gate>(self));
  if (fences_ != 0) engine()->kick();
}

// While the peer posts what it has pending: goes on later.
void CollectiveWork::fence_passed() {
  if (--fences_ == 0) advance_soon();
}

void CollectiveWork::advance_soon() {
  if (std::exchange(deferred_, true)) return;
  engine()->defer([self = std::static_pointer_cast<CollectiveWork>(shared_from_this())] { self->advance(); });
}

void CollectiveWork::advance() {
  const auto self = shared_from_this();
  deferred_ = false;
  if (fused_.way && !failing_) return start_fused(false);
  if (fences_ != 0) return;
  // The caller may make its stream wait for this very collective, so messages must not wait for the stream as it is when they are
  // posted.
  const auto streams_over = [work = std::static_pointer_cast<CollectiveWork>(self)](const Status& status) {
    if (!status.ok()) work->fail(status);
    work->fence_passed();
  };
  if (!failing_ && areas_.wait_for_streams(engine(), streams_over)) {
    ++fences_;
    return;
  }
  if (areas_.buffers().staged && !failing_) areas_.take_scratch(run_);
  if (const Status memory = areas_.has_memory(); !memory.ok() && !failing_) return fail(memory);
  const auto well = [this] { return !failing_ && !withdrawal_.reason.pending(); };
  const auto messages_over = [&] { return well() && run_.all_done() && !run_.in_flight() && !mismatched_ && outcome_.ok(); };
  posting_ = true;
  do {
    while (run_.has_ready() && well()) post(run_.take_ready());
  } while (library_ && messages_over() && library_->next());
  posting_ = false;
  end_if_done();
}

void CollectiveWork::start_fused(bool announced) {
  fused_.call =
      group_->fused().post(rank_, sequence_, call_, *std::exchange(fused_.way, std::nullopt), areas_.buffers(), announced);
  fused_.call->on_complete_locked([this](const Status& status) { on_fused(status); });
  // Of a process that died or left earlier there is no more news. One that left may have taken part before.
  for (std::uint32_t r = 0; r < group_->size() && fused_.call; ++r) {
    const PeerState& peer = *group_->rank(r).peer;
    const bool missing =
        (peer.phase() == PeerPhase::lost && fused_.call->needs(r)) || (peer.phase() == PeerPhase::closed && fused_.call->awaits(r));
    if (missing) fail(peer.failure().with_context(group_->describe(r)));
  }
}

std::shared_ptr<DeviceOrder> CollectiveWork::device_order() {
  return fused_.call && fused_.call->may_be_on_device() ? fused_.call : nullptr;
}

// Inside its completion: no message is posted from here.
void CollectiveWork::on_fused(const Status& status) {
  const auto self = shared_from_this();
  fused_.call = nullptr;
  if (status.ok()) {
    run_.skip();
  } else if (status.code() == Code::unsupported && !failing_) {
    if (is_shared(algorithm_of(call_))) {
      const bool library = algorithm_of(call_) == Algorithm::native;
      outcome_ = library ? library_refused(*group_, call_, {})
                         : shared_memory_refused(call_);  // on every rank alike, so the Communicator stays usable
      run_.skip();
    } else {
      run_.begin();
      advance_soon();
    }
  } else {
    on_failure(status);
  }
  if (!posting_) end_if_done();
}

void CollectiveWork::post(std::uint32_t index) {
  const Step& step = run_.steps()[index];
  if (step.kind == StepKind::copy) {
    const Status copied = areas_.copy(step);
    run_.finish(index);
    if (!copied.ok()) fail(copied);
  } else if (step.kind == StepKind::reduce) {
    reduce(index);
  } else if (step.kind == StepKind::wait) {
    library_->wait(index);
  } else {
    post_message(index);
  }
}

// On the device of the memory, where that reduces; else short ones here, others without the engine lock, like a message that takes
// its time.
void CollectiveWork::reduce(std::uint32_t index) {
  const Step& step = run_.steps()[index];
  if (step.bytes == 0 || run_.poisoned(index)) return run_.finish(index);
  auto sources = areas_.sources(run_.sources().subspan(step.first_source, step.source_count));
  const ReduceStep reduction = areas_.reduction(step.phase);
  void* const to = areas_.slice(step.to, step.bytes).data;
  if (areas_.is_short(step)) {
    reduce_on_cpu(to, sources, step.bytes / size_of(reduction.type), reduction);
    return run_.finish(index);
  }
  const Device reducer = areas_.reducer();
  const auto work = reducer.is_cpu()
                        ? reduce_in_background(engine(), to, std::move(sources), step.bytes, reduction)
                        : reduce_on_device(engine(), reducer, to, sources, step.bytes, reduction, areas_.buffers().after);
  run_.posted(index, work);
  work->on_complete_locked([this, index](const Status& status) { on_message(index, status); });
}

void CollectiveWork::post_message(std::uint32_t index) {
  const Step& step = run_.steps()[index];
  const bool sends = step.kind == StepKind::send;
  const Envelope envelope{group_->collective_scope(), sends ? rank_ : step.peer, sends ? step.peer : rank_};
  const std::uint64_t bytes = sends && run_.poisoned(index) ? 0 : step.bytes;
  const MemoryView view = areas_.slice(sends ? step.from : step.to, bytes);
  const auto round = static_cast<std::uint8_t>(step.round + (library_ ? library_->first_round() : 0));
  const Target target{group_->rank(step.peer).peer, envelope, call_};
  auto posted = sends ? group_->messenger().isend_locked(target, tag_of(sequence_, round), view)
                      : group_->messenger().irecv_locked(target, tag_of(sequence_, round), view);
  if (!posted) {
    run_.give_up(index);
    return on_failure(posted.status().with_context(group_->describe(step.peer)));
  }
  run_.posted(index, std::move(posted).value());
  WorkState& message = *run_.message(index);
  if (message.done()) {
    on_message(index, message.status());
  } else {
    message.on_complete_locked([this, index](const Status& status) { on_message(index, status); });
  }
}

// Inside a completion, or right after the post: no message is posted from here.
void CollectiveWork::on_message(std::uint32_t index, const Status& status) {
  const Step& step = run_.steps()[index];
  const auto message = run_.take_message(index);  // its own completion may be on the stack: dropped on the way out
  std::shared_ptr<WorkState> keep;                // fail() may complete this, and a waiter on another thread then drops it
  if (step.kind == StepKind::receive && !failing_) {
    if (mismatched_) {
      run_.poison(index);
    } else if (status.code() == Code::invalid_argument) {
      run_.poison(index);
      soft_error(step, "more");
    } else if (status.ok() && message->info().bytes != step.bytes) {
      run_.poison(index);
      soft_error(step, std::to_string(message->info().bytes));
    }
  }
  if (library_ && status.ok()) library_->received();
  run_.finish(index);
  if (!status.ok() && !run_.poisoned(index)) {
    keep = shared_from_this();
    on_failure(status.with_context(group_->describe(step.peer)));
  }
  if (posting_) return;  // advance() goes on with what has become ready
  // It has failed, or will once the reason is here: what would be reduced and sent on is not what it should be.
  const auto stopped = [this] { return failing_ || withdrawal_.reason.pending(); };
  while (!stopped() && run_.has_ready() && areas_.is_short(run_.steps()[run_.next_ready()])) post(run_.take_ready());
  if (run_.all_done() || failing_) {
    end_if_done();
  } else if (run_.has_ready() && !stopped()) {
    advance_soon();
  }
}

void CollectiveWork::mismatch(std::uint32_t other_rank, std::uint32_t other_call) {
  if (std::exchange(mismatched_, true)) return;
  std::string mine = describe_call(call_), theirs = describe_call(other_call);
  if (kind_of(call_) == kind_of(other_call)) {
    const Algorithm own = algorithm_of(call_), other = algorithm_of(other_call);
    if (own == Algorithm::chosen && other != own) mine += ", by HMC's choice";
    if (other == Algorithm::chosen && other != own) theirs += ", by HMC's choice";
  }
  const Status reason(Code::invalid_argument, group_->describe(rank_) + " called " + mine + " where " +
                                                  group_->describe(other_rank) + " called " + theirs +
                                                  (mine == theirs ? " with another size, root or factor" : "") +
                                                  "; every rank makes the same collective calls in the same order");
  engine()->defer([self = std::static_pointer_cast<CollectiveWork>(shared_from_this()), reason] { self->fail(reason); });
}

// A peer that withdrew its message, or left, did so because the collective failed there. Why, it tells over control, or another
// rank's death shows here: either may come later.
void CollectiveWork::on_failure(const Status& failure) {
  if (failing_) return;
  if (failure.code() != Code::cancelled && failure.code() != Code::closed) return fail(failure);
  // Who withdraws tells why, if late; who leaves may have nothing to tell.
  const auto patience = std::chrono::seconds(failure.code() == Code::cancelled ? 10 : 1);
  if (withdrawal_.reason.pending()) return;
  withdrawal_.how = failure;
  withdrawal_.reason.start(Deadline::after(patience), [self = std::static_pointer_cast<CollectiveWork>(shared_from_this())] {
    self->fail(self->withdrawal_.how);
  });
}

void CollectiveWork::soft_error(const Step& step, const std::string& found) {
  if (!outcome_.ok()) return;
  outcome_ =
      Status(Code::invalid_argument, std::string(what()) + ": " + group_->describe(step.peer) + " sent " + found + " bytes where " +
                                         std::to_string(step.bytes) + " were expected; both sides must agree on every size");
}

void CollectiveWork::fail(const Status& reason) {
  if (done() || failing_) return;
  const auto self = shared_from_this();
  failing_ = true;
  withdrawal_.reason.stop();
  outcome_ = reason.with_context(what());
  const Status failure = outcome_;
  std::vector<std::uint32_t> owed;
  for (std::uint32_t i = 0; i < run_.steps().size(); ++i) {
    if (!run_.done(i) && run_.steps()[i].kind == StepKind::send) owed.push_back(run_.steps()[i].peer);
  }
  const bool posting = std::exchange(posting_, true);  // completions inside this call do not end the collective yet
  group_->broke(rank_, sequence_, failure, owed);      // before the others see a message withdrawn
  for (std::uint32_t i = 0; i < run_.steps().size(); ++i) {
    if (const std::shared_ptr<WorkState> message = run_.message(i))
      static_cast<void>(message->cancel_locked());  // what is too late to stop ends by itself; end_if_done() waits for it
  }
  if (const auto call = fused_.call) static_cast<void>(call->cancel_locked());
  if (library_) library_->stop();
  posting_ = posting;
  if (!posting_) end_if_done();
}

void CollectiveWork::end_if_done() {
  if (done() || run_.in_flight() || fused_.call || (library_ && library_->on_device())) return;
  if (!failing_) {
    if (!run_.all_done() || withdrawal_.reason.pending() || mismatched_) return;
    if (library_ && !library_->over()) {
      // A rank that got a message of another size than it expected does not call the library, in which the others would wait for
      // it.
      if (!outcome_.ok()) return fail(std::exchange(outcome_, {}));
      return library_->waits() ? void() : advance_soon();
    }
  }
  const auto self = shared_from_this();
  group_->running().remove(*this);
  complete(std::move(outcome_));
}

Status CollectiveWork::cancel_locked() {
  if (done()) return {Code::invalid_argument, "the collective is already complete"};
  const auto self = shared_from_this();
  fail(Status(Code::cancelled, "cancelled by " + group_->describe(rank_) + "; parts of the output may have been written"));
  if (done()) return {};
  return {Code::unsupported, std::string(what()) +
                                 ": messages under way cannot be stopped; it will end as cancelled, and until then the "
                                 "output may be written"};
}

bool CollectiveWork::involves(std::uint32_t process, bool fused) const {
  const bool in_library = library_ && library_->on_device() && !fused;
  for (std::uint32_t r = 0; in_library && r < group_->size(); ++r) {
    if (group_->rank(r).process == process) return true;
  }
  for (std::uint32_t r = 0; fused_.call && !mismatched_ && r < group_->size(); ++r) {  // mismatched: it ends for that reason
    if (group_->rank(r).process == process && (r == rank_ || fused_.call->needs(r))) return true;
  }
  if (fused || fused_.call) return false;
  for (std::uint32_t i = 0; i < run_.steps().size(); ++i) {
    const Step& step = run_.steps()[i];
    if (!run_.done(i) && (step.kind == StepKind::send || step.kind == StepKind::receive) &&
        group_->rank(step.peer).process == process)
      return true;
  }
  return false;
}

std::string CollectiveWork::missing() const {
  if (withdrawal_.reason.pending()) return "the reason why a peer ended its part: " + std::string(withdrawal_.how.message());
  if (library_ && !library_->awaited().empty()) return std::string(library_->awaited());
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t r = 0; library_ && library_->on_device() && r < group_->size(); ++r) {
    if (r != rank_) ranks.push_back(r);
  }
  for (std::uint32_t r = 0; fused_.call && r < group_->size(); ++r) {
    if (fused_.call->awaits(r)) ranks.push_back(r);
  }
  for (std::uint32_t i = 0; i < run_.steps().size(); ++i) {
    const Step& step = run_.steps()[i];
    if (run_.message(i) && step.peer != rank_) ranks.push_back(step.peer);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string text;
  constexpr std::size_t shown = 8;
  for (std::size_t i = 0; i < ranks.size() && i < shown; ++i) text += (i > 0 ? ", " : "") + group_->describe(ranks[i]);
  if (ranks.empty()) return fences_ != 0 ? "this rank's own fences or streams" : "this rank's own copies";
  if (ranks.size() > shown) text += " and " + std::to_string(ranks.size() - shown) + " more";
  return text;
}

void CollectiveWork::released() noexcept {
  areas_.release(*engine());
  if (library_) library_->release();
}

}  // namespace hmc
