#include "transport/staging/server.h"

#include <algorithm>

namespace hmc::staging {

Status Server::use_shared(const Geometry& geometry, UniqueFd fd) {
  HMC_ASSIGN(ring_, Ring::map(geometry, std::move(fd)));
  return {};
}

Status Server::use_mirror(const Geometry& geometry, Transport& carrier) {
  HMC_ASSIGN(ring_, Ring::allocate(geometry, false));
  HMC_ASSIGN(mirror_region_, carrier.register_region({.span = ring_->span()}));
  return {};
}

// Every number in the table is the peer's word.
Status Server::read_table(Task& task) {
  const Chunk& chunk = task.chunk;
  std::uint64_t left = chunk.bytes;
  for (std::size_t i = 0; i < chunk.entries; ++i) {
    const Entry entry = ring_->read_entry(chunk.slot, i);
    if (entry.bytes == 0 || entry.bytes > left) return Status(Code::protocol, "a staged chunk whose table does not add up");
    left -= entry.bytes;
    HMC_ASSIGN(auto region, shared_->regions->hold(entry.region, chunk.push));
    const DeviceSpan& span = region->view.span;
    if (entry.offset > span.bytes || entry.bytes > span.bytes - entry.offset) {
      return Status(Code::protocol, "a staged chunk outside its region");
    }
    task.copies.add(span, entry.offset, entry.bytes, std::move(region));
  }
  return left == 0 ? Status() : Status(Code::protocol, "a staged chunk whose table does not add up");
}

bool Server::on_chunk(const Chunk& chunk) {
  if (!ring_) return false;
  const Geometry& geometry = ring_->geometry();
  if (chunk.slot >= geometry.slots || chunk.entries > max_entries || chunk.bytes > geometry.chunk_bytes) return false;
  if (std::ranges::any_of(tasks_, [&](const Task& task) { return task.chunk.slot == chunk.slot && !task.sent; })) return false;
  Task& task = tasks_.emplace_back();
  task.chunk = chunk;
  task.failure = read_table(task);
  if (!task.failure.ok()) {
    task.copies.clear();
    return true;
  }
  for (const Device& device : task.copies.devices()) ring_->pin_for(device, chunk.slot);
  task.copies.start(ring_->payload(chunk.slot), !chunk.push, nullptr);
  return true;
}

bool Server::answer(Task& task, CarrierLink& carrier) {
  if (task.answer.empty()) {
    if (task.failure.ok()) task.failure = task.copies.outcome();
    task.copies.clear();
    task.answer = encode(Finished{task.chunk.slot, task.failure.code(), std::string(task.failure.message())});
    if (!task.chunk.push && task.failure.ok() && mirror_region_ && peer_ring_) {
      task.parcel.carry(*mirror_region_, *peer_ring_, ring_->slot_offset(task.chunk.slot), task.chunk.bytes);
    }
  }
  // One answer of a slot at a time is on its way: a peer may take it, and ask by the slot again, without acknowledging its bytes.
  const bool behind = std::ranges::any_of(
      tasks_, [&](const Task& other) { return other.chunk.slot == task.chunk.slot && other.parcel.under_way(); });
  if (!task.sent && !behind) task.sent = task.parcel.send(carrier, task.answer).ok();
  return task.sent;
}

bool Server::poll(CarrierLink& carrier) {
  bool moved = false;
  for (auto at = tasks_.begin(); at != tasks_.end();) {
    const bool over = at->sent || (at->copies.poll() && answer(*at, carrier));
    if (!over || at->parcel.under_way()) {
      ++at;
      continue;
    }
    at = tasks_.erase(at);
    moved = true;
  }
  return moved;
}

bool Server::copies() const noexcept {
  return std::ranges::any_of(tasks_,
                             [](const Task& task) { return task.answer.empty() || (task.sent && !task.parcel.under_way()); });
}

void Server::close() {
  tasks_.clear();
  peer_ring_.reset();
  mirror_region_.reset();
}

void Server::see_out() {
  for (Task& task : tasks_) task.copies.see_out();
}

}  // namespace hmc::staging
