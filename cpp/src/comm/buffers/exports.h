// Exports: buffers of one Context that peers may import, by id and by published name. Owned by ContextImpl.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/buffers/buffers.h"
#include "comm/wire/codec.h"
#include "hmc/deadline.h"

namespace hmc {

class ContextImpl;
class ImportWait;

class Exports {
 public:
  explicit Exports(ContextImpl& context) noexcept : context_(context) {}

  // ---- engine lock not held ----
  Result<std::shared_ptr<BufferState>> add(const Memory& memory, Access access);
  // Timeout: a peer or an operation has not let go of the buffer yet.
  Status close(const std::shared_ptr<Exposure>& exposure, Deadline deadline);
  Status publish(std::string_view name, const ConnBuffer& buffer);
  Status unpublish(std::string_view name);

  [[nodiscard]] Descriptor descriptor_of(const Exposure& exposure) const;  // any thread

  // ---- engine lock held ----
  // What is published under that name.
  [[nodiscard]] std::optional<Descriptor> find(std::string_view name) const;
  // The open buffer that `m` names. Errors: stale, authentication, invalid_argument.
  Result<std::shared_ptr<Exposure>> resolve(const wire::Import& m) const;
  // The buffer, unless it is closed.
  [[nodiscard]] std::shared_ptr<Exposure> open(std::uint64_t id, std::uint64_t generation) const;
  // Ends the buffer without waiting: importers are told. Idempotent.
  void begin_close(const std::shared_ptr<Exposure>& exposure);
  // Closed and quiet? Then its registration ends.
  void settle(const std::shared_ptr<Exposure>& exposure);
  // Every one whose registration has not ended.
  template <class F>
  void for_each(F look) const {
    for (const Slot& slot : slots_) {
      if (slot.open) look(*slot.open);
    }
    for (const auto& exposure : closing_) look(*exposure);
  }
  // BufferHolds, for which the Context's end waits.
  void begin_hold() noexcept { ++holds_; }
  void end_hold();
  [[nodiscard]] std::size_t holds() const noexcept { return holds_; }
  // This Context's own lookups, each until its name is published.
  [[nodiscard]] std::list<ImportWait*>& lookups() noexcept { return lookups_; }
  // The Context ends. What is returned may own user memory, and goes without the lock.
  [[nodiscard]] std::vector<std::shared_ptr<BufferState>> unpublish_all();
  [[nodiscard]] std::vector<std::shared_ptr<Exposure>> close_all();

 private:
  void serve_lookups(std::string_view name, const Bytes& descriptor);  // importing.cc

  struct Slot {
    std::uint64_t generation = 0;
    std::shared_ptr<Exposure> open;
  };
  ContextImpl& context_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_slots_;
  std::vector<std::shared_ptr<Exposure>> closing_;
  std::map<std::string, std::shared_ptr<BufferState>, std::less<>> published_;
  std::list<ImportWait*> lookups_;
  std::size_t holds_ = 0;
};

}  // namespace hmc
