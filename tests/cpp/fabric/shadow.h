// Where the fabric reaches what was registered: host memory where it is, device memory of the simulated vendors, which faults on
// any access by the host, by a second mapping of its file.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace hmc::fabric {

class Shadow {
 public:
  static std::unique_ptr<Shadow> of_host(void* address);
  // Memory of its own: what is written there is seen by nobody else.
  static std::unique_ptr<Shadow> of_nothing(std::size_t bytes);
  // Null with errno where the file cannot be mapped.
  static std::unique_ptr<Shadow> of_file(int fd, std::uint64_t offset, std::size_t bytes);
  static std::unique_ptr<Shadow> of_device(void* address, std::size_t bytes);
  ~Shadow();
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;
  [[nodiscard]] std::byte* data() const noexcept { return data_; }

 private:
  Shadow() = default;
  static std::unique_ptr<Shadow> map(int fd, std::uint64_t offset, std::size_t bytes);
  std::byte* data_ = nullptr;
  void* mapping_ = nullptr;
  std::size_t mapped_ = 0;
};

// Whether the host may read it.
bool readable(const void* address, std::size_t bytes);

}  // namespace hmc::fabric
