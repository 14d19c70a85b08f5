/* Device and pinned memory of this process: real, lazily committed host pages behind every fake device pointer.
 *
 * Pages are anonymous, so they read as zero until written and cost nothing until then: a model of 40 GiB "on the card"
 * takes host memory only for what copies really write. Unmapping or freeing returns the pages to the system. */
#ifndef FAKEGPU_MEMORY_H
#define FAKEGPU_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum memory_kind { MEMORY_DEVICE, MEMORY_MAPPED, MEMORY_PINNED, MEMORY_REGISTERED };

struct region {
    uintptr_t start;
    size_t bytes;
    enum memory_kind kind;
    int device; /* physical; for pinned memory the device that was current */
};

enum memory_outcome { MEMORY_OK, MEMORY_FULL, MEMORY_UNKNOWN };

/* cudaMalloc and cudaFree. Sizes are rounded up to DEVICE_PAGE_BYTES, as the driver does for PyTorch's requests. */
enum memory_outcome device_allocate(int physical, size_t bytes, void **address);
enum memory_outcome device_free(void *address);

/* cudaHostAlloc and friends; `registered` memory belongs to the caller and is only remembered. */
enum memory_outcome pinned_allocate(int physical, size_t bytes, void **address);
enum memory_outcome pinned_free(void *address);
void pinned_register(int physical, void *address, size_t bytes);
enum memory_outcome pinned_unregister(void *address);

/* The region that contains the address; false when it is none of ours. */
bool find_region(const void *address, struct region *out);

/* Virtual memory management: addresses are reserved, physical memory is created (that takes the budget), mapped,
 * unmapped, released. As in CUDA, bytes return to the device when the handle is released and its last mapping is gone.
 */
enum memory_outcome address_reserve(size_t bytes, size_t alignment, void **address);
enum memory_outcome address_free(void *address, size_t bytes);
enum memory_outcome physical_create(int physical, size_t bytes, uint64_t *handle);
enum memory_outcome physical_release(uint64_t handle);
enum memory_outcome physical_map(void *address, size_t bytes, uint64_t handle);
enum memory_outcome physical_unmap(void *address, size_t bytes);
/* The handle mapped at the address, with one more reference. */
enum memory_outcome physical_retain(const void *address, uint64_t *handle);
int physical_device_of(uint64_t handle); /* -1: no such handle */

/* Sets bytes; large runs of zeros are given back to the system instead of written, which leaves zeros too. */
void fill_bytes(void *address, int value, size_t bytes);

/* Knobs that a test turns while the process runs (inside/rig_inside.py), beside the FAKEGPU_... variables they start
 * from. */
void fakegpu_set_malloc_delay_us(uint64_t microseconds);
void fakegpu_fail_next_mallocs(uint64_t count);
void fakegpu_set_events_pending(int pending);
int fakegpu_events_pending(void);

#endif
