#include "collective/native/part.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/log.h"
#include "base/wire.h"
#include "collective/group.h"
#include "collective/schedule_builder.h"

namespace hmc::native {
namespace {

constexpr std::size_t offer_bytes = 512;
constexpr std::size_t longest_text = 64, longest_reason = 160;
constexpr std::uint8_t rounds_of_join = 64;  // from here on; among 2^32 ranks those of offers are 64
constexpr std::byte unsaid{0}, yes{1}, no{2}, after_a_no{3};

// wire{u8 1: able to make the call, u32 version, text host, text card, text why it is not, raw number of the communicator: of rank
// 0}, then zeros.
struct Offered {
  bool able = false;
  Offer offer;
  std::string why;
  UniqueId id{};
};

std::vector<std::byte> encode(const Offered& offered) {
  Bytes bytes;
  WireWriter(bytes)
      .u8(offered.able ? 1 : 0)
      .u32(offered.offer.version)
      .text(offered.offer.host.substr(0, longest_text))
      .text(offered.offer.card.substr(0, longest_text))
      .text(offered.why.substr(0, longest_reason))
      .raw(std::as_bytes(std::span(offered.id.bytes)));
  bytes.resize(offer_bytes);
  return {bytes.begin(), bytes.end()};
}

Result<Offered> decode(std::span<const std::byte> block) {
  WireReader reader(block);
  Offered found;
  found.able = reader.u8() == 1;
  found.offer.version = reader.u32();
  found.offer.host = reader.text(longest_text);
  found.offer.card = reader.text(longest_text);
  found.why = reader.text(longest_reason);
  const auto id = reader.raw(sizeof found.id.bytes);
  if (!reader.ok()) return Status(Code::protocol, "malformed offer of a device");
  std::memcpy(found.id.bytes, id.data(), sizeof found.id.bytes);
  return found;
}

}  // namespace

// What the thread of the rank's RankCommunicator does. It may go on after this has ended.
class Part::Joining final : public WorkState {
 public:
  static std::shared_ptr<Joining> begin(const Group& group) {
    auto made = std::make_shared<Joining>(group);
    made->accepted();
    return made;
  }
  explicit Joining(const Group& group) : WorkState(group.engine()) {}  // use begin()
  // Engine lock not held.
  void over(const Status& status, const UniqueId& made = {}) {
    const auto lock = engine()->lock();
    if (done()) return;
    id = made;
    complete(status);
    engine()->kick();
  }
  Status cancel_locked() override {
    complete(Status(Code::cancelled, "cancelled"));
    return {};
  }
  UniqueId id{};
};

Part::Part(Group& group, std::uint32_t rank, Request request, RankCommunicator::Points after)
    : group_(group), rank_(rank), call_(std::move(request.call)), after_(std::move(after)) {}

std::uint8_t Part::first_round() const noexcept { return stage_ == Stage::joining ? rounds_of_join : 0; }

std::shared_ptr<WorkState> Part::joining() const noexcept { return joining_; }

Ranks& Part::ranks() const noexcept { return group_.fused().natives(); }

void Part::begin(std::function<void()> resume) {
  resume_ = std::move(resume);
  ranks().turns(rank_).push_back(this);
}

void Part::ended(const Status& outcome) noexcept {
  waits_ = false;
  outcome_ = outcome;
  if (on_device()) stage_ = Stage::over;
}

void Part::leave_turn() noexcept {
  auto& turns = ranks().turns(rank_);
  const auto own = std::ranges::find(turns, this);
  if (own == turns.end()) return;
  const bool first = own == turns.begin();
  turns.erase(own);
  if (!first || turns.empty()) return;
  turns.front()->waits_ = false;
  turns.front()->resume_();
}

Part::Next Part::next() {
  switch (stage_) {
    case Stage::turn:
      return begin_turn();
    case Stage::number:
      return offer(outcome_.ok());
    case Stage::offers:
      return judge();
    case Stage::joining:
      return connected();
    case Stage::agreeing:
      if (const std::string refused = unable(); !refused.empty())
        return end(Status(Code::unsupported, refused + " cannot make this call"));
      return start();
    case Stage::device:
    case Stage::over:
      break;
  }
  return end(Status(Code::unsupported, "the call is over"));
}

Part::Next Part::begin_turn() {
  waits_ = ranks().turns(rank_).front() != this;
  if (waits_) return Turn{};
  const Standing standing = ranks().standing(rank_);
  if (standing == Standing::connected || standing == Standing::refused) {  // refused: the messages show who is in another call
    stage_ = Stage::agreeing;
    return to_all({call_ && standing == Standing::connected ? yes : no});
  }
  if (rank_ != 0 || !call_) return offer(call_.has_value());
  stage_ = Stage::number;
  waits_ = true;
  joining_ = Joining::begin(group_);
  ranks().communicator(rank_)->make_number(
      [joining = joining_](const Result<UniqueId>& id) { joining->over(id.status(), id.ok() ? *id : UniqueId{}); });
  return joining_;
}

Part::Next Part::offer(bool able) {
  Offered own{able, {}, "", joining_ ? joining_->id : UniqueId{}};
  if (able) own.offer = ranks().offer(rank_);
  if (const Status why = ranks().obstacle(); !able && !why.ok()) own.why = why.message();
  stage_ = Stage::offers;
  return to_all(encode(own));
}

Part::Next Part::judge() {
  std::vector<Offer> offers;
  UniqueId id{};
  for (std::uint32_t r = 0; r < group_.size(); ++r) {
    const auto offered = decode(block(r));
    if (!offered.ok()) return end(Status(Code::unsupported, group_.describe(r) + ": " + std::string(offered.status().message())));
    if (!offered->able) {
      return end(Status(Code::unsupported,
                        group_.describe(r) + " cannot make this call" + (offered->why.empty() ? "" : ": " + offered->why)));
    }
    if (r == 0) id = offered->id;
    offers.push_back(offered->offer);
  }
  if (const Status fits = ranks().check(offers); !fits.ok()) {
    ranks().stand(rank_, Standing::refused);
    ranks().refuse(fits);
    return end(fits);
  }
  joining_ = Joining::begin(group_);
  ranks().communicator(rank_)->connect(id, [joining = joining_](const Status& status) { joining->over(status); });
  return join();
}

// All receive from all at once, and tell all once this rank has joined, or one has told that it could not: ranks that wait for that
// one in the library do not come out.
Part::Next Part::join() {
  stage_ = Stage::joining;
  ScheduleBuilder plan;
  for (std::uint32_t r = 0; r < group_.size(); ++r) {
    if (r != rank_) plan.receive(r, 0, {Area::out, r}, 1);
  }
  const auto joined = plan.wait(rank_);
  for (std::uint32_t r = 0; r < group_.size(); ++r) {
    if (r != rank_) plan.order(joined, plan.send(r, 0, {Area::in, 0}, 1));
  }
  return between({unsaid}, plan.finish());
}

void Part::received() noexcept {
  if (stage_ != Stage::joining || std::ranges::find(all_, no) == all_.end()) return;
  joining_->complete(Status(Code::unsupported, "another rank did not connect"));
}

void Part::joined(const Status& status) {
  const bool other = std::ranges::find(all_, no) != all_.end();
  own_[0] = all_[rank_] = status.ok() ? yes : other ? after_a_no : no;
  if (own_[0] == no) ranks().refuse(status.with_context(group_.describe(rank_)));
}

Part::Next Part::connected() {
  const std::string refused = unable();
  ranks().stand(rank_, refused.empty() ? Standing::connected : Standing::refused);
  if (refused.empty()) return start();
  const Status why(Code::unsupported, refused + " did not connect");
  ranks().refuse(why);
  return end(why);
}

std::string Part::unable() const {
  for (const std::byte last : {after_a_no, yes}) {
    for (std::uint32_t r = 0; r < group_.size(); ++r) {
      const std::byte said = block(r).front();
      if (said != yes && said != last) return group_.describe(r);
    }
  }
  return {};
}

Part::Next Part::to_all(std::vector<std::byte> own) {
  const std::vector<std::uint64_t> counts(group_.size(), own.size());
  return between(std::move(own), plan_all_gather(rank_, group_.size(), counts));
}

Part::Next Part::between(std::vector<std::byte> own, Schedule&& schedule) {
  own_ = std::move(own);
  all_.assign(own_.size() * group_.size(), unsaid);
  CollectiveBuffers buffers;
  buffers.in = {own_.data(), own_.size(), Device::cpu()};
  buffers.out = {all_.data(), all_.size(), Device::cpu()};
  return Messages{std::make_shared<const Schedule>(std::move(schedule)), std::move(buffers)};
}

std::span<const std::byte> Part::block(std::uint32_t rank) const noexcept {
  return std::span(all_).subspan(rank * own_.size(), own_.size());
}

Part::Next Part::start() {
  stage_ = Stage::device;
  waits_ = true;
  auto work = ranks().start(rank_, *call_, std::move(after_));
  leave_turn();
  return work;
}

Part::Next Part::end(const Status& status) {
  stage_ = Stage::over;
  leave_turn();
  return status;
}

std::string_view Part::awaited() const noexcept {
  if (!waits_) return {};
  return stage_ == Stage::turn ? "earlier collectives of this rank" : "the vendor's library";
}

void Part::stop() noexcept {
  if (stage_ == Stage::joining || on_device()) ranks().abort(rank_);
  leave_turn();
  // Else it would hold the collective, and so the group, until the library returns.
  if (joining_ && !joining_->done()) static_cast<void>(joining_->cancel_locked());
}

}  // namespace hmc::native
