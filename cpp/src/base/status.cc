#include "hmc/status.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/fork.h"
#include "hmc/version.h"

namespace hmc {

std::string_view to_string(Code code) noexcept {
  switch (code) {
    case Code::ok:
      return "ok";
    case Code::invalid_argument:
      return "invalid_argument";
    case Code::timeout:
      return "timeout";
    case Code::cancelled:
      return "cancelled";
    case Code::peer_lost:
      return "peer_lost";
    case Code::out_of_memory:
      return "out_of_memory";
    case Code::unsupported:
      return "unsupported";
    case Code::authentication:
      return "authentication";
    case Code::device:
      return "device";
    case Code::transport:
      return "transport";
    case Code::closed:
      return "closed";
    case Code::stale:
      return "stale";
    case Code::would_block:
      return "would_block";
    case Code::protocol:
      return "protocol";
  }
  return "unknown";
}

Status::Status(Code code, std::string message, std::int64_t native) {
  if (code != Code::ok) rep_ = std::make_shared<const Rep>(Rep{code, native, std::move(message)});
}

std::string Status::str() const {
  if (ok()) return "ok";
  std::string text(to_string(code()));
  text += ": ";
  text += message();
  if (native() != 0) text += " (native " + std::to_string(native()) + ")";
  return text;
}

Status Status::with_context(std::string_view context) const {
  if (ok()) return {};
  return Status(code(), std::string(context) + ": " + std::string(message()), native());
}

void abort_on_error(const Status& error) noexcept {
  const std::string_view name = to_string(error.code());
  const std::string_view message = error.message();
  std::fprintf(stderr, "hmc: a Result was used as a value but holds an error: %.*s: %.*s\n", static_cast<int>(name.size()),
               name.data(), static_cast<int>(message.size()), message.data());
  std::abort();
}

Status errno_status(std::string_view what, int error_number) {
  const Code code = [error_number] {
    switch (error_number) {
      case ENOMEM:
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOSPC:
        return Code::out_of_memory;
      case EINVAL:
      case ENAMETOOLONG:
      case EAFNOSUPPORT:
        return Code::invalid_argument;
      case ECONNREFUSED:
      case ECONNRESET:
      case EPIPE:
      case ESRCH:
      case EHOSTUNREACH:
      case ENETUNREACH:
        return Code::peer_lost;
      case ETIMEDOUT:
        return Code::timeout;
      case ENOSYS:
      case EOPNOTSUPP:
        return Code::unsupported;
      default:
        return Code::transport;
    }
  }();
  char buffer[128];
  std::string message(what);
  message += ": ";
  message += strerror_r(error_number, buffer, sizeof buffer);
  if (error_number == EMFILE) message += "; raise the descriptor limit (ulimit -n)";
  return Status(code, std::move(message), error_number);
}

Status forked_status() {
  return Status(Code::closed,
                "this object was made before fork(); HMC does not survive a fork: create a Context in the child instead");
}

std::string_view version() noexcept { return HMC_VERSION_TEXT; }

}  // namespace hmc
