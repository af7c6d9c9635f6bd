#include "cuda/host_kernels.inl"

namespace cpr::cuda {

template const HostKernels& host_kernels<32>();

}  // namespace cpr::cuda
