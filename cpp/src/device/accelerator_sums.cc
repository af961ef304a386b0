#include "device/accelerator_sums.h"

#include <chrono>
#include <cstring>
#include <string>
#include <utility>

namespace hmc {
namespace {

constexpr std::chrono::milliseconds patience{100};  // the CPU computes while a kernel cannot be loaded

}  // namespace

Result<bool> AcceleratorSums::prepare(int index, DataType type) {
  HMC_ASSIGN(AcceleratorDevice * on, devices_.device(index));
  if (calls_.weighted_sums == nullptr) return Status(Code::unsupported, "HMC has no kernel for " + devices_.vendor());
  const DeviceScope scope(*calls_.devices, index);
  if (scope.code() != 0) return devices_.unusable(index, scope.code());
  const auto load = [&] { return calls_.weighted_sums->prepare(index, type); };
  const int code = calls_.weighted_sums->prepared(index, type) ? load() : devices_.load(*on, patience, load);
  if (code == 0) return true;
  if (code == calls_.traits.codes.unsupported && !calls_.weighted_sums->prepared(index, type)) return false;
  return devices_.failure("loading the kernel for weighted sums of " + std::string(name_of(type)) + " on " + devices_.name(index),
                          code);
}

// With the device's mutex held and the device current.
Status AcceleratorSums::launch(AcceleratorDevice& on, const WeightedSumOp& op, const AcceleratorScratch::Piece& scratch,
                               Completion* done) {
  HMC_ASSIGN(CopyStream * stream, devices_.stream(on, AcceleratorDevice::compute_stream));
  std::uintptr_t row_bits = 0;
  for (const WeightedTerm& term : op.terms) row_bits |= reinterpret_cast<std::uintptr_t>(term.row);
  const VendorWeightedSum sum{.target = op.target.data,
                              .terms = scratch.device,
                              .row_bits = row_bits,
                              .results = op.results,
                              .terms_count = op.terms.size() / op.results,
                              .row_bytes = op.target.bytes / op.results,
                              .type = op.type};
  int code = calls_.copies->copy(scratch.device, scratch.host, op.terms.size_bytes(), CopyDirection::to_device, stream->handle);
  if (code == 0) code = calls_.weighted_sums->run(scratch.index, sum, stream->handle);
  Status failed = code == 0 ? Status() : devices_.failure("weighted sums on " + devices_.name(scratch.index), code);
  devices_.leave_event(on, *stream, done, std::move(failed));
  return {};
}

Status AcceleratorSums::run(const WeightedSumOp& op) {
  const int index = op.target.device.index();
  HMC_ASSIGN(const bool ready, prepare(index, op.type));
  if (!ready) return Status(Code::unsupported, "the kernel for weighted sums on " + devices_.name(index) + " is not loaded yet");
  HMC_ASSIGN(AcceleratorDevice * on, devices_.device(index));
  const DeviceScope scope(*calls_.devices, index);
  if (scope.code() != 0) return devices_.unusable(index, scope.code());
  HMC_ASSIGN(const AcceleratorScratch::Piece scratch, scratch_.take(index, op.terms.size_bytes()));
  std::memcpy(scratch.host, op.terms.data(), op.terms.size_bytes());
  BlockingCompletion done;
  Status status;
  {
    const std::scoped_lock lock(on->mutex);
    status = launch(*on, op, scratch, &done);
  }
  if (status.ok()) status = done.wait(runtime_);
  scratch_.give(scratch);
  return status;
}

}  // namespace hmc
