// Tensors of torch by their C interface: Python's protocols cost several microseconds a tensor, more than a small collective.
#pragma once

#include "common.h"

namespace hmc::bindings {

// The memory of a torch.Tensor or torch.nn.Parameter, whose reference keeps it; the stream is torch's current one. Writes neither
// the owner nor, where it returns false, anything: for other types, subclasses included, and for every tensor that must be refused
// or that the C interface does not describe in full. The protocols know what to do with those. Never imports torch. GIL held.
// `thorough`: asks the storage of tensors under 16 KiB, too, whether it holds all elements.
bool torch_view(py::handle object, MemoryView& view, bool thorough);
// Throws InvalidArgumentError for a tensor of torch, subclasses included, whose storage was resized to less than its elements.
void refuse_beyond_storage(py::handle object);

}  // namespace hmc::bindings
