#include "collective/library_call.h"

#include <utility>
#include <variant>

#include "collective/execute.h"
#include "comm/counters.h"

namespace hmc {

LibraryCall::LibraryCall(CollectiveWork& work, native::Request request, Areas buffers)
    : work_(work), buffers_(std::move(buffers)), part_(*work.group_, work.rank_, std::move(request), buffers_.buffers().after) {}

std::shared_ptr<CollectiveWork> LibraryCall::work() const {
  return std::static_pointer_cast<CollectiveWork>(work_.shared_from_this());
}

void LibraryCall::begin() {
  part_.begin([this] { work_.advance_soon(); });
}

void LibraryCall::release() noexcept { buffers_.release(*work_.engine()); }

bool LibraryCall::next() {
  if (over_ || part_.waits()) return false;
  auto next = part_.next();
  if (auto* const messages = std::get_if<native::Part::Messages>(&next)) {
    work_.areas_ = Areas(messages->buffers, 0);
    work_.run_ = ScheduleRun(std::move(messages->schedule));
    work_.run_.begin();
    return true;
  }
  if (const auto* const awaited = std::get_if<std::shared_ptr<WorkState>>(&next)) {
    (*awaited)->on_complete_locked([work = work(), this](const Status& status) { ended(status); });
    if (part_.on_device()) look_for_losses();
  } else if (const auto* const refused = std::get_if<Status>(&next)) {
    over_ = true;
    work_.outcome_ = library_refused(*work_.group_, work_.call_, *refused);
  }
  return false;
}

// Of a process that died after it had agreed there is no more news, and the library waits for it.
void LibraryCall::look_for_losses() {
  const Group& group = *work_.group_;
  for (std::uint32_t r = 0; r < group.size(); ++r) {
    const PeerState& peer = *group.rank(r).peer;
    if (peer.phase() == PeerPhase::lost) return work_.fail(peer.failure().with_context(group.describe(r)));
  }
}

void LibraryCall::wait(std::uint32_t index) {
  const auto joining = part_.joining();
  work_.run_.posted(index, joining);
  joining->on_complete_locked([work = work(), this, index](const Status& status) { joined(index, status); });
}

// Inside its completion, or right after the post.
void LibraryCall::joined(std::uint32_t index, const Status& status) {
  part_.joined(status);
  const auto joining = work_.run_.take_message(index);
  work_.run_.finish(index);
  if (work_.posting_) return;
  work_.failing_ ? work_.end_if_done() : work_.advance_soon();
}

// Inside its completion, or right after the post.
void LibraryCall::ended(const Status& status) {
  const bool by_device = part_.on_device();
  part_.ended(status);
  over_ = by_device;
  if (by_device && status.ok()) work_.group_->context().counters().add("native.count", 1);
  if (by_device && !status.ok()) work_.fail(status);
  if (!work_.posting_) by_device || work_.failing_ ? work_.end_if_done() : work_.advance_soon();
}

}  // namespace hmc
