#include "device/accelerator_pages.h"

#include <chrono>
#include <cstring>
#include <string>
#include <utility>

namespace hmc {
namespace {

constexpr std::size_t word = 8;
constexpr std::chrono::milliseconds patience{100};  // the CPU computes while a kernel cannot be loaded

std::size_t words(std::size_t bytes) { return (bytes + word - 1) / word * word; }

// The bytes of the tables, in the order of PageTable; the sums come last.
std::array<std::span<const std::byte>, page_tables> tables_of(const PageCall& call) {
  const PageCache none;
  const PageCache& target = call.target ? *call.target : none;
  return {std::as_bytes(call.source.buffers),
          std::as_bytes(call.source.blocks),
          std::as_bytes(target.buffers),
          std::as_bytes(target.blocks),
          std::as_bytes(call.factors),
          std::as_bytes(call.keys),
          std::as_bytes(call.sums)};
}

}  // namespace

// With the device's mutex held and the device current.
Status AcceleratorPages::launch(AcceleratorDevice& on, const PageCall& call, const AcceleratorScratch::Piece& scratch,
                                const PageTables& tables, Completion* done) {
  HMC_ASSIGN(CopyStream * stream, devices_.stream(on, AcceleratorDevice::compute_stream));
  void* const sums = tables[static_cast<std::size_t>(PageTable::sums)];
  const auto sums_at = static_cast<std::size_t>(static_cast<std::byte*>(sums) - static_cast<std::byte*>(scratch.device));
  int code = calls_.copies->copy(scratch.device, scratch.host, sums_at, CopyDirection::to_device, stream->handle);
  if (code == 0 && !call.sums.empty()) code = calls_.copies->fill(sums, 0, call.sums.size_bytes(), stream->handle);
  if (code == 0) code = calls_.pages->run(scratch.index, call, tables, stream->handle);
  if (code == 0 && !call.sums.empty())
    code = calls_.copies->copy(scratch.host + sums_at, sums, call.sums.size_bytes(), CopyDirection::to_host, stream->handle);
  Status failed =
      code == 0 ? Status() : devices_.failure("digests or conversion of pages on " + devices_.name(scratch.index), code);
  devices_.leave_event(on, *stream, done, std::move(failed));
  return {};
}

Status AcceleratorPages::run(int index, const PageCall& call) {
  HMC_ASSIGN(AcceleratorDevice * on, devices_.device(index));
  const DeviceScope scope(*calls_.devices, index);
  if (scope.code() != 0) return devices_.unusable(index, scope.code());
  const auto prepare = [&] { return calls_.pages->prepare(index, call); };
  if (const int code = calls_.pages->prepared(index, call) ? prepare() : devices_.load(*on, patience, prepare); code != 0)
    return devices_.failure(
        "loading the kernel for pages of " + std::string(name_of(call.source.type)) + " on " + devices_.name(index), code);
  const auto parts = tables_of(call);
  std::size_t bytes = 0;
  for (const auto& part : parts) bytes += words(part.size());
  HMC_ASSIGN(const AcceleratorScratch::Piece scratch, scratch_.take(index, bytes));
  PageTables tables{};
  std::size_t at = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    tables[i] = static_cast<std::byte*>(scratch.device) + at;
    if (i != static_cast<std::size_t>(PageTable::sums) && !parts[i].empty())
      std::memcpy(scratch.host + at, parts[i].data(), parts[i].size());
    if (i + 1 < parts.size()) at += words(parts[i].size());
  }
  BlockingCompletion done;
  Status status;
  {
    const std::scoped_lock lock(on->mutex);
    status = launch(*on, call, scratch, tables, &done);
  }
  if (status.ok()) status = done.wait(runtime_);
  if (status.ok() && !call.sums.empty()) std::memcpy(call.sums.data(), scratch.host + at, call.sums.size_bytes());
  scratch_.give(scratch);
  return status;
}

}  // namespace hmc
