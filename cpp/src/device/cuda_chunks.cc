#include "device/cuda_chunks.h"

#include <unistd.h>

#include <cstdint>

namespace hmc {
namespace {

constexpr int posix_descriptor = 1;  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
constexpr int location_device = 1;
constexpr int read_write = 3;
constexpr int invalid_value = 1;
constexpr int not_supported = 801;

unsigned long long address(const void* data) { return reinterpret_cast<unsigned long long>(data); }

std::size_t total(std::span<const VendorChunk> chunks) {
  std::size_t bytes = 0;
  for (const VendorChunk& chunk : chunks) bytes += chunk.bytes;
  return bytes;
}

}  // namespace

void CudaChunks::load(const VendorLibrary& library) {
  available_ = true;
  const auto want = [&](auto*& function, const char* name) {
    library.load(function, name);
    available_ = available_ && function != nullptr;
  };
  want(range_, "cuMemGetAddressRange_v2");
  want(retain_, "cuMemRetainAllocationHandle");
  want(release_, "cuMemRelease");
  want(export_, "cuMemExportToShareableHandle");
  want(import_, "cuMemImportFromShareableHandle");
  want(reserve_, "cuMemAddressReserve");
  want(free_, "cuMemAddressFree");
  want(map_, "cuMemMap");
  want(unmap_, "cuMemUnmap");
  want(allow_, "cuMemSetAccess");
}

// The driver hands out the handle that an address was mapped with.
bool CudaChunks::same_piece(Handle handle, Pointer at) {
  Handle other = 0;
  if (retain_(&other, reinterpret_cast<void*>(at)) != 0) return false;
  static_cast<void>(release_(other));
  return other == handle;
}

// What the driver calls the range of an address is the piece it lies in. That is checked at both ends: were it the whole
// reservation, the peer would map something else.
int CudaChunks::export_chunk(const void* at, VendorChunk& chunk) {
  if (!available_) return not_supported;
  Handle handle = 0;
  if (const int code = retain_(&handle, const_cast<void*>(at)); code != 0) return code;
  Pointer base = 0;
  std::size_t bytes = 0;
  int code = range_(&base, &bytes, address(at));
  if (code == 0 && (bytes == 0 || !same_piece(handle, base) || !same_piece(handle, base + bytes - 1))) code = invalid_value;
  if (code == 0) code = export_(&chunk.descriptor, handle, posix_descriptor, 0);
  static_cast<void>(release_(handle));
  chunk.base = reinterpret_cast<void*>(base);
  chunk.bytes = bytes;
  return code;
}

int CudaChunks::map_one(const VendorChunk& chunk) {
  Handle handle = 0;
  int code = import_(&handle, reinterpret_cast<void*>(static_cast<std::intptr_t>(chunk.descriptor)), posix_descriptor);
  if (code != 0) return code;
  code = map_(address(chunk.base), chunk.bytes, 0, handle, 0);
  static_cast<void>(release_(handle));  // the mapping keeps the memory
  return code;
}

int CudaChunks::map_chunks(int device, std::span<VendorChunk> chunks) {
  if (!available_) return not_supported;
  const std::size_t bytes = total(chunks);
  Pointer base = 0;
  if (const int code = reserve_(&base, bytes, 0, 0, 0); code != 0) return code;
  int code = 0;
  std::size_t mapped = 0;
  std::size_t offset = 0;
  for (VendorChunk& chunk : chunks) {
    chunk.base = reinterpret_cast<void*>(base + offset);
    offset += chunk.bytes;
    if (code = map_one(chunk); code != 0) break;
    ++mapped;
  }
  if (code == 0) code = allow_chunks(device, chunks);
  if (code == 0) return 0;
  for (const VendorChunk& chunk : chunks.first(mapped)) static_cast<void>(unmap_(address(chunk.base), chunk.bytes));
  static_cast<void>(free_(base, bytes));
  return code;
}

int CudaChunks::allow_chunks(int device, std::span<const VendorChunk> chunks) {
  const Access access{location_device, device, read_write};
  return allow_(address(chunks.front().base), total(chunks), &access, 1);
}

void CudaChunks::unmap_chunks(std::span<const VendorChunk> chunks) {
  for (const VendorChunk& chunk : chunks) static_cast<void>(unmap_(address(chunk.base), chunk.bytes));
  static_cast<void>(free_(address(chunks.front().base), total(chunks)));
}

}  // namespace hmc
