// DLPack (https://dmlc.github.io/dlpack): arrays in and out without a copy. Layouts as the specification gives them.
#pragma once

#include "common.h"

namespace hmc::bindings {

struct DlpackView {
  void* data = nullptr;
  std::size_t bytes = 0;
  Device device;
  bool read_only = false;
  bool says_writable = false;  // tensors from before DLPack 1 say neither
  py::object capsule;          // keeps the producer's memory: a capsule that nobody consumes frees it when it goes
};

// Asks `object` for its tensor. Throws InvalidArgumentError when it is not contiguous, or on a device nobody here knows.
DlpackView take_dlpack(py::handle object);
// `memory` as a one-dimensional uint8 tensor; the capsule shares ownership of the bytes.
py::object give_dlpack(const Memory& memory, py::handle max_version);
py::tuple dlpack_device(const Memory& memory);

}  // namespace hmc::bindings
