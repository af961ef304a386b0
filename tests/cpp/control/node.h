// Node: a Context as control sees it (engine, listener, plane), with everything that arrives written down.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "control/channel.h"
#include "progress/engine.h"
#include "progress/listener.h"

namespace hmc::test {

constexpr double patience = 60;  // seconds until a test gives up

inline Bytes pattern(std::size_t size, std::uint32_t seed) {
  Bytes bytes(size);
  std::byte* const out = bytes.data();  // quick also without optimisation
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<std::byte>(i * 131 + seed + (i >> 8) * 7);
  return bytes;
}

// Written under the engine lock, read under it.
struct Link final : ChannelSink {
  struct Message {
    MessageType type;
    Bytes payload;
    std::vector<UniqueFd> fds;
  };
  void on_message(MessageType type, ByteSpan payload, std::vector<UniqueFd> fds) override {
    messages.push_back({type, Bytes(payload.begin(), payload.end()), std::move(fds)});
    if (react) react(messages.back());
  }
  void on_closed(const Status& reason) override {
    ++endings;
    end = reason;
    if (react_closed) react_closed();
  }
  std::unique_ptr<Channel> channel;
  std::vector<Message> messages;
  int endings = 0;
  Status end;
  std::function<void(Message&)> react;
  std::function<void()> react_closed;
};

class Node {
 public:
  struct Setup {
    std::string key;
    bool insecure = false;
    double heartbeat = 5;
    bool upgrade = true;
    std::string name = "node";
  };
  explicit Node(Setup setup) {
    engine = Engine::create(Progress::background).value();
    const auto held = engine->lock();
    listener = Listener::create(engine).value();
    ControlOptions options;
    random_bytes(std::as_writable_bytes(std::span(options.context_id)));
    id = options.context_id;
    options.name = setup.name;
    options.key = setup.key;
    options.insecure = setup.insecure;
    options.heartbeat_seconds = setup.heartbeat;
    options.same_host_upgrade = setup.upgrade;
    options.on_refused = [this](const Status& reason, std::string_view remote) {
      refused.push_back(reason);
      refused_remotes.emplace_back(remote);
    };
    auto made = ControlPlane::create(engine, *listener, std::move(options));
    EXPECT_TRUE(made.ok()) << made.status().str();
    plane = std::move(made).value();
    plane->on_accept([this](std::unique_ptr<Channel> channel) { accepted.push_back(adopt(std::move(channel))); });
  }
  Node() : Node(Setup{}) {}
  ~Node() {
    {
      const auto held = engine->lock();
      links.clear();
      plane.reset();
      listener.reset();
    }
    engine->stop();
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  Link* adopt(std::unique_ptr<Channel> channel) {
    links.push_back(std::make_unique<Link>());
    Link* link = links.back().get();
    link->channel = std::move(channel);
    link->channel->set_sink(*link);
    return link;
  }

  std::string listen(const std::string& address) {
    const auto held = engine->lock();
    auto bound = plane->listen(address);
    EXPECT_TRUE(bound.ok()) << bound.status().str();
    return bound.ok() ? bound.value() : std::string();
  }

  // Under the lock; false after `patience`.
  bool until(const std::function<bool()>& condition, double seconds = patience) {
    return engine->drive(Deadline::after_seconds(seconds), condition);
  }

  Result<Link*> connect(const std::string& address, double seconds = patience) {
    std::optional<Result<Link*>> outcome;
    {
      const auto held = engine->lock();
      plane->connect(address, Deadline::after_seconds(seconds), [&, this](Result<std::unique_ptr<Channel>> result) {
        EXPECT_FALSE(outcome.has_value()) << "told twice";
        if (result.ok()) {
          outcome.emplace(adopt(std::move(result).value()));
        } else {
          outcome.emplace(result.status());
        }
      });
      EXPECT_FALSE(outcome.has_value()) << "told inside connect()";
    }
    EXPECT_TRUE(until([&] { return outcome.has_value(); }, seconds + patience));
    if (!outcome) return Status(Code::timeout, "ready was never called");
    return *outcome;
  }

  // The next channel that a client made to us.
  Link* accept() {
    Link* link = nullptr;
    EXPECT_TRUE(until([&] {
      if (taken < accepted.size()) link = accepted[taken++];
      return link != nullptr;
    })) << "no client arrived";
    return link;
  }

  Status send(Link* link, MessageType type, ByteSpan payload, std::vector<UniqueFd> fds = {}) {
    const auto held = engine->lock();
    return link->channel->send(type, payload, std::move(fds));
  }
  void close(Link* link) {
    const auto held = engine->lock();
    link->channel->close();
  }
  PeerIdentity identity(Link* link) {
    const auto held = engine->lock();
    return link->channel->identity();
  }
  Code end_of(Link* link, double seconds = patience) {
    EXPECT_TRUE(until([&] { return link->endings > 0; }, seconds)) << "the channel did not end";
    const auto held = engine->lock();
    EXPECT_LE(link->endings, 1);
    return link->end.code();
  }

  std::shared_ptr<Engine> engine;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<ControlPlane> plane;
  ContextId id{};
  std::vector<std::unique_ptr<Link>> links;
  std::vector<Link*> accepted;
  std::size_t taken = 0;
  std::vector<Status> refused;
  std::vector<std::string> refused_remotes;
};

inline std::size_t open_fds() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace hmc::test
