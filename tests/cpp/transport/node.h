// Node, Side and Area: one end of a connection, and memory that it registers.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "hmc/memory.h"
#include "progress/engine.h"
#include "progress/listener.h"
#include "testing.h"
#include "transport/transport.h"

namespace hmc::testing {

// Counts its completions: exactly one is right.
class Done final : public Completion {
 public:
  void complete(Status status) noexcept override {
    status_ = std::move(status);
    if (then) then();
    count_.fetch_add(1);  // last: who sees it may destroy this
  }
  [[nodiscard]] int count() const noexcept { return count_.load(); }
  [[nodiscard]] bool done() const noexcept { return count() != 0; }
  [[nodiscard]] const Status& status() const noexcept { return status_; }
  std::function<void()> then;

 private:
  Status status_;
  std::atomic<int> count_{0};
};

class TestSink final : public EndpointSink {
 public:
  void on_signal(ByteSpan signal) override {
    if (handler) return handler(signal);
    signals.emplace_back(signal.begin(), signal.end());
  }
  void on_failed(const Status& reason) override {
    EXPECT_TRUE(failure.ok()) << "on_failed came twice";
    EXPECT_FALSE(posting) << "on_failed came from within a post";
    failure = reason;
  }
  std::function<void(ByteSpan)> handler;
  std::vector<Bytes> signals;
  Status failure;
  bool posting = false;
};

// While it lives, something is being posted at the sink's endpoint. Engine lock held.
class Posting {
 public:
  explicit Posting(TestSink& sink) noexcept : sink_(sink), before_(std::exchange(sink.posting, true)) {}
  Posting(const Posting&) = delete;
  Posting& operator=(const Posting&) = delete;
  ~Posting() { sink_.posting = before_; }

 private:
  TestSink& sink_;
  const bool before_;
};

// One Context's worth below comm: engine, listener and one transport.
class Node {
 public:
  static Result<std::unique_ptr<Node>> create(const TransportFactory& factory, Progress progress = Progress::manual) {
    auto node = std::unique_ptr<Node>(new Node);
    HMC_ASSIGN(node->engine, Engine::create(progress));
    const auto lock = node->engine->lock();
    HMC_ASSIGN(node->listener, Listener::create(node->engine));
    TransportEnvironment environment{node->engine, node->listener.get(), {}, {}};
    for (const char* address : {"unix", "tcp://127.0.0.1:0"}) {
      HMC_TRY(node->listener->listen(address).status());
    }
    environment.listen_addresses = node->listener->addresses();
    for (const TransportFactory* other : transport_factories()) {
      if (!factory.on_carriers || other->on_carriers || other->named_only) continue;
      auto made = other->create(environment);
      if (!made.ok()) continue;  // not available here
      auto carrier = std::move(*made);
      environment.carriers.push_back(carrier.get());
      node->engine->add(*carrier);
      node->carriers.push_back(std::move(carrier));
    }
    HMC_ASSIGN(node->transport, factory.create(environment));
    node->engine->add(*node->transport);
    return node;
  }
  ~Node() {
    {
      const auto lock = engine->lock();
      if (transport) engine->remove(*transport);
      transport.reset();
      for (const auto& carrier : carriers) engine->remove(*carrier);
      carriers.clear();
      listener.reset();
    }
    engine->stop();
  }
  bool poll() {
    const auto lock = engine->lock();
    return engine->poll_once();
  }

  std::shared_ptr<Engine> engine;
  std::unique_ptr<Listener> listener;
  std::vector<std::unique_ptr<Transport>> carriers;  // that the transport builds on, if it does
  std::unique_ptr<Transport> transport;

 private:
  Node() = default;
};

// One end of the connection.
struct Side {
  Node* node = nullptr;
  TestSink sink;
  std::unique_ptr<Endpoint> endpoint;

  [[nodiscard]] Engine::Lock lock() const { return node->engine->lock(); }
  void close() {
    const auto held = lock();
    endpoint.reset();
  }
};

// Bytes with a guard on both sides, in memory that peers can map or not, registered.
class Area {
 public:
  static constexpr std::size_t guard = 4096 + 64;  // so that the area itself is aligned to no page

  Area(Node& node, std::size_t bytes, bool shareable, Access access = Access::read_write, bool transient = false)
      : node_(&node), bytes_(bytes) {
    const std::size_t whole = bytes + 2 * guard;
    if (shareable) {
      memory_ = Memory::allocate(whole).value();
      base_ = static_cast<std::byte*>(memory_.data());
    } else {
      heap_.resize(whole);
      base_ = heap_.data();
    }
    fill_pattern({base_, guard}, 901);
    fill_pattern({base_ + guard + bytes, guard}, 902);
    const RegionView view{{data(), bytes, Device::cpu()}, memory_.block(), access, transient};
    region_ = node.transport->register_region(view).value();
  }
  Area(Area&&) = default;
  ~Area() { deregister(); }

  void deregister() {
    if (!region_) return;
    const auto lock = node_->engine->lock();
    region_.reset();
  }
  [[nodiscard]] std::byte* data() const noexcept { return base_ + guard; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::span<std::byte> span() const noexcept { return {data(), bytes_}; }
  [[nodiscard]] LocalRegion* region() const noexcept { return region_.get(); }
  [[nodiscard]] bool guards_intact() const {
    return first_mismatch({base_, guard}, 901) < 0 && first_mismatch({base_ + guard + bytes_, guard}, 902) < 0;
  }

 private:
  Node* node_;
  std::size_t bytes_;
  Memory memory_;
  std::vector<std::byte> heap_;
  std::byte* base_ = nullptr;
  std::unique_ptr<LocalRegion> region_;
};

}  // namespace hmc::testing
