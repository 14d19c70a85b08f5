/* What the parts of libcudart share. runtime_*.c each hold one family of its functions; functions that none of them has
 * come from the generated weak stubs and answer cudaErrorNotSupported. */
#ifndef FAKEGPU_RUNTIME_H
#define FAKEGPU_RUNTIME_H

#include "cuda_abi.h"

typedef void *stream_handle;

/* Keeps an error as the thread's last one, until cudaGetLastError takes it, and returns it. */
__attribute__((visibility("hidden"))) cudaError outcome(cudaError error);

__attribute__((visibility("hidden"))) int current_physical(void);

/* What nearly every call does first in the real runtime: initialise, and create the context of the current device. */
__attribute__((visibility("hidden"))) cudaError begin(void);

#define BEGIN()                    \
    do {                           \
        cudaError begun = begin(); \
        if (begun != cudaSuccess)  \
            return begun;          \
    } while (0)

#endif
