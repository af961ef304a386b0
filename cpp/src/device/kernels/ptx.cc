#include "device/kernels/ptx.h"

// The file's bytes and a NUL, as the driver takes C strings. Rows HMC_PTX(mapped_bf16, "<path>") are in ptx_files.h, which CMake
// writes.
// clang-format off
#define HMC_PTX(name, path)                                          \
  asm(".pushsection .rodata.hmc_ptx, \"a\", %progbits\n"             \
      ".globl hmc_ptx_" #name "\n"                                   \
      ".hidden hmc_ptx_" #name "\n"                                  \
      "hmc_ptx_" #name ":\n"                                         \
      ".incbin \"" path "\"\n"                                       \
      ".byte 0\n"                                                    \
      ".popsection");                                                \
  extern "C" [[gnu::visibility("hidden")]] const char hmc_ptx_##name[];
// clang-format on
#include "ptx_files.h"
#undef HMC_PTX

namespace hmc {
namespace {

struct Image {
  std::string_view kernel;
  const char* text;
};

#define HMC_PTX(name, path) {"hmc_" #name, hmc_ptx_##name},
constexpr Image images[] = {
#include "ptx_files.h"
};
#undef HMC_PTX

}  // namespace

const char* ptx_of(std::string_view kernel) noexcept {
  for (const Image& image : images)
    if (image.kernel == kernel) return image.text;
  return nullptr;
}

}  // namespace hmc
