/* The few kernels that the rig carries out, because programs look at what they leave behind: constant fills, copies
 * between strided tensors of one type, torch.cat. All other kernels do nothing. */
#ifndef FAKEGPU_LAUNCHES_H
#define FAKEGPU_LAUNCHES_H

#include "cuda_abi.h"

/* Called for each kernel when its library is loaded; the name is the mangled one. */
void remember_kernel(const void *host_stub, const char *name);

/* Takes as long as FAKEGPU_KERNEL_DELAY_US says, whatever it is. */
void run_kernel(const void *host_stub, struct dim3 grid, void **arguments);

#endif
