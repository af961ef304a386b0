// What the files of the ABIs share: how a name is exported, how an entry point begins, and the codes of the CUDA family.
#pragma once

#include "core.h"

// The vendor's names are all that a library exports; they are looked up at run time, by dlsym or by an unmodified client.
#define HMC_SIM_EXPORT extern "C" __attribute__((visibility("default")))

namespace hmc::sim {

// Codes of the CUDA driver. HIP, DTK and MUSA number theirs alike.
constexpr int cuda_not_initialized = 3;
constexpr int cuda_no_context = 201;
constexpr int cuda_context_destroyed = 709;
constexpr int cuda_not_supported = 801;
constexpr int cuda_invalid_direction = 21;

constexpr int cuda_code(Error error) {
  switch (error) {
    case Error::ok:
      return 0;
    case Error::invalid_value:
      return 1;
    case Error::out_of_memory:
      return 2;
    case Error::no_device:
      return 100;
    case Error::invalid_device:
      return 101;
    case Error::same_process:
      return cuda_no_context;
    case Error::invalid_handle:
      return 400;
    case Error::not_found:
      return 500;
    case Error::not_ready:
      return 600;
    case Error::illegal_address:
      return 700;
    case Error::no_peer_access:
      return 217;
    case Error::peer_already_enabled:
      return 704;
    case Error::already_registered:
      return 712;
    case Error::not_registered:
      return 713;
  }
  return 999;
}

// Name and text of one code.
struct CodeName {
  int code;
  const char* name;
  const char* text;
};

}  // namespace hmc::sim
