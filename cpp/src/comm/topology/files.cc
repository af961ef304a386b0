// Topology as a file of its text.
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "base/replace_file.h"
#include "hmc/topology.h"

namespace hmc {
namespace {

constexpr std::size_t max_file_bytes = 64 << 20;  // a line for each card: 10^5 cards
constexpr int most_links = 40;                    // that Linux follows

// What `file` leads to where it is a symbolic link, which stays.
std::filesystem::path behind_links(std::filesystem::path file) {
  for (int i = 0; i < most_links; ++i) {
    std::error_code none;
    const std::filesystem::path next = std::filesystem::read_symlink(file, none);
    if (none) break;
    file = file.parent_path() / next;  // `next` where that is absolute
  }
  return file;
}

// Whether a file may be writable although no other can replace it: its folder may not be, or it may be a mount of its own.
bool may_write_in_place(std::int64_t error) {
  return error == EACCES || error == EPERM || error == EROFS || error == EBUSY || error == EXDEV;
}

int write_in_place(const std::string& file, const std::string& text) {
  errno = 0;
  std::ofstream out(file);
  out << text << std::flush;
  return out ? 0 : errno != 0 ? errno : EIO;
}

// 0 or an errno.
int write_file(const std::string& name, const std::string& text) {
  const std::string file = behind_links(name).string();
  struct stat info{};
  const bool exists = stat(file.c_str(), &info) == 0;
  if (!exists && errno != ENOENT) return errno;
  if (exists && !S_ISREG(info.st_mode)) return write_in_place(file, text);
  if (exists && access(file.c_str(), W_OK) != 0) return errno;
  const Status replaced = replace_file(file, text, 0666, exists ? &info : nullptr);
  if (exists && may_write_in_place(replaced.native())) return write_in_place(file, text);
  return static_cast<int>(replaced.native());
}

}  // namespace

Result<Topology> Topology::load(const std::string& file) {
  std::ifstream in(file);
  std::string text;
  std::array<char, 64 << 10> part{};
  while (in && text.size() <= max_file_bytes) {
    in.read(part.data(), part.size());
    text.append(part.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (text.size() > max_file_bytes) {
    return Status(Code::invalid_argument,
                  "topology: " + file + " is larger than " + std::to_string(max_file_bytes >> 20) + " MiB; a topology is not");
  }
  if (!in.eof()) {
    return Status(Code::invalid_argument, "topology: " + file + " cannot be read: " + std::generic_category().message(errno),
                  errno);
  }
  auto read = parse(text);
  if (!read) return read.status().with_context(file);
  return read;
}

Status Topology::save(const std::string& file) const {
  HMC_TRY(check());
  const int error = write_file(file, str());
  if (error == 0) return {};
  return {Code::invalid_argument, "topology: " + file + " cannot be written: " + std::generic_category().message(error), error};
}

}  // namespace hmc
