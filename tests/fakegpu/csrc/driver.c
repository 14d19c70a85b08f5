/* libcuda.so.1: the driver functions that PyTorch looks up through cudaGetDriverEntryPointByVersion. Virtual memory
 * management is real (expandable segments stand on it); modules and kernels of run-time compiled code load and do
 * nothing. */
#include <string.h>

#include "budget.h"
#include "cuda_abi.h"
#include "devices.h"
#include "memory.h"
#include "properties.h"

typedef uint64_t device_address;
typedef void *context_handle;

static context_handle context_of(int physical)
{
    return (context_handle)(uintptr_t)(0xfa6ec000u + (unsigned)physical);
}

static CUresult from_memory(enum memory_outcome memory)
{
    return memory == MEMORY_OK     ? cudaSuccess
           : memory == MEMORY_FULL ? cudaErrorMemoryAllocation
                                   : cudaErrorInvalidValue;
}

static CUresult need_device(int ordinal)
{
    if (forked_after_start())
        return cudaErrorInitializationError;
    return physical_device(ordinal) < 0 ? cudaErrorInvalidDevice : cudaSuccess;
}

CUresult cuInit(unsigned flags)
{
    (void)flags;
    if (forked_after_start())
        return cudaErrorInitializationError;
    return visible_device_count() == 0 ? cudaErrorNoDevice : cudaSuccess;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = CUDA_VERSION_NUMBER;
    return cudaSuccess;
}

CUresult cuDeviceGetCount(int *count)
{
    *count = visible_device_count();
    return cudaSuccess;
}

CUresult cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return need_device(ordinal);
}

CUresult cuDeviceGetAttribute(int *value, int attribute, int ordinal)
{
    if (need_device(ordinal) == cudaSuccess)
        *value = device_attribute(physical_device(ordinal), attribute);
    return need_device(ordinal);
}

CUresult cuDeviceGetUuid(unsigned char *uuid, int ordinal)
{
    if (need_device(ordinal) == cudaSuccess)
        device_uuid(physical_device(ordinal), uuid);
    return need_device(ordinal);
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    switch (error) {
    case cudaSuccess: *text = "no error"; break;
    case cudaErrorInvalidValue: *text = "invalid argument"; break;
    case cudaErrorMemoryAllocation: *text = "out of memory"; break;
    case cudaErrorInitializationError: *text = "initialization error"; break;
    case cudaErrorInvalidDevice: *text = "invalid device ordinal"; break;
    case cudaErrorNotSupported: *text = "operation not supported"; break;
    default: *text = "unknown error";
    }
    return cudaSuccess;
}

CUresult cuGetErrorName(CUresult error, const char **text)
{
    return cuGetErrorString(error, text);
}

/* ---- contexts ---- */

CUresult cuDevicePrimaryCtxGetState(int ordinal, unsigned *flags, int *active)
{
    *flags = 0;
    *active = 0;
    if (need_device(ordinal) == cudaSuccess)
        *active = budget_has_context(physical_device(ordinal));
    return need_device(ordinal);
}

CUresult cuDevicePrimaryCtxRetain(context_handle *context, int ordinal)
{
    CUresult found = need_device(ordinal);
    if (found != cudaSuccess)
        return found;
    *context = context_of(physical_device(ordinal));
    return enter_device(physical_device(ordinal)) ? cudaSuccess : cudaErrorMemoryAllocation;
}

CUresult cuCtxGetCurrent(context_handle *context)
{
    *context = thread_is_bound() ? context_of(physical_device(thread_ordinal())) : NULL;
    return cudaSuccess;
}

CUresult cuCtxSetCurrent(context_handle context)
{
    for (int ordinal = 0; ordinal < visible_device_count(); ordinal++)
        if (context_of(physical_device(ordinal)) == context) {
            thread_choose(ordinal);
            thread_bind();
        }
    return cudaSuccess;
}

/* ---- virtual memory management ---- */

CUresult cuMemAddressReserve(device_address *address, size_t bytes, size_t alignment, device_address hint,
                             unsigned long long flags)
{
    (void)hint, (void)flags;
    void *start;
    enum memory_outcome reserved = address_reserve(bytes, alignment, &start);
    if (reserved == MEMORY_OK)
        *address = (uintptr_t)start;
    return from_memory(reserved);
}

