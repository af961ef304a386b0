#include "native/functions.h"

namespace hmc::native {

int Collectives::start(const Call& call, int type, int op, Handle handle, Stream stream) const {
  switch (call.kind) {
    case Kind::all_reduce:
      return all_reduce(call.input, call.output, call.count, type, op, handle, stream);
    case Kind::reduce_scatter:
      return reduce_scatter(call.input, call.output, call.count, type, op, handle, stream);
    case Kind::all_gather:
      return all_gather(call.input, call.output, call.count, type, handle, stream);
    case Kind::broadcast:
      return broadcast(call.input, call.output, call.count, type, call.root, handle, stream);
    case Kind::reduce:
      return reduce(call.input, call.output, call.count, type, op, call.root, handle, stream);
  }
  return 0;
}

std::optional<int> op_number(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum:
      return 0;
    case ReduceOp::product:
      return 1;
    case ReduceOp::max:
      return 2;
    case ReduceOp::min:
      return 3;
    case ReduceOp::avg:
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor:
    case ReduceOp::premul_sum:
      break;
  }
  return std::nullopt;
}

}  // namespace hmc::native
