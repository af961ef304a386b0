// PendingChannel: an authenticated channel that came in and has not said hello yet.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/context_impl.h"
#include "control/channel.h"

namespace hmc {

// Engine lock held throughout.
class PendingChannel final : public ChannelSink {
 public:
  PendingChannel(ContextImpl& context, std::unique_ptr<Channel> channel);
  ~PendingChannel();
  PendingChannel(const PendingChannel&) = delete;
  PendingChannel& operator=(const PendingChannel&) = delete;

  void on_message(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) override;
  void on_closed(const Status& reason) override;
  [[nodiscard]] Channel& channel() noexcept { return *channel_; }
  [[nodiscard]] std::unique_ptr<Channel> take() noexcept { return std::move(channel_); }

 private:
  ContextImpl& context_;
  std::unique_ptr<Channel> channel_;
  std::uint64_t timer_ = 0;
};

}  // namespace hmc
