#include "comm/session/control_link.h"

#include <utility>

#include "comm/context_impl.h"
#include "comm/peer_impl.h"

namespace hmc {
namespace {

// For the channel to send what is queued.
constexpr double goodbye_seconds = 1;

class SilentSink final : public ChannelSink {
  void on_message(MessageType, ByteSpan, std::vector<UniqueFd>) override {}
  void on_closed(const Status&) override {}
};

}  // namespace

void ControlLink::attach(std::unique_ptr<Channel> channel) {
  channel_ = std::move(channel);
  peer_.identify(channel_->identity());
  channel_->set_sink(peer_.input());
}

void ControlLink::refuse() {
  static SilentSink silent;  // stateless: what the refused channel still says is nobody's business
  channel_->set_sink(silent);
  peer_.impl().engine()->defer([channel = std::shared_ptr<Channel>(std::move(channel_))] {});
  channel_ = nullptr;
}

void ControlLink::on_closed(const Status& reason) {
  over_ = true;
  broken_ = reason.code() != Code::closed && reason.code() != Code::peer_lost;
}

bool ControlLink::holds() const {
  if (peer_.is_self() || !peer_.identity().same_host) return false;
  return peer_.grants().accessible() || peer_.impl().messenger().holds(peer_);
}

void ControlLink::end(bool goodbye) {
  if (peer_.imports().holds() != 0) {
    goodbye_ = goodbye;
    return;
  }
  const bool open = channel_ && !over_;
  if (open && holds()) {
    channel_->await_end(goodbye);  // the sink's on_closed() follows
  } else if (open && goodbye) {
    channel_->close();
    timer_.start(Deadline::after_seconds(goodbye_seconds), [this] { drop(); });  // unless on_closed() comes first
  } else {
    drop();
  }
}

void ControlLink::on_holds_over() {
  if (goodbye_) end(*std::exchange(goodbye_, std::nullopt));
}

void ControlLink::drop() {
  goodbye_.reset();
  const auto engine = peer_.impl().engine();
  timer_.stop();
  if (broken_ && holds() && !death_) {
    auto death = ProcessEnd::watch(engine, peer_.identity().pid, [this] {
      const auto keep = peer_.shared_from_this();
      broken_ = false;
      peer_.impl().engine()->defer([death = std::shared_ptr<ProcessEnd>(std::move(death_))] {});
      drop();
    });
    if (death) death_ = std::move(death);  // null: it is dead already
  }
  if (!death_) {
    peer_.impl().messenger().on_peer_let_go(peer_);
    peer_.grants().drop(true);
  }
  if (channel_) {
    engine->defer([channel = std::shared_ptr<Channel>(std::move(channel_)), keep = peer_.shared_from_this()] {});
    channel_ = nullptr;
  }
  peer_.impl().peers().forget(peer_);
  engine->wake_waiters();
}

void ControlLink::drop_now(std::vector<std::shared_ptr<const void>>& kept) {
  if (peer_.imports().holds() != 0 && channel_) kept.push_back(std::shared_ptr<const Channel>(std::move(channel_)));
  death_.reset();
  broken_ = false;
  drop();
}

}  // namespace hmc
