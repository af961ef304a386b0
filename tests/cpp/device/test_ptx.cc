// The PTX in the library: every kernel that the CUDA runtime loads by name is there, as a whole text.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "device/exchange_kernel.h"
#include "device/kernels/ptx.h"
#include "device/page_kernel.h"
#include "device/reduce_kernel.h"
#include "device/weighted_sum_kernel.h"

namespace hmc {
namespace {

std::vector<std::string> kernels() {
  std::vector<std::string> names{"hmc_copy_blocks"};
  for (std::size_t each = 0; each < data_types; ++each) {
    const auto type = static_cast<DataType>(each);
    names.push_back(name_of_reduce_kernel(type));
    names.push_back(name_of_exchange_kernel(type));
  }
  for (const DataType type :
       {DataType::f32, DataType::f16, DataType::bf16, DataType::f8_e4m3fn, DataType::f8_e4m3fnuz, DataType::f8_e5m2}) {
    names.push_back(name_of_weighted_sum_kernel(type));
    names.push_back(PageKernelId{true, type}.name());
  }
  for (const DataType type : {DataType::f8_e4m3fn, DataType::bf16, DataType::f32})
    names.push_back(PageKernelId{false, type}.name());
  return names;
}

class Ptx : public ::testing::TestWithParam<std::string> {};

TEST_P(Ptx, IsTheWholeTextOfTheKernel) {
  const char* const data = ptx_of(GetParam());
  ASSERT_NE(data, nullptr);
  const std::string_view text = data;
  EXPECT_TRUE(text.starts_with(".version 6.0\n.target sm_")) << text.substr(0, 40);
  EXPECT_NE(text.find(".visible .entry " + GetParam() + "("), std::string_view::npos);
  EXPECT_TRUE(text.ends_with("\n}\n")) << "the NUL comes right after the file's last line";
}

INSTANTIATE_TEST_SUITE_P(All, Ptx, ::testing::ValuesIn(kernels()), [](const auto& info) { return info.param; });

TEST(PtxOf, UnknownKernelHasNone) {
  EXPECT_EQ(ptx_of("hmc_weighted_sum_i64"), nullptr);
  EXPECT_EQ(ptx_of("copy_blocks"), nullptr);
  EXPECT_EQ(ptx_of(""), nullptr);
}

}  // namespace
}  // namespace hmc
