#include "transport/verbs/messages.h"

#include <algorithm>

namespace hmc::verbs {

// Beside the slots for signals and credit: every rail can be told by every other that one has been left, and reconnected.
Status MessageMemory::allocate(unsigned rails) {
  notes_ = rails > 1 ? 2 * rails : 0;
  receives_ = slots + rails * notes_;
  reserved_ = spare_slots + rails * notes_ / 2;
  sends_ = credits + reserved_;
  pages_.reset(static_cast<std::byte*>(std::aligned_alloc(slot_bytes, (receives_ + sends_) * slot_bytes)));
  sink_.reset(static_cast<std::byte*>(std::aligned_alloc(slot_bytes, slot_bytes)));
  if (!pages_ || !sink_) return Status(Code::out_of_memory, "no memory for the messages of a peer");
  for (unsigned slot = sends_; slot-- > 0;) free_sends.push_back(slot);
  for (unsigned slot = receives_; slot-- > 0;) free_receives.push_back(slot);
  return {};
}

Result<MessageKeys> MessageMemory::register_with(const Nic& nic) {
  auto known = std::ranges::find(registered_, &nic, &Registered::nic);
  if (known == registered_.end()) {
    known = registered_.insert(known, {&nic, nullptr, nullptr});
    HMC_ASSIGN(known->memory, nic.register_memory(pages_.get(), (receives_ + sends_) * slot_bytes, IBV_ACCESS_LOCAL_WRITE));
    HMC_ASSIGN(known->sink, nic.register_memory(sink_.get(), slot_bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  }
  return MessageKeys{known->memory->lkey, known->sink->lkey, known->sink->rkey};
}

void MessageMemory::deregister() {
  for (const Registered& each : registered_) {
    for (ibv_mr* handle : {each.memory, each.sink}) {
      if (handle != nullptr && !each.nic->forked()) each.nic->api().dereg_mr(handle);
    }
  }
  registered_.clear();
}

}  // namespace hmc::verbs
