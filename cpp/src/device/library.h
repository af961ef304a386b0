// VendorLibrary: a vendor's runtime library, found at run time. Nothing is linked, and nothing is ever unloaded.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "hmc/status.h"

// A vendor's calls are tables of rows CALL(member, name, type): a row as the member of a struct.
#define HMC_CALL_MEMBER(member, name, ...) std::add_pointer_t<__VA_ARGS__> member = nullptr;

namespace hmc {

// How one vendor's library is found. First that fits: the environment variable (and then nothing else), a copy that this process
// has loaded already (frameworks bundle their own), a file that was suggested, the dynamic linker's search, the vendor's install
// folder.
struct LibraryRow {
  std::string_view variable;                   // "HMC_CUDA_LIBRARY": a path, or "off"
  std::string_view stem;                       // "libcuda.so": what the file names of every version start with
  std::span<const std::string_view> versions;  // "1" of "libcuda.so.1"; "" is the plain name. The first that opens is taken.
  std::span<const std::string_view> folders;   // where the vendor installs it
};

class VendorLibrary {
 public:
  explicit VendorLibrary(const LibraryRow& row) noexcept : row_(row) {}

  // Opens it unless it is open. Errors: unsupported, with everything that was tried.
  Status open();
  [[nodiscard]] bool is_open() const noexcept { return handle_ != nullptr; }
  // Cheap enough for every pointer that is classified: could this process hold memory of the vendor? Loads nothing. Not while
  // another thread is in here or in open().
  [[nodiscard]] bool resident();
  // Null when the library has no such symbol (an older version).
  [[nodiscard]] void* symbol(const std::string& name) const noexcept;
  template <class Function>
  void load(Function*& function, const std::string& name) const noexcept {
    function = reinterpret_cast<Function*>(symbol(name));
  }
  // From a library that this process has loaded already, by its exact name; opens nothing.
  template <class Function>
  static void load_loaded(Function*& function, const char* library, const char* name) noexcept {
    function = reinterpret_cast<Function*>(loaded_symbol(library, name));
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  // The path of a loaded object whose file name starts with `stem`.
  [[nodiscard]] static std::optional<std::string> loaded_copy(std::string_view stem);
  // Where the library of the row with that variable lies, if nothing better is known: in a Python package. Any thread.
  static void suggest(std::string_view variable, std::string path);
  // "hardware", or what a stand-in says of itself: "simulated", "facade".
  [[nodiscard]] std::string provenance() const;

 private:
  static void* loaded_symbol(const char* library, const char* name) noexcept;
  bool try_open(const std::string& path, int extra_flags);

  const LibraryRow row_;
  void* handle_ = nullptr;
  std::string path_;
  std::string tried_;
  unsigned long long loads_seen_ = 0;  // of the dynamic linker, when resident() last looked
};

}  // namespace hmc
