#include "collective/figure_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/env.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/replace_file.h"
#include "collective/launch.h"
#include "hmc/status.h"

namespace hmc {
namespace {

constexpr std::size_t longest_file = 1 << 20;  // bytes; a group of 256 ranks takes at most a third of it

std::string hex(std::uint64_t value) {
  std::string text(16, '0');
  for (std::size_t i = text.size(); i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  return text;
}

// The system sets these, so they are not in the table of HMC's own variables.
std::string absolute_path_in(const char* variable) {
  const char* const text = std::getenv(variable);
  return text != nullptr && text[0] == '/' ? text : "";
}

void warn(const std::string& file, const std::string& why) {
  warn_once("figure cache", "the cache of measured links " + file + " " + why + "; links are measured again. HMC_CACHE moves it");
}

// All of a regular file of this user. Errors: why it is not used. nullopt: there is none.
Result<std::optional<std::string>> read_file(const std::string& path) {
  // A pipe must not block.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd && errno == ENOENT) return std::optional<std::string>();
  struct stat info{};
  if (!fd || fstat(fd.get(), &info) != 0) return errno_status("cannot be opened", errno);
  if (!S_ISREG(info.st_mode)) return Status(Code::invalid_argument, "is not a file");
  if (info.st_uid != geteuid()) return Status(Code::authentication, "belongs to another user");
  if (info.st_size > static_cast<off_t>(longest_file)) return Status(Code::invalid_argument, "is too long");
  std::string text;
  std::array<char, 16 << 10> block{};
  while (text.size() <= longest_file) {
    const ssize_t got = read(fd.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status("cannot be read", errno);
    if (got == 0) return std::optional(text);
    text.append(block.data(), static_cast<std::size_t>(got));
  }
  return Status(Code::invalid_argument, "is too long");
}

// Those of processes that were killed while they wrote, which takes milliseconds.
void remove_old_temporary_files(const std::string& folder) {
  constexpr auto old = std::chrono::hours(1);
  std::error_code failed;
  for (std::filesystem::directory_iterator each(folder, failed), end; !failed && each != end; each.increment(failed)) {
    if (!is_temporary_name(each->path().filename().native())) continue;
    std::error_code ignored;  // another process removes them too
    const auto written = std::filesystem::last_write_time(each->path(), ignored);
    if (!ignored && std::filesystem::file_time_type::clock::now() - written > old) std::filesystem::remove(each->path(), ignored);
  }
}

}  // namespace

std::string figure_cache_folder() {
  const std::string named = env_text("HMC_CACHE").value_or("");
  if (named == "off") return "";
  if (!named.empty()) return named;
  if (const std::string caches = absolute_path_in("XDG_CACHE_HOME"); !caches.empty()) return caches + "/hmc";
  const std::string home = absolute_path_in("HOME");
  return home.empty() ? "" : home + "/.cache/hmc";
}

std::string figure_cache_file(const std::string& folder, std::string_view key) {
  return folder + "/links-" + hex(job_hash(key)) + ".txt";
}

std::optional<LinkFigures> read_cached_figures(std::string_view key, std::span<const RankPair> pairs) {
  const std::string folder = figure_cache_folder();
  if (folder.empty()) return std::nullopt;
  const std::string file = figure_cache_file(folder, key);
  const auto text = read_file(file);
  if (!text.ok()) {
    warn(file, std::string(text.status().message()));
    return std::nullopt;
  }
  if (!text->has_value()) return std::nullopt;
  auto figures = parse_cache(**text, key, pairs);
  if (!figures) warn(file, "is damaged, or of another group or version");
  return figures;
}

void write_cached_figures(std::string_view key, std::span<const RankPair> pairs, const LinkFigures& figures) {
  const std::string folder = figure_cache_folder();
  if (folder.empty()) return;
  const std::string file = figure_cache_file(folder, key);
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) return warn(file, "cannot be written: " + failed.message());
  remove_old_temporary_files(folder);
  if (const Status written = replace_file(file, cache_text(key, pairs, figures), 0600); !written.ok())
    warn(file, std::string(written.message()));
}

}  // namespace hmc
