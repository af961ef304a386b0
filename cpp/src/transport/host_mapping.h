// Memory that is mapped: by descriptor, from which a region's importer maps it too, or of this process alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/fd.h"
#include "transport/transport.h"

namespace hmc {

// A file mapped shared, or memory of this process alone. Destruction unmaps.
class Mapping {
 public:
  Mapping() noexcept = default;
  Mapping(Mapping&& other) noexcept : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping() { reset(); }

  static Result<Mapping> map(int fd, std::uint64_t offset, std::size_t bytes, bool writable);
  // A child of fork() shares it. Counted in full against what the system lets processes commit. Errors: out_of_memory.
  static Result<Mapping> anonymous(std::size_t bytes);
  // Makes every page present now, by reading or writing faults. Errors: out_of_memory.
  Status populate(bool writable) const;
  void reset() noexcept;
  [[nodiscard]] std::byte* data() const noexcept { return base_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  Mapping(void* base, std::size_t bytes) noexcept : base_(static_cast<std::byte*>(base)), bytes_(bytes) {}

  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

// Checks that `fd` is memory that nobody can shrink under a mapping (which would be a SIGBUS) and that holds [0, bytes).
// Returns the file's block size. Errors: protocol (not a memfd, not sealed, too small).
Result<std::size_t> verify_sealed(int fd, std::uint64_t bytes);

// The file that a region lies in.
struct RegionFile {
  UniqueFd fd;
  std::uint64_t offset = 0;  // of the region in it
};

// Whether the region has one: HMC allocated its memory as shared memory, and it is no message's, for which a mapping and a fault
// per page would cost the peer more than the copy.
[[nodiscard]] bool has_file(const RegionView& view);
// For such a region. The descriptor of one that peers may only read cannot be written through.
Result<RegionFile> region_file(const RegionView& view);

// A peer's region as mapped here: whole pages, of which it may be a part.
struct MappedRegion {
  Mapping pages;
  std::byte* data = nullptr;
};
// Errors: protocol (verify_sealed), else what the system refused.
Result<MappedRegion> map_region(const RegionFile& file, std::size_t bytes, bool writable);

}  // namespace hmc
