// Where the memory here is the CPU's: the peer's device copies.
#include <algorithm>
#include <utility>

#include "transport/ipc/endpoint.h"

namespace hmc::ipc {

// Asks for as many blocks as one signal takes. would_block: an ask must end first, or the carrier or the channel is full.
Status IpcEndpoint::ask(Op& op) {
  const auto place = std::ranges::find(asks_, nullptr);
  op.refused = false;
  if (place == asks_.end() || !answers_.empty() || !outbox_.empty()) return would_block();
  const Run& run = op.cursor.run();
  HMC_ASSIGN(const std::uint64_t memory, announce(static_cast<const HostRegion&>(*run.local), !op.is_put));
  Ask ask;
  ask.number = static_cast<std::uint32_t>(place - asks_.begin());
  ask.put = op.is_put;
  ask.memory = memory;
  ask.region = static_cast<const ImportedRegion&>(*run.remote).number();
  ask.block = run.block;
  const std::size_t first = op.cursor.block_index();
  const std::size_t room = (max_ask_ - Ask::encoded(0, 0)) / 16;
  const std::size_t count = std::min(run.count - first, room);
  ask.memory_offsets.assign(run.local_offsets + first, run.local_offsets + first + count);
  ask.region_offsets.assign(run.remote_offsets + first, run.remote_offsets + first + count);
  RunCursor next = op.cursor;
  next.advance_blocks(count);
  // The signal need not wait for the answer where one ask is all.
  const bool all = !op.started && next.at_end() && Ask::encoded(count, op.signal.size()) <= max_ask_;
  if (all) ask.signal = op.signal;
  const Status sent = carrier().signal_own(encode(ask));
  op.refused = sent.code() == Code::would_block;
  HMC_TRY(sent);
  if (all) op.signal.clear();
  op.started = true;
  op.cursor = next;
  ++op.in_flight;
  *place = &op;
  --free_asks_;
  return {};
}

bool IpcEndpoint::serve() {
  std::vector<Server::Finished> finished;
  const bool moved = server_.poll(finished);
  for (auto& each : finished) answers_.push_back(std::move(each.answer));
  if (!finished.empty()) send_outbox();
  for (const auto& each : finished) {
    if (!stopped() && !each.signal.empty()) sink_->on_signal(each.signal);
  }
  return moved;
}

Status IpcEndpoint::on_message(ByteSpan bytes) {
  auto message = decode(bytes);
  if (!message) return {Code::protocol, "the peer sent a malformed message of ipc"};
  if (auto* ask = std::get_if<Ask>(&*message)) {
    const bool taken = std::ranges::count(answers_, ask->number, &Answer::number) != 0;
    if (taken) return {Code::protocol, "the peer asked by a number whose answer it has not taken"};
    return server_.on_ask(std::move(*ask), memories_, channel_);
  }
  if (const auto* gone = std::get_if<Forget>(&*message)) return memories_.forget(gone->memory, channel_);
  const auto& answer = std::get<Answer>(*message);
  Op* const op = std::exchange(asks_[answer.number], nullptr);
  if (op == nullptr) return {Code::protocol, "the peer answered what it was not asked"};
  --op->in_flight;
  ++free_asks_;
  if (answer.code != Code::ok) op->copies.refuse(Status(answer.code, "at the peer: " + answer.message));
  return {};
}

}  // namespace hmc::ipc
