#include "device/library.h"

#include <dlfcn.h>
#include <link.h>

#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "base/env.h"

namespace hmc {
namespace {

// Objects that were ever loaded: a changed number means that something new may be there.
unsigned long long dynamic_loads() {
  unsigned long long loads = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        *static_cast<unsigned long long*>(out) = info->dlpi_adds;
        return 1;
      },
      &loads);
  return loads;
}

struct Suggestions {
  std::mutex mutex;
  std::map<std::string, std::string, std::less<>> paths;  // by variable
};

// Whether a file is loaded, by any of its paths.
bool is_loaded(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

Suggestions& suggestions() {
  static Suggestions& all = *new Suggestions;
  return all;
}

std::optional<std::string> suggested(std::string_view variable) {
  const std::scoped_lock lock(suggestions().mutex);
  const auto found = suggestions().paths.find(variable);
  if (found == suggestions().paths.end()) return std::nullopt;
  return found->second;
}

}  // namespace

std::optional<std::string> VendorLibrary::loaded_copy(std::string_view stem) {
  struct Search {
    std::string_view stem;
    std::optional<std::string> path;
  } search{stem, std::nullopt};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        auto& wanted = *static_cast<Search*>(out);
        const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
        if (!path.substr(path.rfind('/') + 1).starts_with(wanted.stem)) return 0;
        wanted.path = std::string(path);
        return 1;
      },
      &search);
  return search.path;
}

void VendorLibrary::suggest(std::string_view variable, std::string path) {
  const std::scoped_lock lock(suggestions().mutex);
  suggestions().paths.insert_or_assign(std::string(variable), std::move(path));
}

bool VendorLibrary::try_open(const std::string& path, int extra_flags) {
  handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | extra_flags);
  if (handle_ != nullptr) {
    path_ = path;
    return true;
  }
  const char* error = dlerror();
  const std::string_view why = error == nullptr ? "" : error;
  // That a file is not there needs no telling for every place; that one is there and does not load does, also where a file is
  // missing that it needs: that one's name begins the text then.
  const bool absent = why.starts_with(path + ":") && why.find("No such file") != std::string_view::npos;
  if (!absent && tried_.find(why) == std::string::npos) tried_ += (tried_.empty() ? "" : "; ") + std::string(why);
  return false;
}

Status VendorLibrary::open() {
  if (handle_ != nullptr) return {};
  tried_.clear();
  if (const auto named = env_text(row_.variable)) {
    if (*named == "off") return Status(Code::unsupported, "switched off by " + std::string(row_.variable));
    if (try_open(*named, 0)) return {};
    return Status(Code::unsupported, std::string(row_.variable) + "=" + *named + " does not load" +
                                         (tried_.empty() ? ": no such file" : ": " + tried_));
  }
  if (const auto loaded = loaded_copy(row_.stem); loaded && try_open(*loaded, RTLD_NOLOAD)) return {};
  tried_.clear();
  if (const auto path = suggested(row_.variable); path && try_open(*path, 0)) return {};
  const auto file = [this](std::string_view version) {
    return std::string(row_.stem) + (version.empty() ? "" : ".") + std::string(version);
  };
  for (const auto version : row_.versions) {
    if (try_open(file(version), 0)) return {};
  }
  for (const auto folder : row_.folders) {
    for (const auto version : row_.versions) {
      if (try_open(std::string(folder) + "/" + file(version), 0)) return {};
    }
  }
  if (!tried_.empty()) return Status(Code::unsupported, std::string(row_.stem) + " does not load: " + tried_);
  return Status(Code::unsupported, std::string(row_.stem) + " is not installed");
}

bool VendorLibrary::resident() {
  if (handle_ != nullptr) return true;
  const auto named = env_text(row_.variable);
  if (named == "off") return false;
  const unsigned long long loads = dynamic_loads();
  if (loads == loads_seen_) return false;
  loads_seen_ = loads;
  return named ? is_loaded(*named) : loaded_copy(row_.stem).has_value();
}

void* VendorLibrary::symbol(const std::string& name) const noexcept {
  return handle_ == nullptr ? nullptr : dlsym(handle_, name.c_str());
}

void* VendorLibrary::loaded_symbol(const char* library, const char* name) noexcept {
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  return handle == nullptr ? nullptr : dlsym(handle, name);
}

std::string VendorLibrary::provenance() const {
  if (symbol("hmcsim_description") != nullptr) return "simulated";
  if (symbol("hmcfacade_description") != nullptr) return "facade";
  return "hardware";
}

}  // namespace hmc
