// The fuzz targets of tests/fuzz under names of their own, for the mutation tests.
#define LLVMFuzzerTestOneInput hmc_fuzz_comm_control
#include "../../fuzz/fuzz_comm_control.cc"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput hmc_fuzz_comm_signal
#include "../../fuzz/fuzz_comm_signal.cc"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput hmc_fuzz_comm_descriptor
#include "../../fuzz/fuzz_comm_descriptor.cc"
#undef LLVMFuzzerTestOneInput