CUresult cuMemAddressFree(device_address address, size_t bytes)
{
    return from_memory(address_free((void *)(uintptr_t)address, bytes));
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const struct CUmemAllocationProp *properties, int option)
{
    (void)properties, (void)option;
    *granularity = DEVICE_PAGE_BYTES;
    return cudaSuccess;
}

CUresult cuMemCreate(uint64_t *handle, size_t bytes, const struct CUmemAllocationProp *properties,
                     unsigned long long flags)
{
    (void)flags;
    if (properties->requestedHandleTypes & memHandleTypeFabric)
        return cudaErrorNotSupported; /* torch then asks again for plain file descriptors */
    CUresult found = need_device(properties->location.id);
    if (found != cudaSuccess)
        return found;
    if (bytes % DEVICE_PAGE_BYTES != 0)
        return cudaErrorInvalidValue;
    int physical = physical_device(properties->location.id);
    if (!enter_device(physical))
        return cudaErrorMemoryAllocation;
    return from_memory(physical_create(physical, bytes, handle));
}

CUresult cuMemRelease(uint64_t handle)
{
    return from_memory(physical_release(handle));
}

CUresult cuMemMap(device_address address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags)
{
    (void)flags;
    return offset != 0 ? cudaErrorInvalidValue : from_memory(physical_map((void *)(uintptr_t)address, bytes, handle));
}

CUresult cuMemUnmap(device_address address, size_t bytes)
{
    return from_memory(physical_unmap((void *)(uintptr_t)address, bytes));
}

CUresult cuMemSetAccess(device_address address, size_t bytes, const void *descriptors, size_t count)
{
    (void)address, (void)bytes, (void)descriptors, (void)count;
    return cudaSuccess;
}

CUresult cuMemRetainAllocationHandle(uint64_t *handle, const void *address)
{
    return from_memory(physical_retain(address, handle));
}

CUresult cuMemGetAllocationPropertiesFromHandle(struct CUmemAllocationProp *properties, uint64_t handle)
{
    int physical = physical_device_of(handle);
    if (physical < 0)
        return cudaErrorInvalidValue;
    memset(properties, 0, sizeof *properties);
    properties->type = 1;
    properties->location.type = 1;
    for (int ordinal = 0; ordinal < visible_device_count(); ordinal++)
        if (physical_device(ordinal) == physical)
            properties->location.id = ordinal;
    return cudaSuccess;
}

CUresult cuMemGetAddressRange_v2(device_address *start, size_t *bytes, device_address address)
{
    struct region region;
    if (!find_region((const void *)(uintptr_t)address, &region))
        return cudaErrorInvalidValue;
    if (start != NULL)
        *start = region.start;
    if (bytes != NULL)
        *bytes = region.bytes;
    return cudaSuccess;
}

CUresult cuMemGetAddressRange(device_address *start, size_t *bytes, device_address address)
{
    return cuMemGetAddressRange_v2(start, bytes, address);
}

/* ---- run-time compiled code: loads, launches, does nothing ---- */

CUresult cuModuleLoadData(void **module, const void *image)
{
    (void)image;
    *module = (void *)(uintptr_t)0xfa6ed000u;
    return cudaSuccess;
}

CUresult cuModuleLoadDataEx(void **module, const void *image, unsigned count, void *options, void **values)
{
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}

CUresult cuModuleUnload(void *module)
{
    (void)module;
    return cudaSuccess;
}

CUresult cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module, (void)name;
    *function = (void *)(uintptr_t)0xfa6ee000u;
    return cudaSuccess;
}

CUresult cuFuncSetAttribute(void *function, int attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return cudaSuccess;
}

CUresult cuFuncSetCacheConfig(void *function, int configuration)
{
    (void)function, (void)configuration;
    return cudaSuccess;
}

CUresult cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared_bytes, void *stream, void **arguments, void **extra)
{
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared_bytes, (void)stream;
    (void)arguments, (void)extra;
    return cudaSuccess;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int block_size, size_t shared_bytes)
{
    (void)function, (void)block_size, (void)shared_bytes;
    *blocks = 2;
    return cudaSuccess;
}
