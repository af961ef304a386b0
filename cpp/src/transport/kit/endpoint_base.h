// EndpointBase: what the endpoints of every transport have in common. A transport writes how an operation starts and advances, and
// how the wire is stopped.
//
// The endpoint of the SPI is a Handle on it. The transport's list keeps the base alive while a callback destroys the handle.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "transport/kit/active_messages.h"
#include "transport/kit/operations.h"
#include "transport/transport.h"

namespace hmc::kit {

// What an endpoint knows of its transport.
struct EndpointTraits {
  std::string_view name;  // of the transport
  std::size_t max_signal = 0;
  OperationType operation;
};

// Engine lock held.
class EndpointBase : public std::enable_shared_from_this<EndpointBase> {
 public:
  virtual ~EndpointBase() = default;

  // ---- of Endpoint ----
  Status put(const TransferOp& op, Completion* done) { return post(op, done, true); }
  Status get(const TransferOp& op, Completion* done) { return post(op, done, false); }
  Status flush(Completion* done);
  Status cancel(Completion* done);
  // Ends everything pending with `closed`. The sink is not called any more.
  void close();
  [[nodiscard]] bool closed() const noexcept { return state_ == State::closed; }

 protected:
  EndpointBase(const EndpointTraits& traits, std::shared_ptr<Engine> engine, EndpointSink& sink)
      : engine_(std::move(engine)), sink_(&sink), operations_(traits.operation), traits_(traits) {}

  // ---- what a transport writes ----
  // Can the blocks of this run (not empty, inside both regions) be moved? Before anything of the operation is.
  virtual Status check(const Run& run, bool is_put) const = 0;
  // Hands over as much of a new operation as may be within a post; finish() if that was all. Errors: it was not accepted.
  virtual Status start(Operation& operation) = 0;
  // Sends an attached signal (`put`: as in ActiveMessageQueue). False: no room now; send_waiting() when there is.
  virtual bool send(ByteSpan signal, std::uint64_t put) = 0;
  // Withdraws an operation: nothing of it is written afterwards. By default only one that has not started. Errors: unsupported.
  virtual Status withdraw(Operation& operation);
  // The wire stops, after a failure and again to close: nothing of an operation is read or written afterwards. Waits for what
  // cannot be stopped, and marks an operation `unconfirmed` whose peer does not confirm it.
  virtual void stop() = 0;

  // ---- what it uses ----
  [[nodiscard]] bool ready() const noexcept { return state_ == State::ready; }
  [[nodiscard]] bool stopped() const noexcept { return state_ != State::open && state_ != State::ready; }
  [[nodiscard]] bool connecting() const noexcept { return connecting_ != nullptr; }
  // Why nothing can be posted. would_block until the sink knows of a failure: afterwards its owner posts to another connection.
  [[nodiscard]] Status not_ready() const;
  [[nodiscard]] Status check_signal(std::size_t bytes) const;
  // The wire is being connected, which connected() ends. Errors: it was connected before, or closed.
  Status begin_connect(Completion* done);
  void connected(const Status& outcome);
  void abandon_connect() noexcept { connecting_ = nullptr; }  // connect() returns an error
  // The operation has ended: sends its signal, completes it, then the flushes that waited for it alone.
  void finish(Operation& operation);
  void attach(ByteSpan signal, std::uint64_t put);  // sends it or queues it
  bool send_waiting();                              // true if any went
  // The connection is lost: ends everything pending with `reason`. The sink learns of it outside the current call chain, in which
  // a post may be. Callable from anywhere.
  void fail(const Status& reason);

  const std::shared_ptr<Engine> engine_;
  EndpointSink* const sink_;
  OperationTable operations_;
  ActiveMessageQueue waiting_;  // attached signals that met a full wire

 private:
  enum class State : std::uint8_t {
    open,
    ready,
    failing,  // and the sink does not know yet
    failed,
    closed,
  };

  Status post(const TransferOp& op, Completion* done, bool is_put);
  void end_all(const Status& reason);

  const EndpointTraits traits_;
  State state_ = State::open;
  Completion* connecting_ = nullptr;
  Status failure_;
};

// The endpoint that comm holds. Its destruction closes. T: an EndpointBase with address(), connect(), import_region(), signal(),
// receive_rest() and has_unsent(), and with describe() and put_short() where it has more than the default.
template <class T>
class Handle final : public Endpoint {
 public:
  explicit Handle(std::shared_ptr<T> base) noexcept : base_(std::move(base)) {}
  ~Handle() override { base_->close(); }
  Result<Blob> address() override { return base_->address(); }
  Status connect(const Blob& peer_address, Completion* done) override { return base_->connect(peer_address, done); }
  Result<std::unique_ptr<RemoteRegion>> import_region(const Blob& exported) override { return base_->import_region(exported); }
  Result<Blob> describe(LocalRegion& region) override {
    if constexpr (requires { base_->describe(region); }) return base_->describe(region);
    return Endpoint::describe(region);
  }
  Status put(const TransferOp& op, Completion* done) override { return base_->put(op, done); }
  Status get(const TransferOp& op, Completion* done) override { return base_->get(op, done); }
  bool put_short(const Run& run, ByteSpan signal) override {
    if constexpr (requires { base_->put_short(run, signal); }) return base_->put_short(run, signal);
    return Endpoint::put_short(run, signal);
  }
  Status signal(ByteSpan head, ByteSpan body) override { return base_->signal(head, body); }
  Status flush(Completion* done) override { return base_->flush(done); }
  Status cancel(Completion* done) override { return base_->cancel(done); }
  // Without a default: a transport that says nothing here loses what a peer sent last.
  void receive_rest() override {
    const std::shared_ptr<T> keep = base_;  // a signal may destroy this
    keep->receive_rest();
  }
  [[nodiscard]] bool has_unsent() const override { return base_->has_unsent(); }

 private:
  const std::shared_ptr<T> base_;
};

template <class T>
std::unique_ptr<Endpoint> make_handle(std::shared_ptr<T> base) {
  return std::make_unique<Handle<T>>(std::move(base));
}

}  // namespace hmc::kit
