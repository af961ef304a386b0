#include "device/cuda_chunks.h"

#include <unistd.h>

#include <cstdint>

namespace hmc {
namespace {

using cuda_driver::invalid_value;
using cuda_driver::posix_descriptor;
constexpr int not_supported = cuda_driver::codes.unsupported;

unsigned long long address(const void* data) { return reinterpret_cast<unsigned long long>(data); }

std::size_t total(std::span<const VendorChunk> chunks) {
  std::size_t bytes = 0;
  for (const VendorChunk& chunk : chunks) bytes += chunk.bytes;
  return bytes;
}

}  // namespace

// The driver hands out the handle that an address was mapped with.
bool CudaChunks::same_piece(Handle handle, Pointer at) {
  Handle other = 0;
  if (api_.retain(&other, reinterpret_cast<void*>(at)) != 0) return false;
  static_cast<void>(api_.release(other));
  return other == handle;
}

// What the driver calls the range of an address is the piece it lies in. That is checked at both ends: were it the whole
// reservation, the peer would map something else.
int CudaChunks::hold(const void* at, VendorChunk& chunk) {
  if (!api_.complete()) return not_supported;
  Handle handle = 0;
  if (const int code = api_.retain(&handle, const_cast<void*>(at)); code != 0) return code;
  Pointer base = 0;
  std::size_t bytes = 0;
  int code = api_.range(&base, &bytes, address(at));
  if (code == 0 && (bytes == 0 || !same_piece(handle, base) || !same_piece(handle, base + bytes - 1))) code = invalid_value;
  if (code != 0) static_cast<void>(api_.release(handle));
  chunk = {reinterpret_cast<void*>(base), bytes, handle, -1};
  return code;
}

void CudaChunks::release(const VendorChunk& chunk) { static_cast<void>(api_.release(chunk.handle)); }

bool CudaChunks::in_place(const VendorChunk& chunk) {
  const Pointer base = address(chunk.base);
  return same_piece(chunk.handle, base) && same_piece(chunk.handle, base + chunk.bytes - 1);
}

int CudaChunks::export_descriptor(VendorChunk& chunk) {
  return api_.export_handle(&chunk.descriptor, chunk.handle, posix_descriptor, 0);
}

int CudaChunks::map_one(const VendorChunk& chunk) {
  Handle handle = 0;
  int code = api_.import_handle(&handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(chunk.descriptor)), posix_descriptor);
  if (code != 0) return code;
  code = api_.map(address(chunk.base), chunk.bytes, 0, handle, 0);
  static_cast<void>(api_.release(handle));  // the mapping keeps the memory
  return code;
}

int CudaChunks::map(int index, std::span<VendorChunk> chunks) {
  if (!api_.complete()) return not_supported;
  const std::size_t bytes = total(chunks);
  Pointer base = 0;
  if (const int code = api_.reserve(&base, bytes, 0, 0, 0); code != 0) return code;
  int code = 0;
  std::size_t mapped = 0;
  std::size_t offset = 0;
  for (VendorChunk& chunk : chunks) {
    chunk.base = reinterpret_cast<void*>(base + offset);
    offset += chunk.bytes;
    if (code = map_one(chunk); code != 0) break;
    ++mapped;
  }
  if (code == 0) code = allow(index, chunks);
  if (code == 0) return 0;
  for (const VendorChunk& chunk : chunks.first(mapped)) static_cast<void>(api_.unmap(address(chunk.base), chunk.bytes));
  static_cast<void>(api_.unreserve(base, bytes));
  return code;
}

int CudaChunks::allow(int index, std::span<const VendorChunk> chunks) {
  const cuda_driver::Access access{cuda_driver::location_device, index, cuda_driver::access_read_write};
  return api_.allow(address(chunks.front().base), total(chunks), &access, 1);
}

void CudaChunks::unmap(std::span<const VendorChunk> chunks) {
  for (const VendorChunk& chunk : chunks) static_cast<void>(api_.unmap(address(chunk.base), chunk.bytes));
  static_cast<void>(api_.unreserve(address(chunks.front().base), total(chunks)));
}

}  // namespace hmc
