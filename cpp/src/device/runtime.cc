#include "device/runtime.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace hmc {

void BlockingCompletion::complete(Status status) noexcept {
  status_ = std::move(status);
  done_.store(true, std::memory_order_release);
}

Status BlockingCompletion::wait(DeviceRuntime& runtime) {
  while (!done_.load(std::memory_order_acquire)) {
    if (!runtime.poll()) sched_yield();
  }
  return status_;
}

namespace {

Status copy_with(DeviceRuntime& runtime, const CopyOp& op) {
  BlockingCompletion done;
  HMC_TRY(runtime.copy(op, &done));
  return done.wait(runtime);
}

bool between_vendors(const Device& a, const Device& b) { return !a.is_cpu() && !b.is_cpu() && a.vendor() != b.vendor(); }

DeviceSpan block_of(const DeviceSpan& span, std::uint64_t offset, std::size_t bytes) {
  return {static_cast<std::byte*>(span.data) + offset, bytes, span.device};
}

// Between two vendors: through host memory, a piece at a time.
Status copy_staged(const DeviceSpan& target, const DeviceSpan& source) {
  constexpr std::size_t piece = std::size_t{4} << 20;
  HMC_ASSIGN(DeviceRuntime * reader, runtime_for(source.device));
  HMC_ASSIGN(DeviceRuntime * writer, runtime_for(target.device));
  HMC_ASSIGN(DeviceRuntime * host, runtime_for(Device::cpu()));
  HMC_ASSIGN(auto stage, host->allocate(0, std::min(piece, source.bytes), {}));
  for (std::size_t offset = 0; offset < source.bytes; offset += piece) {
    const std::size_t n = std::min(piece, source.bytes - offset);
    const DeviceSpan middle{stage->span().data, n, Device::cpu()};
    HMC_TRY(copy_with(*reader, {.target = middle, .source = block_of(source, offset, n)}));
    HMC_TRY(copy_with(*writer, {.target = block_of(target, offset, n), .source = middle}));
  }
  return {};
}

// The kernel reads in our place, so that nothing faults.
bool cpu_reads(const void* data) {
  const int scratch = memfd_create("hmc-probe", MFD_CLOEXEC);
  if (scratch < 0) return false;
  const bool read = write(scratch, data, 1) == 1;
  close(scratch);
  return read;
}

}  // namespace

Result<DeviceRuntime*> runtime_for(const Device& device) {
  const char* const vendor = device.vendor().data();  // the table's own text
  for (const auto* factory : device_runtimes()) {
    if (factory->vendor.data() == vendor) return &factory->instance();
  }
  return Status(Code::unsupported, "no runtime for " + device.str() + " is compiled in");
}

Result<PointerInfo> classify_pointer(const void* data, std::size_t bytes) {
  Status unknown;
  for (const auto* factory : device_runtimes()) {
    if (factory->vendor == "cpu") continue;
    const auto info = factory->instance().classify(data, bytes);
    if (!info.ok()) {
      unknown = info.status();
    } else if (*info) {
      return **info;
    }
  }
  if (!unknown.ok() && bytes > 0 && !cpu_reads(data)) return unknown;
  return PointerInfo{};
}

Status check_extent(const DeviceSpan& span) {
  if (span.device.is_cpu() || span.bytes == 0) return {};
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(span.device));
  const auto begin = reinterpret_cast<std::uintptr_t>(span.data);
  std::uint64_t found = 0;
  // An allocator may have mapped the memory piece by piece: each piece is an allocation to the vendor.
  while (found < span.bytes) {
    HMC_ASSIGN(const auto info, runtime->classify(reinterpret_cast<const void*>(begin + found), 1));
    if (!info && found > 0) {
      return {Code::invalid_argument, std::to_string(span.bytes) + " bytes on " + span.device.str() +
                                          ": their allocation ends after " + std::to_string(found) +
                                          "; pass a pointer and a size that lie in one allocation"};
    }
    if (!info || info->allocation_bytes == 0) return {};
    const std::uint64_t end = reinterpret_cast<std::uintptr_t>(info->allocation_base) + info->allocation_bytes - begin;
    if (end <= found) return {};
    found = end;
  }
  return {};
}

Status copy_blocking(const DeviceSpan& target, const DeviceSpan& source) {
  if (target.bytes != source.bytes) {
    return Status(Code::invalid_argument, "copy of " + std::to_string(source.bytes) + " bytes into " +
                                              std::to_string(target.bytes) + ": sizes must be equal");
  }
  if (source.bytes == 0) return {};
  if (between_vendors(target.device, source.device)) return copy_staged(target, source);
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(target.device.is_cpu() ? source.device : target.device));
  return copy_with(*runtime, {.target = target, .source = source});
}

Status copy_blocking(const CopyOp& blocks) {
  const DeviceSpan &source = blocks.source, &target = blocks.target;
  if (between_vendors(target.device, source.device)) {
    for (std::size_t i = 0; i < blocks.blocks; ++i) {
      HMC_TRY(copy_staged(block_of(target, blocks.target_offsets[i], blocks.block_bytes),
                          block_of(source, blocks.source_offsets[i], blocks.block_bytes)));
    }
    return {};
  }
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(target.device.is_cpu() ? source.device : target.device));
  return copy_with(*runtime, blocks);
}

Result<StreamMark> StreamMark::of(const Device& device, StreamHandle stream) {
  HMC_ASSIGN(DeviceRuntime * runtime, runtime_for(device));
  HMC_ASSIGN(auto point, runtime->streams().mark(device.index(), stream));
  return StreamMark(std::move(point));
}

Result<bool> StreamMark::reached() const { return point_->reached(); }

Status synchronize_stream(const Device& device, StreamHandle stream) {
  HMC_ASSIGN(const StreamMark mark, StreamMark::of(device, stream));
  while (true) {
    HMC_ASSIGN(const bool reached, mark.reached());
    if (reached) return {};
    sched_yield();
  }
}

}  // namespace hmc
