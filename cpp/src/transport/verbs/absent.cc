// The verbs transport of a build without the verbs headers: it says so.
#include "transport/transport.h"

namespace hmc {
namespace {

Result<std::unique_ptr<Transport>> create_verbs_transport(const TransportEnvironment& /*environment*/) {
  return Status(Code::unsupported,
                "built without the verbs headers (infiniband/verbs.h; Debian: libibverbs-dev, Red Hat: rdma-core-devel)");
}

}  // namespace
}  // namespace hmc

HMC_TRANSPORT(verbs, hmc::create_verbs_transport);
