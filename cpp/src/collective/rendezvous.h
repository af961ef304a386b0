// Rendezvous: where process 0 of a job can be met, and under which addresses others reach this process.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hmc/deadline.h"
#include "hmc/status.h"

namespace hmc {

// A Unix rendezvous is a symbolic link to the socket process 0 listens on anyway: it appears at once or not at all, what a dead job
// left behind is told from a living one, and it is gone once everybody has met.
class MeetingLink {
 public:
  MeetingLink() noexcept = default;
  MeetingLink(MeetingLink&& other) noexcept;
  MeetingLink& operator=(MeetingLink&& other) noexcept;
  ~MeetingLink() { remove(); }

  // path -> target, both without "unix:". Errors: invalid_argument (a living process listens there, or the path is something else).
  static Result<MeetingLink> publish(const std::string& path, const std::string& target);
  void remove() noexcept;  // unless somebody has put another there since

 private:
  std::string path_, target_;
};

struct HostPort {
  std::string host;  // without brackets
  std::string port;
};
// Errors: invalid_argument, with the accepted forms.
Result<HostPort> parse_tcp(std::string_view address);
// "tcp://[::]:port" for what is beyond loopback: a host's own name often resolves to its loopback there and nowhere else.
std::string listen_address_for(const HostPort& rendezvous);
bool is_loopback_name(std::string_view host);
// `listening` with wildcard hosts replaced by the address that this host has towards `rendezvous` (process 0: by the name others
// know). They are left out if the host of `rendezvous` is not found by `deadline`. No lock held.
std::vector<std::string> reachable_addresses(const std::vector<std::string>& listening, std::string_view rendezvous, bool process_0,
                                             Deadline deadline);

// Equal for processes of one running kernel, and of no other. Where a process cannot read it, it has one of its own: processes of
// several hosts must not be taken for those of one.
std::string kernel_id();
// That of a process which reads it from `file`.
std::string kernel_id_from(const std::string& file);
// Whether two processes may run on one kernel: equal, or one could not be read.
bool may_be_one_kernel(std::string_view a, std::string_view b) noexcept;

}  // namespace hmc
