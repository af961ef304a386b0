// Sockets in the user's private directory.
#pragma once

#include <string>

namespace hmc {

// "<directory>/<pid>-<random>.sock"
std::string fresh_socket_path(const std::string& directory);
// Removes socket files in `directory` whose process is gone: no such process here (another pid namespace may share the directory)
// and nobody listens.
void remove_stale_sockets(const std::string& directory);

}  // namespace hmc
