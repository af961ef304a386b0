#include "collective/fused/calls.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "collective/execute.h"
#include "collective/group.h"
#include "collective/world.h"
#include "comm/counters.h"
#include "hmc/interrupt.h"
#include "progress/futex.h"

namespace hmc::fused {
namespace {

// Bytes that one look moves, about: as long as the engine lock may be held.
constexpr std::size_t bytes_per_poll = 256 << 10;

// Calls of a rank that its device has been given: so many that a caller who works ahead of the device rarely waits for it
// (Call::patience), and fewer than a device's queue takes.
constexpr std::size_t most_on_device = 64;

// A wait with the engine lock held: polls as long as the engine would. Where threads outnumber cores it then leaves the core to the
// other ranks, again and again: that is when they announce, and looks at everything else in between cost more than the call.
class ShortWait {
 public:
  explicit ShortWait(Posting& posting) noexcept : posting_(posting), looks_(posting.wait_policy().rounds()) {}
  // Waits a little. False: long enough.
  bool goes_on() {
    if (posting_.contended()) return false;
    if (looks_ > 0) {
      --looks_;
      cpu_relax();
      return true;
    }
    if (!posting_.wait_policy().shared()) return false;
    const Deadline::Clock::time_point now = Deadline::Clock::now();
    if (!std::exchange(yields_, true)) {
      until_ = now + most_yielding;
      if (auto* const caller = Interruptible::current()) caller->before_waiting();
    }
    if (now >= until_) return false;
    posting_.wait_policy().yield();
    return true;
  }

