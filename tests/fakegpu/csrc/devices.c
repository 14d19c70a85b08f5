#define _GNU_SOURCE
#include "devices.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "budget.h"
#include "knobs.h"

static int visible[MAX_DEVICES];
static int visible_count;
static atomic_int started_in;           /* pid of the process that called cuInit, 0 before */
static atomic_int entered[MAX_DEVICES]; /* pid of the process known to have a context there */
static pthread_once_t read_once = PTHREAD_ONCE_INIT;

void device_uuid(int physical, unsigned char out[UUID_BYTES])
{
    unsigned node = (unsigned)knob_number("FAKEGPU_NODE", 0, 0, 65535);
    const unsigned char uuid[UUID_BYTES] = {
        0xfa, 0x6e, 0, 0, (unsigned char)(node >> 8), (unsigned char)node, 0x40, 0, 0x80, 0, 0,
        0,    0,    0, 0, (unsigned char)physical,
    };
    memcpy(out, uuid, UUID_BYTES);
}

void device_uuid_text(int physical, char out[UUID_TEXT_BYTES])
{
    unsigned char u[UUID_BYTES];
    device_uuid(physical, u);
    snprintf(out, UUID_TEXT_BYTES, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0],
             u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

int device_pci_bus(int physical)
{
    return 0x10 + physical;
}

void device_pci_text(int physical, char out[PCI_TEXT_BYTES])
{
    snprintf(out, PCI_TEXT_BYTES, "%08X:%02X:00.0", 0u, (unsigned)device_pci_bus(physical));
}

/* One entry of CUDA_VISIBLE_DEVICES: an index or the beginning of a UUID. -1 when it names nothing. */
static int device_named(const char *name)
{
    if (strncmp(name, "GPU-", 4) == 0) {
        int found = -1;
        for (int physical = 0; physical < budget_device_count(); physical++) {
            char uuid[UUID_TEXT_BYTES];
            device_uuid_text(physical, uuid);
            if (strncasecmp(uuid, name, strlen(name)) != 0)
                continue;
            if (found >= 0)
                return -1; /* the beginning of two */
            found = physical;
        }
        return found;
    }
    char *end;
    long index = strtol(name, &end, 10);
    return end != name && *end == '\0' && index >= 0 && index < budget_device_count() ? (int)index : -1;
}

/* CUDA's rules: the list ends at the first entry that names nothing, and a device named twice hides all of them. */
static void read_visible_devices(void)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (list == NULL) {
        for (visible_count = 0; visible_count < budget_device_count(); visible_count++)
            visible[visible_count] = visible_count;
        return;
    }
    char *copy = strdup(list), *rest = copy, *name;
    while ((name = strsep(&rest, ",")) != NULL && visible_count < MAX_DEVICES) {
        name += strspn(name, " ");
        name[strcspn(name, " ")] = '\0';
        int physical = device_named(name);
        if (physical < 0)
            break;
        for (int i = 0; i < visible_count; i++)
            if (visible[i] == physical) {
                visible_count = 0;
                free(copy);
                return;
            }
        visible[visible_count++] = physical;
    }
    free(copy);
}

int visible_device_count(void)
{
    pthread_once(&read_once, read_visible_devices);
    int nobody = 0;
    atomic_compare_exchange_strong(&started_in, &nobody, (int)getpid());
    return visible_count;
}

int physical_device(int ordinal)
{
    return ordinal >= 0 && ordinal < visible_device_count() ? visible[ordinal] : -1;
}

bool forked_after_start(void)
{
    int starter = atomic_load(&started_in);
    return starter != 0 && starter != (int)getpid();
}

bool enter_device(int physical)
{
    int self = (int)getpid();
    if (atomic_load(&entered[physical]) == self)
        return true;
    if (!budget_enter(physical))
        return false;
    atomic_store(&entered[physical], self);
    return true;
}

static __thread int ordinal_of_thread;
static __thread bool bound;

int thread_ordinal(void)
{
    return ordinal_of_thread;
}

void thread_choose(int ordinal)
{
    ordinal_of_thread = ordinal;
}

void thread_bind(void)
{
    bound = true;
}

bool thread_is_bound(void)
{
    return bound;
}
