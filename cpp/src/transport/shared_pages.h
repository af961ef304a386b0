// SharedPages: memory that processes of one host map. Its owner takes the pages in pieces, each before it is first written to.
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
  // Full size, sealed, no page of it used yet. `name` is the file's, and is in the text of errors.
  static Result<SharedPages> create(const char* name, std::size_t bytes);
  // Without a descriptor: memory that no other process maps, and of which nothing can be reserved. The system takes a page at the
  // first store to it. Where it limits what processes commit, it counts all of them from the start. Errors: out_of_memory.
  static Result<SharedPages> unshared(std::size_t bytes);
  // Maps what a peer created. Errors: protocol when it is not what it should be (verify_sealed, or not plain memory).
  static Result<SharedPages> attach(UniqueFd fd, std::string_view name, std::size_t bytes);

  [[nodiscard]] std::byte* data() const noexcept { return mapping_.data(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return mapping_.bytes(); }
  [[nodiscard]] const UniqueFd& fd() const noexcept { return fd_; }
  void drop_fd() noexcept { fd_.reset(); }

  // Takes the pages of [offset, offset + bytes): afterwards a store there cannot fail for want of memory. It needs the descriptor.
  // Errors: out_of_memory.
  Status reserve(std::size_t offset, std::size_t bytes) const;

 private:
  SharedPages(UniqueFd fd, Mapping mapping) noexcept : fd_(std::move(fd)), mapping_(std::move(mapping)) {}

  UniqueFd fd_;
  Mapping mapping_;
};

}  // namespace hmc
