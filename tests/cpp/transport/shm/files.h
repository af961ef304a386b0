// Files that a peer might pass.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"

namespace hmc::testing {

inline UniqueFd memfd(std::size_t bytes, int seals) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  if (seals != 0 && fcntl(fd.get(), F_ADD_SEALS, seals) != 0) ADD_FAILURE() << "sealing failed";
  return fd;
}

}  // namespace hmc::testing
