// BufferState, RemoteBufferState and the public handles over them.
#include "comm/buffers/buffers.h"

#include "comm/context_impl.h"

namespace hmc {
namespace {

// "bytes [64, 128) of a buffer of 100 bytes"
Status out_of_range(std::string_view what, std::size_t offset, std::size_t bytes, std::size_t size) {
  return Status(Code::invalid_argument, std::string(what) + " slice of " + std::to_string(bytes) + " bytes at offset " +
                                            std::to_string(offset) + " of a buffer of " + std::to_string(size) +
                                            " bytes; stay within it");
}

Status invalid_handle() { return Status(Code::invalid_argument, "this buffer handle is empty; get one from a Context or a Peer"); }

}  // namespace

BufferState::BufferState(std::shared_ptr<ContextImpl> c, std::shared_ptr<Exposure> e, std::shared_ptr<Registration> r)
    : context(std::move(c)), exposure(std::move(e)), registration(std::move(r)) {}

BufferState::~BufferState() {
  // Importers have to let go first; and this may be the last reference to user memory, which must not end under the lock.
  context->toss([c = context.get(), e = exposure, r = std::move(registration)]() mutable {
    c->exports().begin_close(e);
    c->engine()->retire(std::move(r));
  });
}

RemoteBufferState::RemoteBufferState(std::shared_ptr<ContextImpl> c, std::shared_ptr<PeerImpl> p, std::shared_ptr<RemoteImport> r)
    : context(std::move(c)), peer(std::move(p)), record(std::move(r)) {}

RemoteBufferState::~RemoteBufferState() {
  context->toss([p = peer, r = record] {
    r->alive.store(false);
    p->imports().retire(r);
  });
}

ConnBuffer::ConnBuffer(std::shared_ptr<BufferState> state, std::size_t offset, std::size_t size) noexcept
    : state_(std::move(state)), offset_(offset), size_(size) {}

Memory ConnBuffer::memory() const {
  if (!state_) return {};
  auto slice = state_->registration->memory().slice(offset_, size_);
  return slice.ok() ? std::move(*slice) : Memory();
}

Device ConnBuffer::device() const { return state_ ? state_->exposure->device : Device(); }

bool ConnBuffer::read_only() const { return state_ && state_->exposure->read_only; }

Access ConnBuffer::access() const { return state_ ? state_->exposure->access : Access::read; }

Result<ConnBuffer> ConnBuffer::slice(std::size_t offset, std::size_t bytes) const {
  if (!state_) return invalid_handle();
  if (offset > size_ || bytes > size_ - offset) return out_of_range("ConnBuffer", offset, bytes, size_);
  return ConnBuffer(state_, offset_ + offset, bytes);
}

Result<Descriptor> ConnBuffer::descriptor() const {
  if (!state_) return invalid_handle();
  HMC_TRY(state_->context->usable());
  if (closed()) return Status(Code::closed, "this ConnBuffer is closed; register the memory again");
  return state_->context->exports().descriptor_of(*state_->exposure);
}

Status ConnBuffer::close(Deadline deadline) const {
  if (!state_) return {};
  return state_->context->exports().close(state_->exposure, deadline);
}

bool ConnBuffer::closed() const { return !state_ || state_->exposure->closed.load() || state_->context->closing().begun(); }

RemoteBuffer::RemoteBuffer(std::shared_ptr<RemoteBufferState> state, std::size_t offset, std::size_t size) noexcept
    : state_(std::move(state)), offset_(offset), size_(size) {}

Device RemoteBuffer::device() const { return state_ ? state_->record->device : Device(); }

Access RemoteBuffer::access() const { return state_ ? state_->record->access : Access::read; }

Result<RemoteBuffer> RemoteBuffer::slice(std::size_t offset, std::size_t bytes) const {
  if (!state_) return invalid_handle();
  if (offset > size_ || bytes > size_ - offset) return out_of_range("RemoteBuffer", offset, bytes, size_);
  return RemoteBuffer(state_, offset_ + offset, bytes);
}

bool RemoteBuffer::alive() const { return state_ && state_->context->usable().ok() && state_->record->alive.load(); }

LoadableBytes RemoteBuffer::loadable(const Device& by) const { return mapped(by, false); }

StorableBytes RemoteBuffer::storable(const Device& by) const {
  if (access() != Access::read_write) return {};
  LoadableBytes found = mapped(by, true);
  // The region says that it is writable, so its mapping is.
  return {{const_cast<std::byte*>(found.bytes.data()), found.bytes.size()}, std::move(found.mapping)};
}

LoadableBytes RemoteBuffer::mapped(const Device& by, bool to_write) const {
  if (!alive()) return {};
  const auto locked = state_->context->engine()->lock();
  for (const RemoteImport::Entry& entry : state_->record->entries) {
    if (entry.withdrawn || !entry.prepared_for(by) || (to_write && !entry.region->writable())) continue;
    if (LoadableBytes whole = entry.region->loadable(by); whole.mapping) {
      whole.bytes = whole.bytes.subspan(offset_, size_);
      return whole;
    }
  }
  return {};
}

std::size_t BlockBatch::blocks() const noexcept { return state_ ? state_->blocks : 0; }
std::size_t BlockBatch::bytes() const noexcept { return state_ ? state_->blocks * state_->block : 0; }

std::shared_ptr<PeerState> owner_of(const RemoteBuffer& remote) {
  return remote.state() ? std::static_pointer_cast<PeerState>(remote.state()->peer) : nullptr;
}

MemoryView::MemoryView(const Memory& memory)
    : data(memory.data()), bytes(memory.size()), device(memory.device()), owner(memory.block()) {}

MemoryView::MemoryView(const ConnBuffer& buffer) : bytes(buffer.size()), device(buffer.device()), owner(buffer.state()) {
  if (!buffer.valid()) return;
  data = static_cast<std::byte*>(buffer.state()->registration->memory().data()) + buffer.offset();
}

}  // namespace hmc
