// What programs that are not HMC are given: names of registered memory, and connections.
#include "hmc/native.h"

#include "comm/api/native_links.h"
#include "comm/context_impl.h"

namespace hmc {

// One connection. Its NativeLink is kept by the Context, whose end closes it.
class NativeState {
 public:
  NativeState(std::shared_ptr<ContextImpl> context, std::uint64_t id, NativeFields fields)
      : context_(std::move(context)), id_(id), fields_(std::move(fields)) {}
  ~NativeState() {
    context_->toss([c = context_.get(), id = id_] { c->transports().native_links().end(id); });
  }
  NativeState(const NativeState&) = delete;
  NativeState& operator=(const NativeState&) = delete;

  [[nodiscard]] const NativeFields& fields() const noexcept { return fields_; }
  void close() {
    if (!context_->usable().ok()) return;
    const auto lock = context_->engine()->lock();
    context_->transports().native_links().end(id_);
  }

 private:
  const std::shared_ptr<ContextImpl> context_;
  const std::uint64_t id_;
  const NativeFields fields_;
};

NativeFields NativeConnection::fields() const { return state_ ? state_->fields() : NativeFields(); }

void NativeConnection::close() const {
  if (state_) state_->close();
}

Result<Transport*> NativeLinks::usable_transport(std::string_view name) {
  HMC_TRY(context_.usable());  // before the lock, which a forked child must not take
  const auto lock = context_.engine()->lock();
  HMC_TRY(context_.usable());
  const TransportSlot* slot = context_.transports().find(name);
  if (slot == nullptr) return Status(Code::invalid_argument, "there is no transport \"" + std::string(name) + "\"");
  if (slot->transport == nullptr) {
    return Status(Code::unsupported, std::string(name) + " is not available here: " + slot->capabilities.reason);
  }
  return slot->transport.get();
}

Result<std::vector<NativeFields>> NativeLinks::fields(const ConnBuffer& buffer, std::string_view name) {
  HMC_ASSIGN(Transport * transport, usable_transport(name));
  if (buffer.closed()) return Status(Code::closed, "this ConnBuffer is closed; register the memory again");
  HMC_TRY(context_.regions().ensure(*buffer.state()->registration, *transport, Deadline::never()));
  const auto lock = context_.engine()->lock();
  // A registration that is closing gives its regions up under this lock.
  const auto* region = buffer.state()->registration->find(transport);
  if (region == nullptr || buffer.closed()) return Status(Code::closed, "the ConnBuffer was closed meanwhile");
  buffer.state()->registration->pin(transport);
  auto fields = (*region)->native(buffer.offset(), buffer.size());
  return fields.ok() ? std::move(fields) : fields.status().with_context(name);
}

Result<std::shared_ptr<NativeState>> NativeLinks::connect(std::string_view name, const NativeFields& peer) {
  HMC_ASSIGN(Transport * transport, usable_transport(name));
  const auto lock = context_.engine()->lock();
  HMC_TRY(context_.usable());
  auto made = transport->connect_native(peer);
  if (!made.ok()) return made.status().with_context(name);
  std::unique_ptr<NativeLink> link = std::move(*made);
  const std::uint64_t id = ++last_id_;
  NativeFields fields = link->fields();
  links_.emplace(id, std::move(link));
  return std::make_shared<NativeState>(std::static_pointer_cast<ContextImpl>(context_.shared_from_this()), id, std::move(fields));
}

Result<std::vector<NativeFields>> ConnBuffer::native(std::string_view transport) const {
  if (!state_) return Status(Code::invalid_argument, "this buffer handle is empty; get one from a Context");
  return state_->context->transports().native_links().fields(*this, transport);
}

Result<NativeConnection> Context::connect_native(std::string_view transport, const NativeFields& peer) const {
  if (!state_) return Status(Code::invalid_argument, "this Context handle is empty; create one with Context::create");
  HMC_ASSIGN(auto state, impl_of(*state_).transports().native_links().connect(transport, peer));
  return NativeConnection(std::move(state));
}

}  // namespace hmc
