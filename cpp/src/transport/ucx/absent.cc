// The ucx transport of a build without UCX's headers: it says so.
#include "transport/transport.h"

namespace hmc {
namespace {

Result<std::unique_ptr<Transport>> create_ucx_transport(const TransportEnvironment& /*environment*/) {
  return Status(Code::unsupported, "built without UCX's headers (ucp/api/ucp.h; Debian: libucx-dev, Red Hat: ucx-devel)");
}

}  // namespace
}  // namespace hmc

HMC_TRANSPORT(ucx, hmc::create_ucx_transport, false, true);
