// The CPU as a device: memory is a sealed memfd, so that peers on the host can map it.
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/available_memory.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/wire.h"
#include "device/runtime.h"

namespace hmc {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr unsigned required_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

// A mapping of a whole memfd, or of private memory.
class HostAllocation final : public Allocation {
 public:
  HostAllocation(UniqueFd fd, void* data, std::size_t mapped, std::size_t bytes)
      : fd_(std::move(fd)), data_(data), mapped_(mapped), bytes_(bytes) {}
  ~HostAllocation() override { munmap(data_, mapped_); }
  [[nodiscard]] DeviceSpan span() const noexcept override { return {data_, bytes_, Device::cpu()}; }
  [[nodiscard]] bool shareable() const noexcept override { return static_cast<bool>(fd_); }
  [[nodiscard]] std::size_t mapped() const noexcept { return mapped_; }
  [[nodiscard]] Result<Blob> export_handle(HandleKind kind) const override {
    if (!fd_) return Status(Code::unsupported, "this memory is private: the system refused shared memory (memfd_create)");
    if (kind != HandleKind::memfd) return Status(Code::unsupported, "host memory is shared by memfd only");
    if (fork_epoch() != epoch_) return forked_status();
    Blob blob;
    WireWriter(blob.bytes).u64(mapped_).u64(0);
    blob.fds.push_back(fd_.duplicate());
    if (!blob.fds.back()) return errno_status("duplicating a memory descriptor", errno);
    return blob;
  }

 private:
  UniqueFd fd_;
  void* data_;
  std::size_t mapped_;
  std::size_t bytes_;
  const std::uint32_t epoch_ = fork_epoch();
};

// Maps `length` bytes of `fd` (-1: private memory) at a multiple of `alignment`. Address or MAP_FAILED.
void* map_aligned(int fd, std::size_t length, std::size_t alignment) {
  const int kind = (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED) | MAP_POPULATE;
  if (alignment <= page) return mmap(nullptr, length, PROT_READ | PROT_WRITE, kind, fd, 0);
  void* reserved = mmap(nullptr, length + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  const auto start = reinterpret_cast<std::uintptr_t>(reserved);
  const auto aligned = round_up(start, alignment);
  void* mapped = mmap(reinterpret_cast<void*>(aligned), length, PROT_READ | PROT_WRITE, kind | MAP_FIXED, fd, 0);
  if (aligned > start) munmap(reserved, aligned - start);
  const auto end = start + length + alignment;
  if (end > aligned + length) munmap(reinterpret_cast<void*>(aligned + length), end - aligned - length);
  if (mapped == MAP_FAILED) munmap(reinterpret_cast<void*>(aligned), length);
  return mapped;
}

Status refuse_memory(std::string_view what, std::size_t bytes, int error) {
  return Status(Code::out_of_memory,
                std::string(what) + " of " + std::to_string(bytes) + " bytes of host memory refused: " + std::strerror(error) +
                    (error == EMFILE ? "; raise the descriptor limit (ulimit -n)" : ""),
                error);
}

class HostRuntime final : public DeviceRuntime, private MemorySharing, private DeviceStreams, private DeviceCompute {
 public:
  RuntimeInfo enumerate() override {
    std::string name = "CPU";
    std::ifstream cpuinfo("/proc/cpuinfo");
    for (std::string line; std::getline(cpuinfo, line);) {
      if (line.starts_with("model name")) {
        name = line.substr(std::min(line.find(':') + 2, line.size()));
        break;
      }
    }
    const auto total = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    return {"cpu", true, "always there", {{Device::cpu(), name, total, "", "hardware"}}};
  }

  Result<std::optional<PointerInfo>> classify(const void*, std::size_t) override {
    return std::optional<PointerInfo>(PointerInfo{});
  }

  Result<std::unique_ptr<Allocation>> allocate(int, std::size_t bytes, const MemoryOptions& options) override {
    if (!std::has_single_bit(options.alignment) || options.alignment > huge_page) {
      return Status(Code::invalid_argument,
                    "alignment " + std::to_string(options.alignment) + " is not a power of two up to 2 MiB");
    }
    if (bytes > (std::size_t{1} << 47)) return refuse_memory("allocation", bytes, ENOMEM);
    if (options.huge_pages) {
      auto huge = allocate_memfd(bytes, huge_page, options, MFD_HUGETLB);
      if (huge.ok()) return huge;
      warn_once("huge_pages", "huge pages are not available (" + std::string(huge.status().message()) +
                                  "); ordinary pages are used. Reserve some with vm.nr_hugepages.");
    }
    // Allocations are committed in full.
    HMC_TRY(check_available(bytes));
    auto shared = allocate_memfd(bytes, page, options, 0);
    if (shared.ok() || !refuses_shared_memory(shared.status().native())) return shared;
    warn_once("memfd", std::string(shared.status().message()) +
                           "; private memory is used, which peers cannot map. Allow memfd_create in the security profile.");
    return allocate_private(bytes, options);
  }

  Status copy(const CopyOp& op, Completion* done) override {
    auto* target = static_cast<std::byte*>(op.target.data);
    const auto* source = static_cast<const std::byte*>(op.source.data);
    if (op.blocks == 0) std::memmove(target, source, op.source.bytes);
    for (std::size_t i = 0; i < op.blocks; ++i) {
      std::memmove(target + op.target_offsets[i], source + op.source_offsets[i], op.block_bytes);
    }
    done->complete({});
    return {};
  }

  Status fill(const DeviceSpan& target, std::uint8_t value) override {
    if (target.bytes > 0) std::memset(target.data, value, target.bytes);
    return {};
  }

  DeviceCompute& compute() override { return *this; }

  Status prepare_reduction(int, DataType, std::size_t) override { return {}; }

  Status reduce(const ReductionOp& op, Completion* done) override {
    reduce_on_cpu(op.target.data, op.sources, op.target.bytes / size_of(op.step.type), op.step);
    done->complete({});
    return {};
  }

  MemorySharing& sharing() override { return *this; }

  DeviceStreams& streams() override { return *this; }

  Result<std::shared_ptr<StreamPoint>> mark(int, StreamHandle) override { return no_streams(); }

  Status hold(int, StreamHandle, std::shared_ptr<const StreamGate>) override { return no_streams(); }

  Result<std::unique_ptr<HostPin>> pin_host(int, const HostPages&) override {
    return Status(Code::unsupported, "the CPU has no copy engine to pin memory for");
  }

  Result<Blob> export_handle(const DeviceSpan&, HandleKind) override {
    return Status(Code::unsupported, "host memory is exported by its owner (MemoryBlock::export_handle), not by address");
  }

  Result<std::unique_ptr<Allocation>> import_handle(int, const Blob& blob, HandleKind kind) override {
    if (kind != HandleKind::memfd) return Status(Code::unsupported, "host memory is shared by memfd only");
    WireReader reader(blob.bytes);
    const std::uint64_t file_bytes = reader.u64();
    const std::uint64_t offset = reader.u64();
    if (!reader.finish() || blob.fds.size() != 1 || offset != 0 || file_bytes == 0) {
      return Status(Code::protocol, "malformed handle of shared host memory");
    }
    const int fd = blob.fds[0].get();
    struct stat info{};
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (static_cast<unsigned>(seals) & F_SEAL_SHRINK) == 0) {
      return Status(Code::protocol, "shared memory of the peer is not sealed against shrinking");
    }
    if (fstat(fd, &info) != 0 || static_cast<std::uint64_t>(info.st_size) < file_bytes) {
      return Status(Code::protocol, "shared memory of the peer is smaller than it claims");
    }
    UniqueFd own = blob.fds[0].duplicate();
    if (!own) return errno_status("duplicating a memory descriptor", errno);
    void* data = mmap(nullptr, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, own.get(), 0);
    if (data == MAP_FAILED && (errno == EPERM || errno == EACCES))
      return Status(Code::protocol, "shared memory of the peer cannot be written", errno);
    if (data == MAP_FAILED) return refuse_memory("mapping", file_bytes, errno);
    return std::unique_ptr<Allocation>(std::make_unique<HostAllocation>(std::move(own), data, file_bytes, file_bytes));
  }

  bool poll() override { return false; }

 private:
  static Status no_streams() { return Status(Code::unsupported, "the CPU has no streams"); }

  static Status pin(const HostAllocation& allocation) {
    const std::size_t length = allocation.mapped();
    if (mlock(allocation.span().data, length) == 0) return {};
    const int error = errno;
    rlimit limit{};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    return Status(Code::out_of_memory,
                  "pinning " + std::to_string(length) + " bytes refused: " + std::strerror(error) + "; the memlock limit is " +
                      (limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur) + " bytes") +
                      " (raise it: ulimit -l, or LimitMEMLOCK= of the service)",
                  error);
  }

