// The public Context over ContextImpl.
#include "base/log.h"
#include "comm/context_impl.h"

namespace hmc {
namespace {

// Shared by every public Context handle: the last one's end closes. Peers and buffers refer to the ContextImpl itself.
class Owner {
 public:
  explicit Owner(std::shared_ptr<ContextImpl> context) : context_(std::move(context)) {}
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  ~Owner() {
    if (context_->engine()->forked()) {
      // The parent's threads and locks do not exist here: the copy is left alone, for as long as this process lives.
      static_cast<void>(*new std::shared_ptr<ContextImpl>(context_));
      return;
    }
    // One that was closed in vain has been waited for already, and its caller has the error.
    const bool again = context_->closing().begun();
    const Status closed = context_->closing().close(Deadline::after_seconds(again ? 0 : 5), true);
    if (!closed.ok() && !again) log(LogLevel::warning, closed.message());
  }

 private:
  std::shared_ptr<ContextImpl> context_;
};

Status no_context() { return Status(Code::invalid_argument, "this Context handle is empty; create one with Context::create"); }
ContextImpl& impl(const std::shared_ptr<ContextState>& state) { return static_cast<ContextImpl&>(*state); }

}  // namespace

Context::Context(std::shared_ptr<ContextState> state) noexcept : state_(std::move(state)) {}

Result<Context> Context::create(const ContextOptions& options) {
  HMC_ASSIGN(auto context, ContextImpl::create(options));
  ContextImpl* raw = context.get();
  const auto owner = std::make_shared<Owner>(std::move(context));
  return Context(std::shared_ptr<ContextState>(owner, raw));
}

std::string Context::id() const { return state_ ? context_id_text(state_->id()) : std::string(); }
std::string Context::name() const { return state_ ? state_->options().name : std::string(); }
std::vector<std::string> Context::addresses() const {
  return state_ ? impl(state_).joins().addresses() : std::vector<std::string>();
}

Result<Peer> Context::connect(std::string_view address, Deadline deadline) const {
  if (!state_) return no_context();
  HMC_ASSIGN(auto peer, impl(state_).joins().connect(address, deadline));
  return Peer(std::move(peer));
}

Result<Peer> Context::accept(Deadline deadline) const {
  if (!state_) return no_context();
  HMC_ASSIGN(auto peer, impl(state_).joins().accept(deadline));
  return Peer(std::move(peer));
}

Result<WorkOf<Peer>> Context::iconnect(std::string_view address, Deadline deadline) const {
  if (!state_) return no_context();
  HMC_ASSIGN(auto work, impl(state_).joins().iconnect(address, deadline));
  return WorkOf<Peer>(std::move(work));
}

Result<WorkOf<Peer>> Context::iaccept(Deadline deadline) const {
  if (!state_) return no_context();
  HMC_ASSIGN(auto work, impl(state_).joins().iaccept(deadline));
  return WorkOf<Peer>(std::move(work));
}

std::vector<Peer> Context::peers() const {
  std::vector<Peer> result;
  if (!state_ || !state_->usable().ok()) return result;
  const auto lock = state_->engine()->lock();
  for (auto& peer : impl(state_).peers().connected()) result.emplace_back(std::move(peer));
  return result;
}

Result<ConnBuffer> Context::buffer(std::size_t bytes, Device device, Access access) const {
  if (!state_) return no_context();
  HMC_TRY(state_->usable());
  HMC_ASSIGN(const Memory memory, Memory::allocate(bytes, device));
  return register_memory(memory, access);
}

Result<ConnBuffer> Context::register_memory(const Memory& memory, Access access) const {
  if (!state_) return no_context();
  HMC_ASSIGN(auto buffer, impl(state_).exports().add(memory, access));
  return ConnBuffer(std::move(buffer), 0, memory.size());
}

Status Context::publish(std::string_view name, const ConnBuffer& buffer) const {
  return state_ ? impl(state_).exports().publish(name, buffer) : no_context();
}

Status Context::unpublish(std::string_view name) const { return state_ ? impl(state_).exports().unpublish(name) : no_context(); }

bool Context::progress() const {
  if (!state_ || !state_->usable().ok()) return false;
  Engine& engine = *state_->engine();
  bool moved = false;
  {
    const auto lock = engine.lock();
    moved = engine.poll_once();
  }
  engine.drop_retired();
  return moved;
}

std::map<std::string, std::uint64_t> Context::counters() const {
  if (!state_ || state_->engine()->forked()) return {};
  ContextImpl& context = impl(state_);
  const auto lock = context.engine()->lock();
  const auto& own = context.counters().values();
  std::map<std::string, std::uint64_t> result(own.begin(), own.end());
  context.transports().add_counters(result);
  context.messenger().add_counters(result);
  result["notifications.discarded"] = context.notifier().table().discarded();
  result["notifications.departed_bytes"] = context.notifier().table().departed_bytes();
  return result;
}

Status Context::close(Deadline deadline) const { return state_ ? impl(state_).closing().close(deadline) : Status(); }

bool Context::closed() const { return !state_ || !state_->usable().ok(); }

}  // namespace hmc
