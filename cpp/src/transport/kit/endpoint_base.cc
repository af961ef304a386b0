#include "transport/kit/endpoint_base.h"

#include <string>
#include <utility>

namespace hmc::kit {

Status EndpointBase::not_ready() const {
  if (state_ == State::failing) return Status(Code::would_block, std::string(failure_.message()));
  if (!failure_.ok()) return failure_;
  if (closed()) return Status(Code::closed, "the " + std::string(traits_.name) + " endpoint is closed");
  return Status(Code::invalid_argument, "the " + std::string(traits_.name) + " endpoint is not connected yet");
}

Status EndpointBase::check_signal(std::size_t bytes) const {
  if (bytes <= traits_.max_signal) [[likely]]
    return {};
  return Status(Code::invalid_argument,
                "a signal of " + std::to_string(bytes) + " bytes; at most " + std::to_string(traits_.max_signal));
}

Status EndpointBase::begin_connect(Completion* done) {
  if (closed() || !failure_.ok()) return not_ready();
  if (ready() || connecting_ != nullptr) {
    return Status(Code::invalid_argument, "the " + std::string(traits_.name) + " endpoint is connected already");
  }
  connecting_ = done;
  return {};
}

void EndpointBase::connected(const Status& outcome) {
  if (connecting_ == nullptr) return;
  if (outcome.ok()) state_ = State::ready;
  std::exchange(connecting_, nullptr)->complete(outcome);
}

Status EndpointBase::post(const TransferOp& transfer, Completion* done, bool is_put) {
  if (!ready()) [[unlikely]]
    return not_ready();
  HMC_ASSIGN(const std::size_t bytes, check_runs(transfer.runs));
  for (const Run& run : transfer.runs) {
    if (run.count != 0 && run.block != 0) HMC_TRY(check(run, is_put));
  }
  const ByteSpan signal = is_put ? transfer.signal : ByteSpan();
  if (!signal.empty()) {
    HMC_TRY(check_signal(signal.size()));
    if (waiting_.full()) return Status(Code::would_block, "too many attached signals wait for room");
  } else if (bytes == 0) {
    done->complete({});
    return {};
  }
  Operation& operation = operations_.add(is_put);
  operation.cursor = RunCursor(transfer.runs);
  operation.done = done;
  operation.after = transfer.after;
  operation.bytes = bytes;
  operation.level = transfer.level;
  operation.signal.assign(signal.begin(), signal.end());
  Status started = start(operation);
  if (!started.ok()) operations_.discard(operation);
  return started;
}

void EndpointBase::finish(Operation& operation) {
  OperationTable::Ended ended = operations_.take(operation);
  if (!operation.signal.empty() && operation.failure.ok()) attach(operation.signal, 0);
  if (!ready() && operation.failure.ok()) operation.failure = failure_.ok() ? not_ready() : failure_;  // sending it showed the loss
  operations_.complete(std::move(ended));
}

void EndpointBase::attach(ByteSpan signal, std::uint64_t put) {
  if (waiting_.empty() && send(signal, put)) return;
  waiting_.push(signal, put);
  engine_->kick();
}

bool EndpointBase::send_waiting() {
  bool sent = false;
  while (ready() && !waiting_.empty()) {
    ActiveMessageQueue::Message first = waiting_.pop();
    if (!send(first.body, first.put)) {
      if (ready()) waiting_.put_back(std::move(first));
      break;
    }
    sent = true;
  }
  return sent;
}

Status EndpointBase::flush(Completion* done) {
  if (!ready()) [[unlikely]]
    return not_ready();
  operations_.flush(done);
  return {};
}

Status EndpointBase::withdraw(Operation& operation) {
  if (!operation.started) return {};
  return Status(Code::unsupported, "part of the operation is in flight; it completes by itself");
}

Status EndpointBase::cancel(Completion* done) {
  Operation* const operation = operations_.find(done);
  if (operation == nullptr) return Status(Code::unsupported, "the operation is complete or completes by itself");
  HMC_TRY(withdraw(*operation));
  operation->failure = Status(Code::cancelled, "cancelled; " + std::to_string(operation->moved) + " of " +
                                                   std::to_string(operation->bytes) + " bytes were written to the target");
  operations_.complete(operations_.take(*operation));
  return {};
}

void EndpointBase::end_all(const Status& reason) {
  stop();
  waiting_.clear();
  if (connecting_ != nullptr) std::exchange(connecting_, nullptr)->complete(reason);
  operations_.end_all(reason);
}

void EndpointBase::fail(const Status& reason) {
  if (closed() || !failure_.ok()) return;
  const auto keep = shared_from_this();
  const bool was_ready = ready();
  failure_ = reason;
  state_ = was_ready ? State::failing : State::failed;
  end_all(reason);
  if (state_ != State::failing) return;
  engine_->defer([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || self->state_ != State::failing) return;
    self->state_ = State::failed;
    self->sink_->on_failed(self->failure_);
  });
}

void EndpointBase::close() {
  if (closed()) return;
  state_ = State::closed;
  end_all(Status(Code::closed, "the " + std::string(traits_.name) + " endpoint was closed"));
}

}  // namespace hmc::kit