 private:
  // Less than a time slice. Sixteen ranks on two cores take a tenth of it; with a limit near that, one late rank makes all late.
  static constexpr auto most_yielding = std::chrono::milliseconds(1);
  Posting& posting_;
  unsigned looks_;
  bool yields_ = false;
  Deadline::Clock::time_point until_ = {};
};

void count(Group& group, std::uint64_t bytes_taken) {
  Counters& counters = group.context().counters();
  counters.add("fused.count", 1);
  counters.add("fused.bytes", bytes_taken);
}

// Calls of that kind that differ in their sizes only are errors of the ranks that see a difference.
bool is_lenient(std::uint32_t call) noexcept { return (call & call_kind_mask) < first_exact_kind; }

}  // namespace

void Calls::use(std::shared_ptr<Segment> segment) {
  devices_.use(segment->slots());
  natives_.boards().use(segment->slots());
  const auto lock = group_.engine()->lock();
  segment_ = std::move(segment);
  next_chunk_.assign(group_.size(), 0);
  reserved_.assign(group_.size(), false);
  stopped_devices_.assign(group_.size(), {});
  shots_.assign(group_.size(), {});
  on_device_.assign(group_.size(), 0);
  group_.engine()->add(*this);
  possible_.store(true);
}

void Calls::announce(std::uint32_t rank, std::uint64_t sequence, std::uint32_t call) {
  if (!segment_) return;
  announce_other(slots().board(rank), sequence, call);
  wake_others();
}

std::shared_ptr<Call> Calls::post(std::uint32_t rank, std::uint64_t sequence, std::uint32_t call, Way way,
                                  const CollectiveBuffers& buffers, bool announced) {
  if (!reserved_[rank]) reserved_[rank] = segment_->reserve(rank).ok();
  std::uint32_t ways = (way.on_device ? by_mapped : 0) | (way.by_library ? by_native : 0);
  const Algorithm named = algorithm_of(call);
  const bool cpu_memory = buffers.in.device.is_cpu() && buffers.out.device.is_cpu();
  if (cpu_memory && reserved_[rank] && way.through_slots && named != Algorithm::mapped && named != Algorithm::native) ways = by_cpu;
  std::uint64_t bytes = way.bytes;
  if (way.chunks) {
    for (const Part& part : way.chunks->parts) bytes += part.bytes;
  }
  auto posted = std::make_shared<Call>(*this, rank, Announced{sequence, bytes, call, ways}, std::move(way), buffers);
  posted->accepted();
  waiting_.push_back(posted);
  if (announced) {
    posted->announced_ = true;
  } else if (is_next(waiting_.size() - 1) && can_announce(*posted)) {
    announce(*posted);
  }
  group_.engine()->kick();
  return posted;
}

Result<Calls::AtOnce> Calls::at_once(std::uint32_t rank, std::uint32_t call, const Way& way, const CollectiveBuffers& buffers,
                                     std::uint64_t& sequence) {
  const Algorithm named = algorithm_of(call);
  const bool by_slots = named != Algorithm::mapped && named != Algorithm::native;
  const bool possible = segment_ && by_slots && !way.in_chunks() && reserved_[rank] && buffers.in.device.is_cpu() &&
                        buffers.out.device.is_cpu() && on_device_[rank] == 0 &&
                        std::ranges::none_of(waiting_, [&](const auto& earlier) { return earlier->rank_ == rank; }) &&
                        shots_[rank].can_publish(slots());
  if (!possible) return AtOnce::not_possible;
  HMC_ASSIGN(sequence, group_.next_sequence(rank));
  shots_[rank].publish(slots(), rank, {sequence, way.bytes, call, by_cpu}, way, buffers);
  wake_others();
  ShortWait wait(group_.engine()->posting());
  for (std::uint32_t r = 0; r < slots().ranks(); ++r) {
    if (r == rank) continue;
    auto theirs = in_one_shot_under(slots().board(r), sequence);
    while (!theirs && wait.goes_on()) theirs = in_one_shot_under(slots().board(r), sequence);
    if (!theirs || theirs->call != call || theirs->bytes != way.bytes || theirs->ways != by_cpu) return AtOnce::announced;
  }
  count(group_, OneShots::finish(slots(), rank, sequence, way, buffers));
  pass(slots().board(rank), sequence);
  return AtOnce::done;
}

bool Calls::can_announce(const Call& call) noexcept {
  if (!call.way_.in_chunks()) return shots_[call.rank_].can_publish(slots());
  const std::uint64_t replaced = next_entry(slots().board(call.rank_)).number.load(std::memory_order_relaxed);
  if (replaced == 0 || others_are_past(slots(), call.rank_, replaced - 1)) return true;
  return std::ranges::none_of(
      given_, [&](const auto& earlier) { return earlier->rank_ == call.rank_ && earlier->own_.sequence + 1 == replaced; });
}

void Calls::announce(Call& call) {
  if (call.way_.in_chunks()) {
    announce_fused(slots().board(call.rank_), call.own_);
  } else {
    shots_[call.rank_].publish(slots(), call.rank_, call.own_, call.way_, call.buffers_);
  }
  call.announced_ = true;
  wake_others();
}

Calls::Agreed Calls::agreement(const Call& call) {
  const Announced& own = call.own_;
  std::uint32_t ways = own.ways;
  bool declined = false, awaited = false;
  for (std::uint32_t r = 0; r < slots().ranks(); ++r) {
    if (r == call.rank_) continue;
    const Board& board = slots().board(r);
    const bool beyond = is_beyond(board, own.sequence);
    auto theirs = in_chunks_under(board, own.sequence), elsewhere = in_one_shot_under(board, own.sequence);
    if (!call.way_.in_chunks()) std::swap(theirs, elsewhere);
    auto other = other_call(board, own.sequence);
    if (elsewhere) other = elsewhere->call;
    if (theirs && (different_calls(own.call, theirs->call) || own.bytes != theirs->bytes)) other = theirs->call;
    // Blocks of other sizes, of which messages tell each rank, and go on.
    if (other && is_lenient(own.call) && !different_calls(own.call, *other)) {
      declined = true;
      continue;
    }
    if (other) {
      if (CollectiveWork* const work = group_.running().find(call.rank_, own.sequence)) work->mismatch(r, *other);
      return {Agreement::broken};
    }
    if (theirs) ways &= theirs->ways;
    declined = declined || (!theirs && beyond);
    awaited = awaited || (!theirs && !beyond);
  }
  return {declined || ways == 0 ? Agreement::declined : awaited ? Agreement::awaited : Agreement::reached, ways};
}

bool Calls::advance(const std::shared_ptr<Call>& call) {
  // Looked at first: whoever has given up because of another collective has seen that one announced, so it is seen here as well.
  const std::optional<std::uint32_t> lost = abandoned_by(*call);
  if (!call->announced_ && can_announce(*call)) announce(*call);
  if (call->announced_ && !call->passing_ && !call->device_work_) {
    const auto [agreed, ways] = agreement(*call);
    if (agreed == Agreement::broken) return false;
    if (agreed == Agreement::declined) {
      shots_[call->rank_].declined(call->own_.sequence);
      if (call->may_be_on_device()) devices_.decline(call->rank_);
      end(call, Status(Code::unsupported, "a rank cannot take part in a fused call"));
      return true;
    }
    if (agreed == Agreement::reached && ways != by_cpu) {
      if (call->advance_on_device(ways)) return true;
    } else if (agreed == Agreement::reached && !call->way_.in_chunks()) {
      count(group_, OneShots::finish(slots(), call->rank_, call->own_.sequence, call->way_, call->buffers_));
      end(call, {});
      return true;
    } else if (agreed == Agreement::reached) {
      call->begin_passing();
    }
  }
  const bool moved = call->passing_ && advance_passing(*call);
  if (call->passing_ && call->passing_->done()) {
    end(call, {});
    return true;
  }
  if (!moved && lost) {
    const Status closed(Code::closed, group_.describe(*lost) + " has ended this collective, or has closed the Communicator");
    if (call->device_work_) {
      call->end_on_device(closed);
      return false;
    }
    end(call, closed);
    return true;
  }
  return moved;
}

bool Calls::advance_passing(Call& call) {
  const bool moved = call.passing_->advance(bytes_per_poll);
  if (moved) wake_others();
  if (call.passing_->done()) {
    next_chunk_[call.rank_] = call.passing_->end();
    count(group_, call.passing_->bytes_taken());
  }
  return moved;
}

std::optional<std::uint32_t> Calls::abandoned_by(const Call& call) const noexcept {
  for (std::uint32_t r = 0; r < slots().ranks(); ++r) {
    const std::uint64_t from = slots().board(r).gave_up.load(std::memory_order_seq_cst);
    if (from != 0 && from - 1 <= call.own_.sequence && call.needs(r)) return r;
  }
  return std::nullopt;
}

void Calls::end(const std::shared_ptr<Call>& call, const Status& status) {
  auto& calls = call->device_work_ ? given_ : waiting_;
  if (const auto found = std::ranges::find(calls, call); found != calls.end()) {
    calls.erase(found);
    if (call->device_work_) --on_device_[call->rank_];
  }
  if (call->announced_) pass(slots().board(call->rank_), call->own_.sequence);
  call->settled_.store(1, std::memory_order_release);
  call->complete(status);
}

void Calls::give_up(std::uint32_t rank, std::uint64_t from) {
  std::atomic<std::uint64_t>& gave_up = slots().board(rank).gave_up;
  const std::uint64_t before = gave_up.load(std::memory_order_relaxed);
  if (before == 0 || from + 1 < before) gave_up.store(from + 1, std::memory_order_seq_cst);
  wake_others();
}

void Calls::compare() {
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    const Call& call = *waiting_[i];
    if (is_next(i) && call.announced_ && !call.passing_) static_cast<void>(agreement(call));
  }
}

