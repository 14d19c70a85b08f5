#define _GNU_SOURCE
#include "memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "budget.h"
#include "knobs.h"

/* A region and, for mapped ones, the physical memory behind it. */
struct entry {
    struct region region;
    uint64_t handle;
};

struct physical {
    size_t bytes;
    int device;
    unsigned references; /* handles that the program holds */
    unsigned mappings;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *entries; /* sorted by address */
static size_t entry_count, entry_room;
static struct physical *physicals; /* indexed by handle - 1 */
static size_t physical_count, physical_room;
static uint64_t *unused_handles;
static size_t unused_count, unused_room;

/* ---- knobs ---- */

static atomic_ullong malloc_delay_us, mallocs_to_fail, mallocs_before_failure = UINT64_MAX;
static atomic_int events_pending;

__attribute__((constructor)) static void read_knobs(void)
{
    malloc_delay_us = knob_number("FAKEGPU_MALLOC_DELAY_US", 0, 0, 60000000);
    mallocs_before_failure = knob_number("FAKEGPU_FAIL_AFTER_MALLOCS", UINT64_MAX, 0, UINT64_MAX);
    events_pending = knob_equals("FAKEGPU_EVENTS", "pending");
}

void fakegpu_set_malloc_delay_us(uint64_t microseconds)
{
    malloc_delay_us = microseconds;
}

void fakegpu_fail_next_mallocs(uint64_t count)
{
    mallocs_to_fail = count;
}

void fakegpu_set_events_pending(int pending)
{
    events_pending = pending;
}

int fakegpu_events_pending(void)
{
    return events_pending;
}

/* Waits as long and fails as often as the knobs say; outside of every lock of ours, as the real driver's slowness is.
 */
static bool driver_grants(void)
{
    if (malloc_delay_us > 0)
        usleep((useconds_t)malloc_delay_us);
    unsigned long long left = mallocs_to_fail;
    while (left > 0)
        if (atomic_compare_exchange_weak(&mallocs_to_fail, &left, left - 1))
            return false;
    left = mallocs_before_failure;
    while (left != UINT64_MAX && left > 0)
        if (atomic_compare_exchange_weak(&mallocs_before_failure, &left, left - 1))
            return true;
    return left == UINT64_MAX;
}

/* ---- the table of regions; all with the lock held ---- */

static void *grown(void *array, size_t count, size_t *room, size_t item_bytes)
{
    if (count < *room)
        return array;
    *room = *room == 0 ? 256 : *room * 2;
    array = realloc(array, *room * item_bytes);
    if (array == NULL)
        give_up("out of host memory");
    return array;
}

/* Index of the first region that starts after the address. */
static size_t first_after(uintptr_t address)
{
    size_t low = 0, high = entry_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (entries[middle].region.start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct entry *entry_containing(uintptr_t address)
{
    size_t next = first_after(address);
    if (next == 0 || address - entries[next - 1].region.start >= entries[next - 1].region.bytes)
        return NULL;
    return &entries[next - 1];
}

static struct entry *entry_at(const void *address, enum memory_kind kind)
{
    struct entry *entry = entry_containing((uintptr_t)address);
    return entry != NULL && entry->region.start == (uintptr_t)address && entry->region.kind == kind ? entry : NULL;
}

static void add_entry(struct region region, uint64_t handle)
{
    entries = grown(entries, entry_count, &entry_room, sizeof *entries);
    size_t place = first_after(region.start);
    memmove(&entries[place + 1], &entries[place], (entry_count - place) * sizeof *entries);
    entries[place] = (struct entry){region, handle};
    entry_count++;
}

static void remove_entry(struct entry *entry)
{
    size_t place = (size_t)(entry - entries);
    memmove(entry, entry + 1, (entry_count - place - 1) * sizeof *entries);
    entry_count--;
}

bool find_region(const void *address, struct region *out)
{
    pthread_mutex_lock(&lock);
    const struct entry *entry = entry_containing((uintptr_t)address);
    if (entry != NULL)
        *out = entry->region;
    pthread_mutex_unlock(&lock);
    return entry != NULL;
}

/* ---- pages ---- */

static size_t rounded(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

/* Address space aligned like the driver's; the margins needed for the alignment are given back at once. */
static void *aligned_pages(size_t bytes, size_t alignment, int protection)
{
    char *raw = mmap(NULL, bytes + alignment, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    char *start = (char *)rounded((uintptr_t)raw, alignment);
    if (start > raw)
        munmap(raw, (size_t)(start - raw));
    if (raw + alignment > start)
        munmap(start + bytes, (size_t)(raw + alignment - start));
    /* Huge pages would commit 2 MiB of the host for every small tensor that a copy touches. */
    madvise(start, bytes, MADV_NOHUGEPAGE);
    return start;
}

void fill_bytes(void *address, int value, size_t bytes)
{
    const size_t page = 4096;
    struct region region;
    if (value != 0 || bytes < 16 * page || !find_region(address, &region) || region.kind > MEMORY_MAPPED) {
        memset(address, value, bytes);
        return;
    }
    char *end = (char *)address + bytes;
    char *first = (char *)rounded((uintptr_t)address, page), *last = (char *)((uintptr_t)end / page * page);
    memset(address, 0, (size_t)(first - (char *)address));
    madvise(first, (size_t)(last - first), MADV_DONTNEED);
    memset(last, 0, (size_t)(end - last));
}

/* ---- cudaMalloc, cudaHostAlloc ---- */

enum memory_outcome device_allocate(int physical, size_t bytes, void **address)
{
    size_t size = rounded(bytes, DEVICE_PAGE_BYTES);
    if (size < bytes || !driver_grants() || !budget_take(physical, size))
        return MEMORY_FULL;
    void *start = aligned_pages(size, DEVICE_PAGE_BYTES, PROT_READ | PROT_WRITE);
    if (start == NULL) {
        budget_give_back(physical, size);
        return MEMORY_FULL;
    }
    pthread_mutex_lock(&lock);
    add_entry((struct region){(uintptr_t)start, size, MEMORY_DEVICE, physical}, 0);
    pthread_mutex_unlock(&lock);
    *address = start;
    return MEMORY_OK;
}

/* Takes the region out of the table; false when no region of that kind starts there. */
static bool take_out(const void *address, enum memory_kind kind, struct region *out)
{
    pthread_mutex_lock(&lock);
    struct entry *entry = entry_at(address, kind);
    if (entry != NULL) {
        *out = entry->region;
        remove_entry(entry);
    }
    pthread_mutex_unlock(&lock);
    return entry != NULL;
}

enum memory_outcome device_free(void *address)
{
    struct region region;
    if (!take_out(address, MEMORY_DEVICE, &region))
        return MEMORY_UNKNOWN;
    munmap(address, region.bytes);
    budget_give_back(region.device, region.bytes);
    return MEMORY_OK;
}

enum memory_outcome pinned_allocate(int physical, size_t bytes, void **address)
{
    size_t size = rounded(bytes, 4096);
    void *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        return MEMORY_FULL;
    pinned_register(physical, start, size);
    pthread_mutex_lock(&lock);
    entry_at(start, MEMORY_REGISTERED)->region.kind = MEMORY_PINNED;
    pthread_mutex_unlock(&lock);
    *address = start;
    return MEMORY_OK;
}

enum memory_outcome pinned_free(void *address)
{
    struct region region;
    if (!take_out(address, MEMORY_PINNED, &region))
        return MEMORY_UNKNOWN;
    munmap(address, region.bytes);
    return MEMORY_OK;
}

void pinned_register(int physical, void *address, size_t bytes)
{
    pthread_mutex_lock(&lock);
    add_entry((struct region){(uintptr_t)address, bytes, MEMORY_REGISTERED, physical}, 0);
    pthread_mutex_unlock(&lock);
}

enum memory_outcome pinned_unregister(void *address)
{
    struct region region;
    return take_out(address, MEMORY_REGISTERED, &region) ? MEMORY_OK : MEMORY_UNKNOWN;
}

/* ---- virtual memory management ---- */

enum memory_outcome address_reserve(size_t bytes, size_t alignment, void **address)
{
    if (alignment < DEVICE_PAGE_BYTES)
        alignment = DEVICE_PAGE_BYTES;
    *address = aligned_pages(bytes, alignment, PROT_NONE);
    return *address == NULL ? MEMORY_FULL : MEMORY_OK;
}

enum memory_outcome address_free(void *address, size_t bytes)
{
    return munmap(address, bytes) == 0 ? MEMORY_OK : MEMORY_UNKNOWN;
}

/* With the lock held. */
static struct physical *physical_of(uint64_t handle)
{
    if (handle == 0 || handle > physical_count)
        return NULL;
    struct physical *physical = &physicals[handle - 1];
    return physical->references + physical->mappings > 0 ? physical : NULL;
}

/* With the lock held, after references or mappings went down. */
static void free_if_unused(uint64_t handle)
{
    struct physical *physical = &physicals[handle - 1];
    if (physical->references + physical->mappings > 0)
        return;
    budget_give_back(physical->device, physical->bytes);
    unused_handles = grown(unused_handles, unused_count, &unused_room, sizeof *unused_handles);
    unused_handles[unused_count++] = handle;
}

enum memory_outcome physical_create(int device, size_t bytes, uint64_t *handle)
{
    if (!driver_grants() || !budget_take(device, bytes))
        return MEMORY_FULL;
    pthread_mutex_lock(&lock);
    if (unused_count > 0) {
        *handle = unused_handles[--unused_count];
    } else {
        physicals = grown(physicals, physical_count, &physical_room, sizeof *physicals);
        *handle = ++physical_count;
    }
    physicals[*handle - 1] = (struct physical){bytes, device, 1, 0};
    pthread_mutex_unlock(&lock);
    return MEMORY_OK;
}

enum memory_outcome physical_release(uint64_t handle)
{
    pthread_mutex_lock(&lock);
    struct physical *physical = physical_of(handle);
    bool held = physical != NULL && physical->references > 0;
    if (held) {
        physical->references--;
        free_if_unused(handle);
    }
    pthread_mutex_unlock(&lock);
    return held ? MEMORY_OK : MEMORY_UNKNOWN;
}

enum memory_outcome physical_map(void *address, size_t bytes, uint64_t handle)
{
    pthread_mutex_lock(&lock);
    struct physical *physical = physical_of(handle);
    bool mapped = physical != NULL && physical->bytes == bytes && mprotect(address, bytes, PROT_READ | PROT_WRITE) == 0;
    if (mapped) {
        physical->mappings++;
        add_entry((struct region){(uintptr_t)address, bytes, MEMORY_MAPPED, physical->device}, handle);
    }
    pthread_mutex_unlock(&lock);
    return mapped ? MEMORY_OK : MEMORY_UNKNOWN;
}

enum memory_outcome physical_unmap(void *address, size_t bytes)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    /* One unmap may cover several mappings, each of them wholly. */
    for (char *cursor = address; cursor < (char *)address + bytes;) {
        struct entry *entry = entry_at(cursor, MEMORY_MAPPED);
        if (entry == NULL)
            break;
        uint64_t handle = entry->handle;
        size_t size = entry->region.bytes;
        /* Pages go back first, then access: as on the card, touching unmapped memory is a fault. */
        madvise(cursor, size, MADV_DONTNEED);
        mprotect(cursor, size, PROT_NONE);
        remove_entry(entry);
        physicals[handle - 1].mappings--;
        free_if_unused(handle);
        cursor += size;
        found = true;
    }
    pthread_mutex_unlock(&lock);
    return found ? MEMORY_OK : MEMORY_UNKNOWN;
}

enum memory_outcome physical_retain(const void *address, uint64_t *handle)
{
    pthread_mutex_lock(&lock);
    struct entry *entry = entry_containing((uintptr_t)address);
    bool found = entry != NULL && entry->region.kind == MEMORY_MAPPED;
    if (found) {
        *handle = entry->handle;
        physicals[*handle - 1].references++;
    }
    pthread_mutex_unlock(&lock);
    return found ? MEMORY_OK : MEMORY_UNKNOWN;
}

int physical_device_of(uint64_t handle)
{
    pthread_mutex_lock(&lock);
    const struct physical *physical = physical_of(handle);
    int device = physical == NULL ? -1 : physical->device;
    pthread_mutex_unlock(&lock);
    return device;
}
