// SharedPages: memory that processes of one host map, whose pages are taken in pieces, each before it is first written to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/fd.h"
#include "hmc/status.h"
#include "transport/host_mapping.h"

namespace hmc {

class SharedPages {
 public:
  SharedPages() noexcept = default;
  // Full size, sealed, no page of it used yet. `name` is the file's, and what errors call it.
  static Result<SharedPages> create(const char* name, std::size_t bytes);
  // Memory of this process alone, for where the system refuses shared memory: no descriptor, and nothing to reserve.
  static Result<SharedPages> unshared(std::size_t bytes);
  // A peer's. Errors: protocol when it is not what it should be (verify_sealed, or not plain memory).
  static Result<SharedPages> attach(UniqueFd fd, std::string_view name, std::size_t bytes);

  [[nodiscard]] std::byte* data() const noexcept { return mapping_.data(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return mapping_.bytes(); }
  [[nodiscard]] const UniqueFd& fd() const noexcept { return fd_; }
  void drop_fd() noexcept { fd_.reset(); }

  // Takes the pages of [offset, offset + bytes): afterwards a store there cannot fail for want of memory. Without a descriptor it
  // is another's to do, and this does nothing. Errors: out_of_memory.
  Status reserve(std::size_t offset, std::size_t bytes) const;

 private:
  SharedPages(UniqueFd fd, Mapping mapping) noexcept : fd_(std::move(fd)), mapping_(std::move(mapping)) {}

  UniqueFd fd_;
  Mapping mapping_;
};

}  // namespace hmc
