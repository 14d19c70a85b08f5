/* libcudart: memory of the device and pinned memory of the host, and copies, which really happen. */
#include "runtime.h"

#include <string.h>

#include "budget.h"
#include "devices.h"
#include "memory.h"

static cudaError from_memory(enum memory_outcome memory)
{
    switch (memory) {
    case MEMORY_OK: return cudaSuccess;
    case MEMORY_FULL: return outcome(cudaErrorMemoryAllocation);
    default: return outcome(cudaErrorInvalidValue);
    }
}

cudaError cudaMemGetInfo(size_t *unused, size_t *total)
{
    BEGIN();
    *total = budget_total_bytes();
    *unused = *total - budget_used_bytes(current_physical());
    return cudaSuccess;
}

cudaError cudaMalloc(void **address, size_t bytes)
{
    *address = NULL;
    BEGIN();
    return bytes == 0 ? cudaSuccess : from_memory(device_allocate(current_physical(), bytes, address));
}

cudaError cudaFree(void *address)
{
    BEGIN();
    return address == NULL ? cudaSuccess : from_memory(device_free(address));
}

cudaError cudaMallocAsync(void **address, size_t bytes, stream_handle stream)
{
    (void)stream;
    return cudaMalloc(address, bytes);
}

cudaError cudaFreeAsync(void *address, stream_handle stream)
{
    (void)stream;
    return cudaFree(address);
}

cudaError cudaDeviceGetDefaultMemPool(void **pool, int ordinal)
{
    if (physical_device(ordinal) < 0)
        return outcome(cudaErrorInvalidDevice);
    *pool = (void *)(uintptr_t)(0xfa6e0000u + (unsigned)physical_device(ordinal));
    return cudaSuccess;
}

cudaError cudaMemPoolGetAttribute(void *pool, int attribute, void *value)
{
    uint64_t bytes = 0;
    if (attribute >= memPoolAttributeFirstSize && attribute <= memPoolAttributeLastSize)
        bytes = budget_own_bytes((int)((uintptr_t)pool & 0xff));
    memcpy(value, &bytes, sizeof bytes);
    return cudaSuccess;
}

cudaError cudaMemPoolSetAttribute(void *pool, int attribute, void *value)
{
    (void)pool, (void)attribute, (void)value;
    return cudaSuccess;
}

cudaError cudaMemPoolSetAccess(void *pool, const void *descriptors, size_t count)
{
    (void)pool, (void)descriptors, (void)count;
    return cudaSuccess;
}

cudaError cudaMemPoolTrimTo(void *pool, size_t keep)
{
    (void)pool, (void)keep;
    return cudaSuccess;
}

cudaError cudaHostAlloc(void **address, size_t bytes, unsigned flags)
{
    (void)flags;
    *address = NULL;
    BEGIN();
    return bytes == 0 ? cudaSuccess : from_memory(pinned_allocate(current_physical(), bytes, address));
}

cudaError cudaFreeHost(void *address)
{
    BEGIN();
    return address == NULL ? cudaSuccess : from_memory(pinned_free(address));
}

cudaError cudaHostRegister(void *address, size_t bytes, unsigned flags)
{
    (void)flags;
    BEGIN();
    pinned_register(current_physical(), address, bytes);
    return cudaSuccess;
}

cudaError cudaHostUnregister(void *address)
{
    BEGIN();
    return from_memory(pinned_unregister(address));
}

static int ordinal_of(int physical)
{
    for (int ordinal = 0; ordinal < visible_device_count(); ordinal++)
        if (physical_device(ordinal) == physical)
            return ordinal;
    return -1;
}

cudaError cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address)
{
    memset(attributes, 0, sizeof *attributes);
    BEGIN();
    struct region region;
    if (!find_region(address, &region)) {
        attributes->type = cudaMemoryTypeUnregistered;
        attributes->device = -2; /* cudaInvalidDeviceId */
        attributes->hostPointer = (void *)(uintptr_t)address;
        return cudaSuccess;
    }
    bool on_device = region.kind == MEMORY_DEVICE || region.kind == MEMORY_MAPPED;
    attributes->type = on_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    attributes->device = ordinal_of(region.device);
    attributes->devicePointer = (void *)(uintptr_t)address;
    attributes->hostPointer = on_device ? NULL : (void *)(uintptr_t)address;
    return cudaSuccess;
}

/* ---- copies: these really happen ---- */

cudaError cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    (void)kind;
    BEGIN();
    memmove(to, from, bytes);
    return cudaSuccess;
}

cudaError cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, stream_handle stream)
{
    (void)stream;
    return cudaMemcpy(to, from, bytes, kind);
}

cudaError cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                              stream_handle stream)
{
    (void)to_device, (void)from_device, (void)stream;
    return cudaMemcpy(to, from, bytes, 0);
}

cudaError cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                            int kind, stream_handle stream)
{
    (void)kind, (void)stream;
    BEGIN();
    for (size_t row = 0; row < height; row++)
        memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return cudaSuccess;
}

/* Symbols live in device code, which is not there. */
cudaError cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset, int kind)
{
    (void)symbol, (void)from, (void)bytes, (void)offset, (void)kind;
    return cudaSuccess;
}

cudaError cudaMemset(void *address, int value, size_t bytes)
{
    BEGIN();
    fill_bytes(address, value, bytes);
    return cudaSuccess;
}

cudaError cudaMemsetAsync(void *address, int value, size_t bytes, stream_handle stream)
{
    (void)stream;
    return cudaMemset(address, value, bytes);
}
