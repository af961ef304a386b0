#include "transport/staging/pieces.h"

#include <sched.h>

#include <algorithm>

namespace hmc::staging {

void PieceCopies::add(const DeviceSpan& memory, std::uint64_t offset, std::size_t bytes, std::shared_ptr<ServedRegion> state) {
  Group* last = groups_.empty() ? nullptr : groups_.back().get();
  if (last == nullptr || last->block != bytes || last->memory.data != memory.data || last->state != state) {
    groups_.push_back(std::make_unique<Group>());
    last = groups_.back().get();
    last->memory = memory;
    last->state = std::move(state);
    last->block = bytes;
  }
  last->memory_offsets.push_back(offset);
  last->payload_offsets.push_back(bytes_);
  bytes_ += bytes;
  ++pieces_;
}

std::vector<Device> PieceCopies::devices() const {
  std::vector<Device> found;
  for (const auto& group : groups_) {
    if (std::ranges::find(found, group->memory.device) == found.end()) found.push_back(group->memory.device);
  }
  return found;
}

void PieceCopies::start(std::byte* payload, bool into_payload, const StreamPoint* after) {
  for (const auto& group : groups_) {
    auto runtime = runtime_for(group->memory.device);
    if (!runtime.ok()) {
      copies_.refuse(runtime.status());
      continue;
    }
    group->runtime = *runtime;
    CopyOp op;
    op.after = group->memory.device.is_cpu() ? nullptr : after;
    DeviceSpan memory = group->memory;
    DeviceSpan middle{payload, bytes_, Device::cpu()};
    if (group->memory_offsets.size() == 1) {
      memory = {static_cast<std::byte*>(memory.data) + group->memory_offsets[0], group->block, memory.device};
      middle = {payload + group->payload_offsets[0], group->block, Device::cpu()};
    } else {
      op.source_offsets = into_payload ? group->memory_offsets.data() : group->payload_offsets.data();
      op.target_offsets = into_payload ? group->payload_offsets.data() : group->memory_offsets.data();
      op.blocks = group->memory_offsets.size();
      op.block_bytes = group->block;
    }
    op.source = into_payload ? memory : middle;
    op.target = into_payload ? middle : memory;
    if (group->state) group->state->users.push_back(this);
    copies_.start(*group->runtime, op);
  }
}

bool PieceCopies::poll() {
  if (copies_.pending() == 0) return true;
  for (const auto& group : groups_) {
    if (group->runtime != nullptr) group->runtime->poll();
  }
  return copies_.pending() == 0;
}

void PieceCopies::see_out() {
  while (!poll()) sched_yield();
}

void PieceCopies::clear() {
  see_out();
  for (const auto& group : groups_) {
    if (group->state) std::erase(group->state->users, this);
  }
  groups_.clear();
  bytes_ = pieces_ = 0;
  copies_.reset();
}

}  // namespace hmc::staging
