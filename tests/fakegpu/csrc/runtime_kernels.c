/* libcudart: kernels. They are registered and launched, and do nothing but for those in launches.c. */
#include "runtime.h"

#include <string.h>

#include "devices.h"
#include "launches.h"

/* <<<...>>> compiles to a push, then a call of the host stub, which pops and launches. */
static __thread struct {
    struct dim3 grid, block;
    size_t shared_bytes;
    stream_handle stream;
} pushed;

unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared_bytes, stream_handle stream)
{
    pushed.grid = grid;
    pushed.block = block;
    pushed.shared_bytes = shared_bytes;
    pushed.stream = stream;
    return 0;
}

cudaError __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared_bytes, stream_handle *stream)
{
    *grid = pushed.grid;
    *block = pushed.block;
    *shared_bytes = pushed.shared_bytes;
    *stream = pushed.stream;
    return cudaSuccess;
}

cudaError cudaLaunchKernel(const void *kernel, struct dim3 grid, struct dim3 block, void **arguments,
                           size_t shared_bytes, stream_handle stream)
{
    (void)block, (void)shared_bytes, (void)stream;
    BEGIN();
    run_kernel(kernel, grid, arguments);
    return cudaSuccess;
}

cudaError __cudaLaunchKernel(const void *kernel, struct dim3 grid, struct dim3 block, void **arguments,
                             size_t shared_bytes, stream_handle stream)
{
    return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

cudaError cudaLaunchCooperativeKernel(const void *kernel, struct dim3 grid, struct dim3 block, void **arguments,
                                      size_t shared_bytes, stream_handle stream)
{
    return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

cudaError cudaLaunchKernelExC(const void *configuration, const void *kernel, void **arguments)
{
    BEGIN();
    run_kernel(kernel, *(const struct dim3 *)configuration, arguments); /* the grid comes first in it */
    return cudaSuccess;
}

/* The handle of a kernel is the address of its host stub. */
cudaError __cudaGetKernel(const void **kernel, const void *host_stub)
{
    *kernel = host_stub;
    return cudaSuccess;
}

cudaError cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel)
{
    (void)kernel;
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = CAPABILITY_MAJOR * 10 + CAPABILITY_MINOR;
    attributes->maxDynamicSharedSizeBytes = 48 << 10;
    return cudaSuccess;
}

cudaError cudaFuncSetAttribute(const void *kernel, int attribute, int value)
{
    (void)kernel, (void)attribute, (void)value;
    return cudaSuccess;
}

cudaError cudaKernelSetAttributeForDevice(const void *kernel, int attribute, int value, int ordinal)
{
    (void)kernel, (void)attribute, (void)value, (void)ordinal;
    return cudaSuccess;
}

cudaError cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int block_size,
                                                        size_t shared_bytes)
{
    (void)kernel, (void)block_size, (void)shared_bytes;
    *blocks = 2;
    return cudaSuccess;
}

cudaError cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel, int block_size,
                                                                 size_t shared_bytes, unsigned flags)
{
    (void)flags;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, block_size, shared_bytes);
}

void **__cudaRegisterFatBinary(const void *binary)
{
    (void)binary;
    static void *handle;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
}

char __cudaInitModule(void **handle)
{
    (void)handle;
    return 0;
}

void __cudaRegisterFunction(void **handle, const char *host_stub, char *device_stub, const char *name, int thread_limit,
                            void *thread, void *block, void *block_size, void *grid_size, int *warp_size)
{
    (void)handle, (void)device_stub, (void)thread_limit, (void)thread, (void)block, (void)block_size, (void)grid_size,
        (void)warp_size;
    remember_kernel(host_stub, name);
}

void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t bytes,
                       int constant, int global)
{
    (void)handle, (void)host, (void)device, (void)name, (void)external, (void)bytes, (void)constant, (void)global;
}
