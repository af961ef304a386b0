// DLPack's structures, as its specification lays them out (https://dmlc.github.io/dlpack/latest/c_api.html).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace hmc::bindings {

struct DlDevice {
  std::int32_t type;
  std::int32_t id;
};
struct DlType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
struct DlTensor {
  void* data;
  DlDevice device;
  std::int32_t ndim;
  DlType dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct DlManagedTensor {
  DlTensor tensor;
  void* manager;
  void (*deleter)(DlManagedTensor*);
};
struct DlManagedTensorVersioned {
  std::uint32_t major;
  std::uint32_t minor;
  void* manager;
  void (*deleter)(DlManagedTensorVersioned*);
  std::uint64_t flags;
  DlTensor tensor;
};

inline constexpr std::uint8_t dlpack_complex = 5;  // DlType::code

// What a producer's type offers to C as `__dlpack_c_exchange_api__`, a capsule of that name; it lives as long as the process. Each
// function returns 0, or -1 with an exception set. GIL held.
struct DlExchangeApi {
  std::uint32_t major;
  std::uint32_t minor;
  DlExchangeApi* previous_version;
  int (*allocate)(DlTensor*, DlManagedTensorVersioned**, void*, void (*)(void*, const char*, const char*));
  int (*managed_tensor_of)(void* object, DlManagedTensorVersioned**);
  int (*object_of)(DlManagedTensorVersioned*, void** object);
  int (*tensor_of)(void* object, DlTensor*);  // may be null; the tensor holds as long as the object is not changed
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** stream);
};
inline constexpr const char* dlpack_exchange_attribute = "__dlpack_c_exchange_api__";
inline constexpr const char* dlpack_exchange_name = "dlpack_exchange_api";

// Empty where the tensor is not C-contiguous.
inline std::optional<std::size_t> contiguous_bytes(const DlTensor& tensor) {
  std::int64_t expected = 1;
  for (std::int32_t i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] == 0) return 0;  // whatever its strides
  }
  for (std::int32_t i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.strides != nullptr && tensor.shape[i] > 1 && tensor.strides[i] != expected) return std::nullopt;
    expected *= tensor.shape[i];
  }
  return static_cast<std::size_t>(expected) * ((static_cast<std::size_t>(tensor.dtype.bits) * tensor.dtype.lanes + 7) / 8);
}

}  // namespace hmc::bindings