  static Result<std::unique_ptr<Allocation>> allocate_private(std::size_t bytes, const MemoryOptions& options) {
    const std::size_t length = round_up(std::max<std::size_t>(bytes, 1), page);
    void* data = map_aligned(-1, length, std::max(options.alignment, page));
    if (data == MAP_FAILED) return refuse_memory("mapping", bytes, errno);
    auto allocation = std::make_unique<HostAllocation>(UniqueFd(), data, length, bytes);
    if (options.pinned) HMC_TRY(pin(*allocation));
    return std::unique_ptr<Allocation>(std::move(allocation));
  }

  static Result<std::unique_ptr<Allocation>> allocate_memfd(std::size_t bytes, std::size_t unit, const MemoryOptions& options,
                                                            unsigned flags) {
    const std::size_t length = round_up(std::max<std::size_t>(bytes, 1), unit);
    UniqueFd fd = make_memfd("hmc", flags);
    if (!fd) return refuse_memory("memfd_create", bytes, errno);
    if (ftruncate(fd.get(), static_cast<off_t>(length)) != 0) return refuse_memory("allocation", bytes, errno);
    // In full, now: a peer that maps it must never meet a page that cannot be had (SIGBUS).
    if (const int error = allocate_pages(fd.get(), 0, length); error != 0) return refuse_memory("allocation", bytes, error);
    if (fcntl(fd.get(), F_ADD_SEALS, required_seals) != 0) return errno_status("sealing shared memory", errno);
    void* data = map_aligned(fd.get(), length, std::max(options.alignment, unit));
    if (data == MAP_FAILED) return refuse_memory("mapping", bytes, errno);
    auto allocation = std::make_unique<HostAllocation>(std::move(fd), data, length, bytes);
    if (options.pinned) HMC_TRY(pin(*allocation));
    return std::unique_ptr<Allocation>(std::move(allocation));
  }
};

}  // namespace

DeviceRuntime& host_runtime_instance();
DeviceRuntime& host_runtime_instance() {
  static HostRuntime* const instance = new HostRuntime;  // never destroyed: memory may be freed during exit
  return *instance;
}

}  // namespace hmc

HMC_DEVICE_RUNTIME(host, "cpu", hmc::host_runtime_instance);