void Calls::leave() {
  if (!segment_) return;
  for (const std::uint32_t rank : group_.local()) give_up(rank, 0);
  group_.engine()->remove(*this);
}

bool Calls::is_next(std::size_t index) const noexcept {
  const std::uint32_t rank = waiting_[index]->rank_;
  for (std::size_t i = 0; i < index; ++i) {
    if (waiting_[i]->rank_ == rank) return false;
  }
  return on_device_[rank] < most_on_device;
}

// Ends run code that may post and cancel calls. At worst one is looked at twice, or at the next poll. Many calls may be under way:
// as is_next() says, only the first waiting one of each rank is looked at.
bool Calls::poll() {
  if (!busy()) return false;
  bool moved = false;
  bool some_gave_up = false;
  for (std::uint32_t r = 0; r < slots().ranks(); ++r)
    some_gave_up = some_gave_up || slots().board(r).gave_up.load(std::memory_order_seq_cst) != 0;
  // What a device has been given changes by itself, unless a rank has given up.
  for (std::size_t i = 0; some_gave_up && i < given_.size();) {
    const auto call = given_[i];
    if (advance(call)) moved = true;
    if (i < given_.size() && given_[i] == call) ++i;
  }
  std::uint32_t awaiting = 0;                 // bit r: rank r's next call does
  std::size_t ranks = group_.local().size();  // without such a bit
  static_assert(max_ranks <= 32);
  for (std::size_t i = 0; i < waiting_.size() && ranks != 0;) {
    const std::uint32_t rank = waiting_[i]->rank_, bit = 1U << rank;
    if ((awaiting & bit) == 0 && on_device_[rank] < most_on_device) {
      const auto call = waiting_[i];
      if (advance(call)) moved = true;
      if (i >= waiting_.size() || waiting_[i] != call) continue;
    }
    if ((awaiting & bit) == 0) --ranks;
    awaiting |= bit;
    ++i;
  }
  return moved;
}

bool Calls::arm() {
  if (!busy()) return true;
  armed_ = true;
  for (const std::uint32_t rank : group_.local()) slots().board(rank).armed.exchange(1, std::memory_order_seq_cst);
  for (const auto& call : given_) {
    if (abandoned_by(*call)) return false;
  }
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    Call& call = *waiting_[i];
    if (!is_next(i)) continue;
    if (abandoned_by(call) || can_advance(call)) return false;
  }
  return true;
}

bool Calls::can_advance(Call& call) {
  if (!call.announced_) return can_announce(call);
  if (call.passing_) return call.passing_->can_advance();
  const auto [agreed, ways] = agreement(call);
  return agreed == Agreement::reached && ways != by_cpu ? call.can_advance_on_device(ways) : agreed != Agreement::awaited;
}

void Calls::disarm() {
  if (!std::exchange(armed_, false)) return;
  for (const std::uint32_t rank : group_.local()) slots().board(rank).armed.exchange(0, std::memory_order_seq_cst);
}

void Calls::wake_others() {
  for (std::uint32_t r = 0; r < slots().ranks(); ++r) {
    std::atomic<std::uint32_t>& armed = slots().board(r).armed;
    if (armed.load(std::memory_order_seq_cst) == 0) continue;
    const auto& peer = group_.rank(r).peer;
    if (peer->is_self() || armed.exchange(0, std::memory_order_seq_cst) == 0) continue;
    // Its engine looks at everything when something comes; what it is does not matter. A peer that is gone sleeps no more.
    peer->when_ready([peer](const Status& ready) {
      if (ready.ok()) static_cast<void>(peer->send_control(control_look, {}));
    });
  }
}

}  // namespace hmc::fused
