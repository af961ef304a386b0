// Simulated CUDA driver: streams and events.
#include "copies.h"
#include "cuda_abi.h"

using hmc::sim::cuda_code;
using hmc::sim::Error;
using hmc::sim::find_stream;
using hmc::sim::StreamRef;
using hmc::sim::cuda::Context;
namespace sim = hmc::sim;

namespace {

void* at(std::uint64_t pointer) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(pointer)); }

int wait_value(void* stream, int device, std::uint64_t pointer, std::uint64_t value, std::size_t width, unsigned flags) {
  // CU_STREAM_WAIT_VALUE_GEQ to NOR; bit 30 asks for a flush of remote writes, which there are none of.
  const unsigned compare = flags & ~(1U << 30);
  if (compare > 3) return cuda_code(Error::invalid_value);
  return cuda_code(sim::wait_value(at(pointer), value, width, static_cast<sim::Compare>(compare), find_stream(stream, device)));
}

}  // namespace

HMC_SIM_EXPORT int cuStreamCreate(void** stream, unsigned flags) {
  HMC_SIM_ENTER_CONTEXT;
  if (flags > 1) return cuda_code(Error::invalid_value);
  return cuda_code(sim::create_stream(context->device, flags == 0, stream));
}

HMC_SIM_EXPORT int cuStreamCreateWithPriority(void** stream, unsigned flags, int /*priority*/) {
  HMC_SIM_ENTER_CONTEXT;
  if (flags > 1) return cuda_code(Error::invalid_value);
  return cuda_code(sim::create_stream(context->device, flags == 0, stream));
}

// Streams of every priority are served alike.
HMC_SIM_EXPORT int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  HMC_SIM_ENTER_CONTEXT;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = 0;
  return 0;
}

HMC_SIM_EXPORT int cuStreamDestroy_v2(void* stream) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::destroy_stream(stream));
}

HMC_SIM_EXPORT int cuStreamSynchronize(void* stream) {
  HMC_SIM_ENTER_CONTEXT;
  const StreamRef found = find_stream(stream, context->device);
  return cuda_code(found ? sim::fence(found).wait() : Error::invalid_handle);
}

HMC_SIM_EXPORT int cuStreamQuery(void* stream) {
  HMC_SIM_ENTER_CONTEXT;
  const StreamRef found = find_stream(stream, context->device);
  return cuda_code(found ? sim::mark(found).query() : Error::invalid_handle);
}

HMC_SIM_EXPORT int cuStreamWaitEvent(void* stream, void* event, unsigned /*flags*/) {
  HMC_SIM_ENTER_CONTEXT;
  const StreamRef found = find_stream(stream, context->device);
  return cuda_code(found ? sim::wait_event(found, event) : Error::invalid_handle);
}

HMC_SIM_EXPORT int cuStreamGetCtx(void* stream, Context** stream_context) {
  HMC_SIM_ENTER_CONTEXT;
  if (stream_context == nullptr) return cuda_code(Error::invalid_value);
  const StreamRef found = find_stream(stream, context->device);
  if (!found) return cuda_code(Error::invalid_handle);
  *stream_context = sim::cuda::primary_context(found->device());
  return 0;
}

HMC_SIM_EXPORT int cuLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::call_host(function, argument, find_stream(stream, context->device)));
}

HMC_SIM_EXPORT int cuStreamWriteValue32_v2(void* stream, std::uint64_t pointer, std::uint32_t value, unsigned /*flags*/) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::write_value(at(pointer), value, 4, find_stream(stream, context->device)));
}

HMC_SIM_EXPORT int cuStreamWriteValue64_v2(void* stream, std::uint64_t pointer, std::uint64_t value, unsigned /*flags*/) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::write_value(at(pointer), value, 8, find_stream(stream, context->device)));
}

HMC_SIM_EXPORT int cuStreamWaitValue32_v2(void* stream, std::uint64_t pointer, std::uint32_t value, unsigned flags) {
  HMC_SIM_ENTER_CONTEXT;
  return wait_value(stream, context->device, pointer, value, 4, flags);
}

HMC_SIM_EXPORT int cuStreamWaitValue64_v2(void* stream, std::uint64_t pointer, std::uint64_t value, unsigned flags) {
  HMC_SIM_ENTER_CONTEXT;
  return wait_value(stream, context->device, pointer, value, 8, flags);
}

HMC_SIM_EXPORT int cuEventCreate(void** event, unsigned /*flags*/) {
  HMC_SIM_ENTER_CONTEXT;
  return cuda_code(sim::create_event(context->device, event));
}

HMC_SIM_EXPORT int cuEventDestroy_v2(void* event) {
  HMC_SIM_ENTER;
  return cuda_code(sim::destroy_event(event));
}

HMC_SIM_EXPORT int cuEventRecord(void* event, void* stream) {
  HMC_SIM_ENTER_CONTEXT;
  const StreamRef found = find_stream(stream, context->device);
  return cuda_code(found ? sim::record_event(event, found) : Error::invalid_handle);
}

HMC_SIM_EXPORT int cuEventQuery(void* event) {
  HMC_SIM_ENTER;
  return cuda_code(sim::query_event(event));
}

HMC_SIM_EXPORT int cuEventSynchronize(void* event) {
  HMC_SIM_ENTER;
  return cuda_code(sim::synchronize_event(event));
}
